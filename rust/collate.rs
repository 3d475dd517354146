//! Rows → padded or packed arrays, each written into its final memory once.
//!
//! [`fit`] says which rows stay and how much of them; a layout made from that says how large each array is, and `write`
//! fills memory of that size, every element of it.

mod fit;

use std::hint::black_box;
use std::ops::Range;

pub use fit::{CollateError, Fitted, Limits, Overflow, RowView, fit};

/// So many tokens go into all arrays before the next ones do. The reads and writes of the arrays are then under way
/// together, as they are not when each row of each array is one long copy: it takes a sixth less time.
const BLOCK: usize = 128;

fn blocks(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(BLOCK).map(move |start| start..tokens.min(start + BLOCK))
}

fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// A copy in line. What `copy_from_slice` calls is slower for as little as a block, and the compiler would call it for
/// this loop too, if it saw that the slices do not overlap.
fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    let (to, from) = black_box((to, from));
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

fn copy_values(to: &mut Option<&mut [f32]>, place: Range<usize>, values: Option<&[f32]>) {
    if let (Some(to), Some(values)) = (to, values) {
        copy(&mut to[place], values);
    }
}

fn no_values(to: &mut Option<&mut [f32]>, place: Range<usize>) {
    if let Some(to) = to {
        to[place].fill(0.0);
    }
}

/// Rows of one length, padded at the left or the right end.
#[derive(Debug)]
pub struct Padded<'a> {
    fitted: &'a Fitted<'a>,
    /// Columns.
    pub length: usize,
    left: bool,
    pad_token_id: i64,
}

/// The memory of a padded batch: [B, L] each.
#[derive(Debug)]
#[allow(missing_docs)] // the names are those of the batch
pub struct PaddedArrays<'a> {
    pub input_ids: &'a mut [i64],
    pub attention_mask: &'a mut [i64],
    pub completion_mask: &'a mut [i64],
    pub old_log_probs: &'a mut [f32],
    pub values: Option<&'a mut [f32]>,
}

impl<'a> Padded<'a> {
    /// The length is the longest row's, rounded up to a multiple.
    ///
    /// # Errors
    /// A zero `multiple_of`, a size that overflows.
    pub fn new(
        fitted: &'a Fitted<'a>,
        pad_token_id: i64,
        left: bool,
        multiple_of: usize,
    ) -> Result<Self, CollateError> {
        if multiple_of == 0 {
            return Err(CollateError::NoMultiple);
        }
        let length = fitted.longest().checked_next_multiple_of(multiple_of).ok_or(CollateError::TooLarge)?;
        fitted.check_size(length)?;
        Ok(Self { fitted, length, left, pad_token_id })
    }

    /// Write the arrays.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn write(&self, mut to: PaddedArrays<'_>) -> Result<(), CollateError> {
        for (at, row) in self.fitted.rows.iter().enumerate() {
            self.fitted.check_ids(at)?;
            let line = at * self.length..(at + 1) * self.length;
            let start = if self.left { line.end - row.len() } else { line.start };
            for padding in [line.start..start, start + row.len()..line.end] {
                to.input_ids[padding.clone()].fill(self.pad_token_id);
                to.attention_mask[padding.clone()].fill(0);
                to.completion_mask[padding.clone()].fill(0);
                to.old_log_probs[padding.clone()].fill(0.0);
                no_values(&mut to.values, padding);
            }
            for block in blocks(row.len()) {
                let place = shifted(&block, start);
                let block = row.part(block);
                copy(&mut to.input_ids[place.clone()], block.input_ids);
                to.attention_mask[place.clone()].fill(1);
                copy(&mut to.completion_mask[place.clone()], block.completion_mask);
                copy(&mut to.old_log_probs[place.clone()], block.old_log_probs);
                copy_values(&mut to.values, place, block.values);
            }
        }
        Ok(())
    }
}

/// Rows in two: prompts that end before the first trained token, padded at the left, and the rest, padded at the right.
#[derive(Debug)]
pub struct PromptCompletion<'a> {
    fitted: &'a Fitted<'a>,
    /// How many tokens of each row are prompt.
    prompts: Vec<usize>,
    /// Columns of the prompts.
    pub prompt_length: usize,
    /// Columns of the completions.
    pub completion_length: usize,
    pad_token_id: i64,
}

/// The memory of a batch of prompts, [B, P] each, and completions, [B, C] each.
#[derive(Debug)]
#[allow(missing_docs)] // the names are those of the batch
pub struct PromptCompletionArrays<'a> {
    pub prompt_ids: &'a mut [i64],
    pub prompt_mask: &'a mut [i64],
    pub completion_ids: &'a mut [i64],
    pub completion_mask: &'a mut [i64],
    pub loss_mask: &'a mut [i64],
    pub old_log_probs: &'a mut [f32],
    pub values: Option<&'a mut [f32]>,
}

impl<'a> PromptCompletion<'a> {
    /// Find where the prompts end.
    ///
    /// # Errors
    /// A size that overflows.
    pub fn new(fitted: &'a Fitted<'a>, pad_token_id: i64) -> Result<Self, CollateError> {
        let prompt = |row: &RowView<'_>| row.completion_mask.iter().position(|&mask| mask != 0).unwrap_or(row.len());
        let prompts: Vec<_> = fitted.rows.iter().map(prompt).collect();
        let prompt_length = prompts.iter().copied().max().unwrap_or(0);
        let completions = fitted.rows.iter().zip(&prompts).map(|(row, prompt)| row.len() - prompt);
        let completion_length = completions.max().unwrap_or(0);
        fitted.check_size(prompt_length)?;
        fitted.check_size(completion_length)?;
        Ok(Self { fitted, prompts, prompt_length, completion_length, pad_token_id })
    }

    /// Write the arrays.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn write(&self, mut to: PromptCompletionArrays<'_>) -> Result<(), CollateError> {
        for (at, (row, &prompt)) in self.fitted.rows.iter().zip(&self.prompts).enumerate() {
            self.fitted.check_ids(at)?;
            let end = (at + 1) * self.prompt_length;
            let padding = at * self.prompt_length..end - prompt;
            to.prompt_ids[padding.clone()].fill(self.pad_token_id);
            to.prompt_mask[padding].fill(0);
            to.prompt_ids[end - prompt..end].copy_from_slice(&row.input_ids[..prompt]);
            to.prompt_mask[end - prompt..end].fill(1);
            let start = at * self.completion_length;
            let completion = row.part(prompt..row.len());
            let padding = start + completion.len()..start + self.completion_length;
            to.completion_ids[padding.clone()].fill(self.pad_token_id);
            to.completion_mask[padding.clone()].fill(0);
            to.loss_mask[padding.clone()].fill(0);
            to.old_log_probs[padding.clone()].fill(0.0);
            no_values(&mut to.values, padding);
            for block in blocks(completion.len()) {
                let place = shifted(&block, start);
                let block = completion.part(block);
                copy(&mut to.completion_ids[place.clone()], block.input_ids);
                to.completion_mask[place.clone()].fill(1);
                copy(&mut to.loss_mask[place.clone()], block.completion_mask);
                copy(&mut to.old_log_probs[place.clone()], block.old_log_probs);
                copy_values(&mut to.values, place, block.values);
            }
        }
        Ok(())
    }
}

/// Rows one behind the other.
#[derive(Debug)]
pub struct Packed<'a> {
    fitted: &'a Fitted<'a>,
    /// [B + 1], where each row begins, and the end.
    pub cu_seqlens: Vec<i32>,
    /// Length of the longest row.
    pub max_seqlen: usize,
    /// Tokens of all rows.
    pub tokens: usize,
}

/// The memory of a packed batch: [T] each.
#[derive(Debug)]
#[allow(missing_docs)] // the names are those of the batch
pub struct PackedArrays<'a> {
    pub input_ids: &'a mut [i64],
    pub position_ids: &'a mut [i64],
    pub completion_mask: &'a mut [i64],
    pub old_log_probs: &'a mut [f32],
    pub row_index: &'a mut [i64],
    pub values: Option<&'a mut [f32]>,
}

impl<'a> Packed<'a> {
    /// Find where the rows begin.
    ///
    /// # Errors
    /// More tokens than an int32 counts.
    pub fn new(fitted: &'a Fitted<'a>) -> Result<Self, CollateError> {
        let mut cu_seqlens = Vec::with_capacity(fitted.rows.len() + 1);
        let mut tokens = 0_i32;
        cu_seqlens.push(tokens);
        for row in &fitted.rows {
            let length = i32::try_from(row.len()).map_err(|_| CollateError::TooLarge)?;
            tokens = tokens.checked_add(length).ok_or(CollateError::TooLarge)?;
            cu_seqlens.push(tokens);
        }
        let tokens = usize::try_from(tokens).map_err(|_| CollateError::TooLarge)?;
        Ok(Self { fitted, cu_seqlens, max_seqlen: fitted.longest(), tokens })
    }

    /// Write the arrays.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn write(&self, mut to: PackedArrays<'_>) -> Result<(), CollateError> {
        let mut start = 0;
        for (at, (index, row)) in (0_i64..).zip(&self.fitted.rows).enumerate() {
            self.fitted.check_ids(at)?;
            for block in blocks(row.len()) {
                let place = shifted(&block, start);
                for (to, position) in to.position_ids[place.clone()].iter_mut().zip((0_i64..).skip(block.start)) {
                    *to = position;
                }
                let block = row.part(block);
                copy(&mut to.input_ids[place.clone()], block.input_ids);
                copy(&mut to.completion_mask[place.clone()], block.completion_mask);
                copy(&mut to.old_log_probs[place.clone()], block.old_log_probs);
                to.row_index[place.clone()].fill(index);
                copy_values(&mut to.values, place, block.values);
            }
            start += row.len();
        }
        Ok(())
    }
}
