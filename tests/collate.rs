//! Rows → padded and packed arrays.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails

use _native::collate::{CollateError, RowView, pack, pad, pad_prompt_completion};

const A: RowView<'_> =
    RowView { input_ids: &[1, 2, 3], completion_mask: &[0, 1, 1], old_log_probs: &[0.0, -1.0, -2.0] };
const B: RowView<'_> = RowView {
    input_ids: &[4, 5, 6, 7, 0],
    completion_mask: &[0, 0, 1, 0, 1],
    old_log_probs: &[0.0, 0.0, -3.0, 0.0, -4.0],
};

#[test]
fn padded_at_the_right() {
    let batch = pad(&[A, B], 0, false, 4).expect("rows");
    assert_eq!(batch.length, 8);
    assert_eq!(batch.input_ids, [1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0]);
    assert_eq!(batch.attention_mask, [1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(batch.completion_mask, [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
    assert_eq!(batch.old_log_probs[..8], [0.0, -1.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn padded_at_the_left() {
    let batch = pad(&[A, B], 9, true, 1).expect("rows");
    assert_eq!(batch.input_ids, [9, 9, 1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(batch.attention_mask, [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(batch.old_log_probs, [0.0, 0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -3.0, 0.0, -4.0]);
}

#[test]
fn in_two_halves() {
    let batch = pad_prompt_completion(&[A, B], 9).expect("rows");
    assert_eq!((batch.prompt_length, batch.completion_length), (2, 3));
    assert_eq!(batch.prompt_ids, [9, 1, 4, 5]);
    assert_eq!(batch.prompt_mask, [0, 1, 1, 1]);
    assert_eq!(batch.completion_ids, [2, 3, 9, 6, 7, 0]);
    assert_eq!(batch.completion_mask, [1, 1, 0, 1, 1, 1]);
    assert_eq!(batch.loss_mask, [1, 1, 0, 1, 0, 1]);
    assert_eq!(batch.old_log_probs, [-1.0, -2.0, 0.0, -3.0, 0.0, -4.0]);
}

#[test]
fn packed() {
    let batch = pack(&[A, B]).expect("rows");
    assert_eq!(batch.input_ids, [1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(batch.position_ids, [0, 1, 2, 0, 1, 2, 3, 4]);
    assert_eq!(batch.row_index, [0, 0, 0, 1, 1, 1, 1, 1]);
    assert_eq!(batch.cu_seqlens, [0, 3, 8]);
    assert_eq!(batch.max_seqlen, 5);
}

#[test]
fn nothing() {
    let batch = pad(&[], 0, false, 8).expect("no rows");
    assert_eq!((batch.length, batch.input_ids.len()), (0, 0));
    assert_eq!(pack(&[]).expect("no rows").cu_seqlens, [0]);
    assert_eq!(pad_prompt_completion(&[], 0).expect("no rows").prompt_length, 0);
}

#[test]
fn refused() {
    let ragged = RowView { completion_mask: &[1], ..A };
    assert_eq!(pad(&[A, ragged], 0, false, 1).err(), Some(CollateError::Ragged { row: 1, lengths: [3, 1, 3] }));
    assert_eq!(pad(&[A], 0, false, 0).err(), Some(CollateError::NoMultiple));
    assert_eq!(pad(&[A, A], 0, false, usize::MAX / 2).err(), Some(CollateError::TooLarge));
}
