//! The row that is still growing.

use std::ops::Range;

use super::Row;
use crate::scan::IdList;

/// The generated ids of one turn in the open row; their logprobs begin at `values` in the row's.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) tokens: Range<usize>,
    pub(super) values: usize,
}

/// The row that is still growing.
#[derive(Debug, Default)]
pub(super) struct OpenRow {
    pub(super) ids: Vec<i64>,
    pub(super) text: Vec<u8>,
    pub(super) spans: Vec<Span>,
    /// Logprobs of the spans' tokens, one span behind the other.
    pub(super) values: Vec<f32>,
    /// Tokens of the spans that are not trained.
    pub(super) unusable: Vec<usize>,
    pub(super) last_response_start: usize,
}

impl OpenRow {
    pub(super) fn append(&mut self, list: &mut IdList, separator: &[u8]) {
        if list.ids.is_empty() {
            return;
        }
        if self.ids.is_empty() {
            std::mem::swap(&mut self.ids, &mut list.ids);
            std::mem::swap(&mut self.text, &mut list.text);
            return;
        }
        self.ids.extend_from_slice(&list.ids);
        self.text.extend_from_slice(if separator.is_empty() { b"," } else { separator });
        self.text.extend_from_slice(&list.text);
    }

    /// Keep `tokens` ids. Gives how many trained tokens that removed.
    pub(super) fn cut(&mut self, tokens: usize, text: usize) -> usize {
        self.ids.truncate(tokens);
        self.text.truncate(text);
        let mut removed = 0;
        while let Some(span) = self.spans.last_mut().filter(|span| span.tokens.end > tokens) {
            let start = span.tokens.start.max(tokens);
            removed += span.tokens.end - start;
            span.tokens.end = start;
            self.values.truncate(span.values + (start - span.tokens.start));
            if span.tokens.is_empty() {
                self.spans.pop();
            }
        }
        let usable = self.unusable.partition_point(|&at| at < tokens);
        removed -= self.unusable.len() - usable;
        self.unusable.truncate(usable);
        removed
    }

    pub(super) fn is_trained(&self) -> bool {
        self.values.len() > self.unusable.len()
    }

    pub(super) fn row(&self, input_ids: Vec<i64>) -> Row {
        let mut completion_mask = vec![0; input_ids.len()];
        let mut old_log_probs = vec![0.0; input_ids.len()];
        for Span { tokens, values } in &self.spans {
            completion_mask[tokens.clone()].fill(1);
            old_log_probs[tokens.clone()].copy_from_slice(&self.values[*values..*values + tokens.len()]);
        }
        for &at in &self.unusable {
            completion_mask[at] = 0;
        }
        Row { input_ids, completion_mask, old_log_probs }
    }
}
