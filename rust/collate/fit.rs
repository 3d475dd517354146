//! Which rows stay, and how much of them.

use std::fmt;
use std::ops::Range;

/// One row, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct RowView<'a> {
    /// All ids, the prompt's included.
    pub input_ids: &'a [i64],
    /// 1 where the token is trained.
    pub completion_mask: &'a [i64],
    /// The sampled logprob where the token is trained.
    pub old_log_probs: &'a [f32],
    /// What else there is of each token, if anything.
    pub values: Option<&'a [f32]>,
}

impl RowView<'_> {
    pub(super) fn len(&self) -> usize {
        self.input_ids.len()
    }

    pub(super) fn part(&self, tokens: Range<usize>) -> Self {
        Self {
            input_ids: &self.input_ids[tokens.clone()],
            completion_mask: &self.completion_mask[tokens.clone()],
            old_log_probs: &self.old_log_probs[tokens.clone()],
            values: self.values.map(|values| &values[tokens]),
        }
    }
}

/// What becomes of a row that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// It is refused.
    Error,
    /// It is left out.
    Drop,
    /// Its first tokens stay.
    Truncate,
}

/// What rows must keep to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens of a row.
    pub max_length: Option<usize>,
    /// What becomes of a row that has more.
    pub on_overflow: Overflow,
    /// Every id that stays is below it.
    pub vocab_size: Option<i64>,
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
    /// The values of one row are not one per token.
    Values {
        /// Which row.
        row: usize,
        /// How many values.
        values: usize,
        /// How many tokens.
        tokens: usize,
    },
    /// A row has more than `max_length` tokens.
    TooLong {
        /// Which row.
        row: usize,
        /// Its tokens.
        tokens: usize,
        /// What it may have.
        max_length: usize,
    },
    /// An id that the vocabulary doesn't have.
    NotInVocabulary {
        /// Which row.
        row: usize,
        /// Which of its tokens.
        token: usize,
        /// The id.
        id: i64,
        /// Ids of the vocabulary.
        vocab_size: i64,
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
            Self::Values { row, values, tokens } => {
                write!(f, "row {row} has {tokens} tokens, but values[{row}] has {values}: one for each token")
            }
            Self::TooLong { row, tokens, max_length } => write!(
                f,
                "row {row} has {tokens} tokens, more than max_length={max_length}: on_overflow=\"drop\" leaves such \
                 rows out, on_overflow=\"truncate\" keeps their first {max_length} tokens"
            ),
            Self::NotInVocabulary { row, token, id, vocab_size } => write!(
                f,
                "row {row}: input_ids[{token}] is {id}, which is not in a vocabulary of vocab_size={vocab_size}: was \
                 it another model that generated the row?"
            ),
            Self::NoMultiple => f.write_str("multiple_of must be at least 1"),
            Self::TooLarge => f.write_str("the batch is too large: its size overflows"),
        }
    }
}

impl std::error::Error for CollateError {}

/// The rows of a batch, and what became of the others.
#[derive(Clone, Debug)]
pub struct Fitted<'a> {
    /// The rows that stay, cut to length.
    pub rows: Vec<RowView<'a>>,
    /// Which of the given rows each of them is.
    pub kept_rows: Vec<i64>,
    /// Rows that are left out.
    pub dropped_rows: usize,
    /// Rows that lost tokens.
    pub truncated_rows: usize,
    /// Those tokens.
    pub truncated_tokens: usize,
    vocab_size: Option<i64>,
}

/// Keep rows to their length. Ids are looked at when they are written.
///
/// # Errors
/// A ragged row, or one that is too long where that is an error.
pub fn fit<'a>(rows: &[RowView<'a>], limits: Limits) -> Result<Fitted<'a>, CollateError> {
    let mut fitted = Fitted {
        rows: Vec::with_capacity(rows.len()),
        kept_rows: Vec::with_capacity(rows.len()),
        dropped_rows: 0,
        truncated_rows: 0,
        truncated_tokens: 0,
        vocab_size: limits.vocab_size,
    };
    for (row, (index, view)) in (0_i64..).zip(rows).enumerate() {
        check_lengths(row, view)?;
        let mut kept = *view;
        if let Some(max_length) = limits.max_length.filter(|&max_length| view.len() > max_length) {
            match limits.on_overflow {
                Overflow::Error => return Err(CollateError::TooLong { row, tokens: view.len(), max_length }),
                Overflow::Drop => {
                    fitted.dropped_rows += 1;
                    continue;
                }
                Overflow::Truncate => {
                    fitted.truncated_rows += 1;
                    fitted.truncated_tokens += view.len() - max_length;
                    kept = view.part(0..max_length);
                }
            }
        }
        fitted.rows.push(kept);
        fitted.kept_rows.push(index);
    }
    Ok(fitted)
}

fn check_lengths(row: usize, view: &RowView<'_>) -> Result<(), CollateError> {
    let lengths = [view.len(), view.completion_mask.len(), view.old_log_probs.len()];
    if lengths[1] != lengths[0] || lengths[2] != lengths[0] {
        return Err(CollateError::Ragged { row, lengths });
    }
    match view.values {
        Some(values) if values.len() != view.len() => {
            Err(CollateError::Values { row, values: values.len(), tokens: view.len() })
        }
        _ => Ok(()),
    }
}

impl Fitted<'_> {
    pub(super) fn longest(&self) -> usize {
        self.rows.iter().map(RowView::len).max().unwrap_or(0)
    }

    pub(super) fn check_size(&self, columns: usize) -> Result<(), CollateError> {
        let bytes = self.rows.len().checked_mul(columns).and_then(|elements| elements.checked_mul(size_of::<i64>()));
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).map(|_| ()).ok_or(CollateError::TooLarge)
    }

    pub(super) fn check_ids(&self, at: usize) -> Result<(), CollateError> {
        let Some(vocab_size) = self.vocab_size else { return Ok(()) };
        let ids = self.rows[at].input_ids;
        let Some(token) = ids.iter().position(|id| !(0..vocab_size).contains(id)) else { return Ok(()) };
        let row = usize::try_from(self.kept_rows[at]).unwrap_or(at);
        Err(CollateError::NotInVocabulary { row, token, id: ids[token], vocab_size })
    }
}
