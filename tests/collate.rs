//! Rows → padded and packed arrays.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails

use _native::collate::{
    CollateError, Fitted, Limits, Overflow, Packed, PackedArrays, Padded, PaddedArrays, PromptCompletion,
    PromptCompletionArrays, RowView, fit,
};
use proptest::prelude::*;

const A: RowView<'_> = RowView {
    input_ids: &[1, 2, 3],
    completion_mask: &[0, 1, 1],
    old_log_probs: &[0.0, -1.0, -2.0],
    values: Some(&[0.0, 0.5, 0.5]),
};
const B: RowView<'_> = RowView {
    input_ids: &[4, 5, 6, 7, 0],
    completion_mask: &[0, 0, 1, 0, 1],
    old_log_probs: &[0.0, 0.0, -3.0, 0.0, -4.0],
    values: Some(&[0.0, 0.0, 1.5, 0.0, 2.5]),
};
const FREE: Limits = Limits { max_length: None, on_overflow: Overflow::Error, vocab_size: None };
/// What stands in the memory before: all of it must be overwritten.
const JUNK: i64 = -77;

#[derive(Debug, PartialEq)]
struct Batch {
    ids: Vec<Vec<i64>>,
    floats: Vec<Vec<f32>>,
}

#[allow(clippy::cast_precision_loss)] // a small number
fn memory(ids: usize, floats: usize, size: usize) -> Batch {
    Batch { ids: vec![vec![JUNK; size]; ids], floats: vec![vec![JUNK as f32; size]; floats] }
}

/// input_ids, attention_mask, completion_mask; old_log_probs, values.
fn padded(fitted: &Fitted<'_>, pad_token_id: i64, left: bool, multiple_of: usize) -> Result<Batch, CollateError> {
    let batch = Padded::new(fitted, pad_token_id, left, multiple_of)?;
    let mut to = memory(3, 2, fitted.rows.len() * batch.length);
    let [input_ids, attention_mask, completion_mask] = to.ids.as_mut_slice() else { panic!("three") };
    let [old_log_probs, values] = to.floats.as_mut_slice() else { panic!("two") };
    batch.write(PaddedArrays { input_ids, attention_mask, completion_mask, old_log_probs, values: Some(values) })?;
    Ok(to)
}

/// input_ids, position_ids, completion_mask, row_index; old_log_probs, values.
fn packed(fitted: &Fitted<'_>) -> Result<(Batch, Vec<i32>, usize), CollateError> {
    let batch = Packed::new(fitted)?;
    let mut to = memory(4, 2, batch.tokens);
    let [input_ids, position_ids, completion_mask, row_index] = to.ids.as_mut_slice() else { panic!("four") };
    let [old_log_probs, values] = to.floats.as_mut_slice() else { panic!("two") };
    let values = Some(values.as_mut_slice());
    batch.write(PackedArrays { input_ids, position_ids, completion_mask, old_log_probs, row_index, values })?;
    Ok((to, batch.cu_seqlens, batch.max_seqlen))
}

#[test]
fn padded_at_the_right() {
    let batch = padded(&fit(&[A, B], FREE).expect("rows"), 0, false, 4).expect("rows");
    assert_eq!(batch.ids[0], [1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0]);
    assert_eq!(batch.ids[1], [1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(batch.ids[2], [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
    assert_eq!(batch.floats[0][..8], [0.0, -1.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(batch.floats[1], [0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 0.0, 2.5, 0.0, 0.0, 0.0]);
}

#[test]
fn padded_at_the_left() {
    let batch = padded(&fit(&[A, B], FREE).expect("rows"), 9, true, 1).expect("rows");
    assert_eq!(batch.ids[0], [9, 9, 1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(batch.ids[1], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(batch.floats[0], [0.0, 0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -3.0, 0.0, -4.0]);
}

#[test]
fn in_two_halves() {
    let fitted = fit(&[A, B], FREE).expect("rows");
    let batch = PromptCompletion::new(&fitted, 9).expect("rows");
    assert_eq!((batch.prompt_length, batch.completion_length), (2, 3));
    let mut prompts = memory(2, 0, 4);
    let mut completions = memory(3, 2, 6);
    let [prompt_ids, prompt_mask] = prompts.ids.as_mut_slice() else { panic!("two") };
    let [completion_ids, completion_mask, loss_mask] = completions.ids.as_mut_slice() else { panic!("three") };
    let [old_log_probs, values] = completions.floats.as_mut_slice() else { panic!("two") };
    let to = PromptCompletionArrays {
        prompt_ids,
        prompt_mask,
        completion_ids,
        completion_mask,
        loss_mask,
        old_log_probs,
        values: Some(values),
    };
    batch.write(to).expect("rows");
    assert_eq!(prompts.ids, [[9, 1, 4, 5], [0, 1, 1, 1]]);
    assert_eq!(completions.ids, [[2, 3, 9, 6, 7, 0], [1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 0, 1]]);
    assert_eq!(completions.floats, [[-1.0, -2.0, 0.0, -3.0, 0.0, -4.0], [0.5, 0.5, 0.0, 1.5, 0.0, 2.5]]);
}

#[test]
fn one_behind_the_other() {
    let (batch, cu_seqlens, max_seqlen) = packed(&fit(&[A, B], FREE).expect("rows")).expect("rows");
    assert_eq!(batch.ids[0], [1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(batch.ids[1], [0, 1, 2, 0, 1, 2, 3, 4]);
    assert_eq!(batch.ids[2], [0, 1, 1, 0, 0, 1, 0, 1]);
    assert_eq!(batch.ids[3], [0, 0, 0, 1, 1, 1, 1, 1]);
    assert_eq!(batch.floats[1], [0.0, 0.5, 0.5, 0.0, 0.0, 1.5, 0.0, 2.5]);
    assert_eq!((cu_seqlens, max_seqlen), (vec![0, 3, 8], 5));
}

#[test]
fn nothing() {
    let fitted = fit(&[], FREE).expect("no rows");
    assert_eq!(Padded::new(&fitted, 0, false, 8).expect("no rows").length, 0);
    assert_eq!(padded(&fitted, 0, false, 8), Ok(memory(3, 2, 0)));
    assert_eq!(packed(&fitted), Ok((memory(4, 2, 0), vec![0], 0)));
    assert_eq!(PromptCompletion::new(&fitted, 0).expect("no rows").prompt_length, 0);
}

#[test]
fn rows_that_are_too_long() {
    let at_most = |max_length, on_overflow| Limits { max_length: Some(max_length), on_overflow, vocab_size: None };
    let refused = fit(&[A, B], at_most(4, Overflow::Error)).expect_err("too long");
    assert_eq!(refused, CollateError::TooLong { row: 1, tokens: 5, max_length: 4 });
    assert!(refused.to_string().starts_with("row 1 has 5 tokens, more than max_length=4"));
    for on_overflow in [Overflow::Error, Overflow::Drop, Overflow::Truncate] {
        let fitted = fit(&[A, B], at_most(5, on_overflow)).expect("just as long");
        assert_eq!((fitted.kept_rows, fitted.dropped_rows, fitted.truncated_rows), (vec![0, 1], 0, 0));
    }
    let dropped = fit(&[B, A], at_most(4, Overflow::Drop)).expect("rows");
    assert_eq!((&dropped.kept_rows, dropped.dropped_rows), (&vec![1], 1));
    assert_eq!(packed(&dropped).expect("a row").0.ids[3], [0, 0, 0]);
    let cut = fit(&[B, A], at_most(2, Overflow::Truncate)).expect("rows");
    assert_eq!((&cut.kept_rows, cut.truncated_rows, cut.truncated_tokens), (&vec![0, 1], 2, 4));
    let batch = packed(&cut).expect("rows").0;
    assert_eq!(batch.ids[0], [4, 5, 1, 2]);
    assert_eq!(batch.ids[2], [0, 0, 0, 1]);
    assert_eq!(batch.floats, [[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.5]]);
}

#[test]
fn ids_beyond_the_vocabulary() {
    let limits = Limits { vocab_size: Some(7), ..FREE };
    let refused = CollateError::NotInVocabulary { row: 1, token: 3, id: 7, vocab_size: 7 };
    let fitted = fit(&[A, B], limits).expect("rows");
    assert_eq!(padded(&fitted, 0, false, 1), Err(refused));
    assert_eq!(packed(&fitted), Err(refused));
    assert!(refused.to_string().starts_with("row 1: input_ids[3] is 7, which is not in a vocabulary of vocab_size=7"));
    // What does not stay is not looked at, and rows keep the numbers that they were given.
    let shortened = Limits { max_length: Some(3), on_overflow: Overflow::Truncate, ..limits };
    assert!(packed(&fit(&[A, B], shortened).expect("rows")).is_ok());
    let negative = RowView { input_ids: &[1, -1, 2], ..A };
    let left = Limits { max_length: Some(4), on_overflow: Overflow::Drop, ..limits };
    let refused = CollateError::NotInVocabulary { row: 1, token: 1, id: -1, vocab_size: 7 };
    assert_eq!(packed(&fit(&[B, negative], left).expect("rows")), Err(refused));
}

#[test]
fn refused() {
    let ragged = RowView { completion_mask: &[1], ..A };
    assert_eq!(fit(&[A, ragged], FREE).err(), Some(CollateError::Ragged { row: 1, lengths: [3, 1, 3] }));
    let valued = RowView { values: Some(&[1.0]), ..A };
    assert_eq!(fit(&[A, valued], FREE).err(), Some(CollateError::Values { row: 1, values: 1, tokens: 3 }));
    let fitted = fit(&[A, A], FREE).expect("rows");
    assert_eq!(Padded::new(&fitted, 0, false, 0).err(), Some(CollateError::NoMultiple));
    for multiple_of in [usize::MAX, usize::MAX / 2, usize::MAX / 16 + 1] {
        assert_eq!(Padded::new(&fitted, 0, false, multiple_of).err(), Some(CollateError::TooLarge));
    }
}

proptest! {
    /// Taking a batch apart again gives the rows, and the padding lies where it should.
    #[test]
    fn whatever_goes_in_comes_out(
        lengths in prop::collection::vec(0_usize..300, 0..8),
        left: bool,
        multiple_of in 1_usize..9,
    ) {
        let ids: Vec<Vec<i64>> = lengths.iter().map(|&length| (0_i64..).take(length).collect()).collect();
        let floats: Vec<Vec<f32>> = lengths.iter().map(|&length| vec![-0.5; length]).collect();
        let rows: Vec<_> = ids
            .iter()
            .zip(&floats)
            .map(|(ids, floats)| RowView {
                input_ids: ids,
                completion_mask: ids,
                old_log_probs: floats,
                values: Some(floats),
            })
            .collect();
        let fitted = fit(&rows, FREE).expect("sound rows");
        let batch = padded(&fitted, 99, left, multiple_of).expect("sound rows");
        let length = lengths.iter().max().copied().unwrap_or(0).next_multiple_of(multiple_of);
        prop_assert_eq!(batch.ids[0].len(), length * lengths.len());
        for (at, row) in ids.iter().enumerate() {
            let line = at * length..(at + 1) * length;
            let before = if left { length - row.len() } else { 0 };
            let mut expected = vec![99; length];
            expected[before..before + row.len()].copy_from_slice(row);
            prop_assert_eq!(&batch.ids[0][line.clone()], expected);
            let mut mask = vec![0; length];
            mask[before..before + row.len()].fill(1);
            prop_assert_eq!(&batch.ids[1][line.clone()], mask);
            prop_assert_eq!(batch.floats[1][line].iter().filter(|&&value| value < 0.0).count(), row.len());
        }
        let (batch, cu_seqlens, _) = packed(&fitted).expect("sound rows");
        prop_assert_eq!(&batch.ids[0], &ids.concat());
        prop_assert_eq!(&batch.ids[1], &ids.concat());
        prop_assert_eq!(cu_seqlens.len(), lengths.len() + 1);
    }
}
