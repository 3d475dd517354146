//! Rows → padded or packed arrays, each written into its final memory once.

use std::fmt;

/// One row, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct RowView<'a> {
    /// All ids, the prompt's included.
    pub input_ids: &'a [i64],
    /// 1 where the token is trained.
    pub completion_mask: &'a [i64],
    /// The sampled logprob where the token is trained.
    pub old_log_probs: &'a [f32],
}

/// Why rows cannot become a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollateError {
    /// The arrays of one row differ in length.
    Ragged {
        /// Which row.
        row: usize,
        /// Lengths of ids, mask and logprobs.
        lengths: [usize; 3],
    },
    /// `multiple_of` is zero.
    NoMultiple,
    /// More elements than an array (or, for `cu_seqlens`, an int32) can count.
    TooLarge,
}

impl fmt::Display for CollateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ragged { row, lengths: [ids, mask, log_probs] } => write!(
                f,
                "row {row} has {ids} input_ids, {mask} completion_mask and {log_probs} old_log_probs: \
                 the three must be equally long"
            ),
            Self::NoMultiple => f.write_str("multiple_of must be at least 1"),
            Self::TooLarge => f.write_str("the batch is too large: its size overflows"),
        }
    }
}

impl std::error::Error for CollateError {}

/// The layout of a padded batch of `B` rows.
#[derive(Debug, PartialEq)]
pub struct Padded {
    /// Columns.
    pub length: usize,
    /// [B, L]
    pub input_ids: Vec<i64>,
    /// [B, L]
    pub attention_mask: Vec<i64>,
    /// [B, L]
    pub completion_mask: Vec<i64>,
    /// [B, L]
    pub old_log_probs: Vec<f32>,
}

/// The layout of a batch of prompts and completions, of `B` rows.
#[derive(Debug, PartialEq)]
pub struct PromptCompletion {
    /// Columns of the prompts.
    pub prompt_length: usize,
    /// Columns of the completions.
    pub completion_length: usize,
    /// [B, P]
    pub prompt_ids: Vec<i64>,
    /// [B, P]
    pub prompt_mask: Vec<i64>,
    /// [B, C]
    pub completion_ids: Vec<i64>,
    /// [B, C], 1 where there is a token.
    pub completion_mask: Vec<i64>,
    /// [B, C], 1 where it is trained.
    pub loss_mask: Vec<i64>,
    /// [B, C]
    pub old_log_probs: Vec<f32>,
}

/// The layout of a packed batch of `B` rows and `T` tokens.
#[derive(Debug, PartialEq)]
pub struct Packed {
    /// [T]
    pub input_ids: Vec<i64>,
    /// [T], from 0 in each row.
    pub position_ids: Vec<i64>,
    /// [T]
    pub completion_mask: Vec<i64>,
    /// [T]
    pub old_log_probs: Vec<f32>,
    /// [T], the row that the token is of.
    pub row_index: Vec<i64>,
    /// [B + 1], where each row begins, and the end.
    pub cu_seqlens: Vec<i32>,
    /// Length of the longest row.
    pub max_seqlen: usize,
}

fn check(rows: &[RowView<'_>]) -> Result<(), CollateError> {
    for (row, view) in rows.iter().enumerate() {
        let lengths = [view.input_ids.len(), view.completion_mask.len(), view.old_log_probs.len()];
        if lengths[1] != lengths[0] || lengths[2] != lengths[0] {
            return Err(CollateError::Ragged { row, lengths });
        }
    }
    Ok(())
}

/// One matrix: each row between `before` and `length - before - row` copies of `fill`.
fn matrix<T: Copy>(
    rows: impl ExactSizeIterator<Item = (usize, impl Iterator<Item = T>)>,
    length: usize,
    fill: T,
) -> Vec<T> {
    let mut all = Vec::with_capacity(rows.len() * length);
    for (at, (before, row)) in rows.enumerate() {
        all.resize(at * length + before, fill);
        all.extend(row);
        all.resize((at + 1) * length, fill);
    }
    all
}

/// Rows of equal length, padded at the left or the right end to the longest, rounded up to a multiple.
///
/// # Errors
/// A ragged row, a zero `multiple_of`, a size that overflows.
pub fn pad(rows: &[RowView<'_>], pad_token_id: i64, left: bool, multiple_of: usize) -> Result<Padded, CollateError> {
    check(rows)?;
    if multiple_of == 0 {
        return Err(CollateError::NoMultiple);
    }
    let longest = rows.iter().map(|row| row.input_ids.len()).max().unwrap_or(0);
    let length = longest.checked_next_multiple_of(multiple_of).ok_or(CollateError::TooLarge)?;
    size_of_matrix(rows.len(), length)?;
    let before = |row: &RowView<'_>| if left { length - row.input_ids.len() } else { 0 };
    Ok(Padded {
        length,
        input_ids: matrix(rows.iter().map(|row| (before(row), row.input_ids.iter().copied())), length, pad_token_id),
        attention_mask: matrix(rows.iter().map(|row| (before(row), row.input_ids.iter().map(|_| 1))), length, 0),
        completion_mask: matrix(rows.iter().map(|row| (before(row), row.completion_mask.iter().copied())), length, 0),
        old_log_probs: matrix(rows.iter().map(|row| (before(row), row.old_log_probs.iter().copied())), length, 0.0),
    })
}

fn size_of_matrix(rows: usize, length: usize) -> Result<(), CollateError> {
    let bytes = rows.checked_mul(length).and_then(|elements| elements.checked_mul(size_of::<i64>()));
    bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).map(|_| ()).ok_or(CollateError::TooLarge)
}

/// Each row in two: its prompt, which ends before the first trained token, padded at the left; the rest at the right.
///
/// # Errors
/// A ragged row, a size that overflows.
pub fn pad_prompt_completion(rows: &[RowView<'_>], pad_token_id: i64) -> Result<PromptCompletion, CollateError> {
    check(rows)?;
    let halves: Vec<_> = rows
        .iter()
        .map(|row| (row, row.completion_mask.iter().position(|&mask| mask != 0).unwrap_or(row.completion_mask.len())))
        .collect();
    let prompt_length = halves.iter().map(|&(_, prompt)| prompt).max().unwrap_or(0);
    let completion_length = halves.iter().map(|&(row, prompt)| row.input_ids.len() - prompt).max().unwrap_or(0);
    size_of_matrix(rows.len(), prompt_length)?;
    size_of_matrix(rows.len(), completion_length)?;
    let prompts = || halves.iter().map(|&(row, prompt)| (prompt_length - prompt, row.input_ids[..prompt].iter()));
    let completions = || halves.iter().map(|&(row, prompt)| (0, row.input_ids[prompt..].iter()));
    let masks = halves.iter().map(|&(row, prompt)| (0, row.completion_mask[prompt..].iter().copied()));
    let log_probs = halves.iter().map(|&(row, prompt)| (0, row.old_log_probs[prompt..].iter().copied()));
    Ok(PromptCompletion {
        prompt_length,
        completion_length,
        prompt_ids: matrix(prompts().map(|(before, ids)| (before, ids.copied())), prompt_length, pad_token_id),
        prompt_mask: matrix(prompts().map(|(before, ids)| (before, ids.map(|_| 1))), prompt_length, 0),
        completion_ids: matrix(
            completions().map(|(before, ids)| (before, ids.copied())),
            completion_length,
            pad_token_id,
        ),
        completion_mask: matrix(completions().map(|(before, ids)| (before, ids.map(|_| 1))), completion_length, 0),
        loss_mask: matrix(masks, completion_length, 0),
        old_log_probs: matrix(log_probs, completion_length, 0.0),
    })
}

/// All rows one behind the other.
///
/// # Errors
/// A ragged row, more tokens than an int32 counts.
pub fn pack(rows: &[RowView<'_>]) -> Result<Packed, CollateError> {
    check(rows)?;
    let mut cu_seqlens = Vec::with_capacity(rows.len() + 1);
    let mut tokens = 0_i32;
    cu_seqlens.push(tokens);
    for row in rows {
        let length = i32::try_from(row.input_ids.len()).map_err(|_| CollateError::TooLarge)?;
        tokens = tokens.checked_add(length).ok_or(CollateError::TooLarge)?;
        cu_seqlens.push(tokens);
    }
    let tokens = usize::try_from(tokens).map_err(|_| CollateError::TooLarge)?;
    let mut packed = Packed {
        input_ids: Vec::with_capacity(tokens),
        position_ids: Vec::with_capacity(tokens),
        completion_mask: Vec::with_capacity(tokens),
        old_log_probs: Vec::with_capacity(tokens),
        row_index: Vec::with_capacity(tokens),
        cu_seqlens,
        max_seqlen: rows.iter().map(|row| row.input_ids.len()).max().unwrap_or(0),
    };
    for (index, row) in (0_i64..).zip(rows) {
        packed.input_ids.extend_from_slice(row.input_ids);
        packed.position_ids.extend((0_i64..).take(row.input_ids.len()));
        packed.completion_mask.extend_from_slice(row.completion_mask);
        packed.old_log_probs.extend_from_slice(row.old_log_probs);
        packed.row_index.extend(std::iter::repeat_n(index, row.input_ids.len()));
    }
    Ok(packed)
}
