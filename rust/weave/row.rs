//! The row that is still growing.

use std::ops::Range;

use super::Row;
use crate::scan::{IdList, Item, LogProbList};

/// The generated ids of one turn in the open row; their logprobs begin at `values` in the row's.
#[derive(Clone, Debug)]
struct Span {
    turn: usize,
    tokens: Range<usize>,
    values: usize,
}

/// A row that is still growing.
#[derive(Debug, Default)]
pub(super) struct OpenRow {
    /// How many rows were begun before it.
    pub(super) begun: usize,
    /// Its turns, by their numbers.
    pub(super) turns: Vec<usize>,
    pub(super) ids: Vec<i64>,
    pub(super) text: Vec<u8>,
    /// Some places where both are known: so many ids take so much text.
    marks: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// Logprobs of the spans' tokens, one span behind the other.
    values: Vec<f32>,
    /// Tokens of the spans that are not trained.
    unusable: Vec<usize>,
    pub(super) last_response_start: usize,
}

impl OpenRow {
    /// A new row that begins like this one, all of it context.
    pub(super) fn branch(&self, begun: usize, tokens: usize, text: usize) -> Self {
        Self {
            begun,
            ids: self.ids[..tokens].to_vec(),
            text: self.text[..text].to_vec(),
            marks: self.marks[..self.marks_of(tokens)].to_vec(),
            ..Self::default()
        }
    }

    /// How many marks so many ids have.
    fn marks_of(&self, tokens: usize) -> usize {
        self.marks.partition_point(|&(marked, _)| marked <= tokens)
    }

    /// How much text so many ids take.
    pub(super) fn text_of(&self, tokens: usize) -> usize {
        if tokens == self.ids.len() {
            return self.text.len();
        }
        let mark = self.marks[..self.marks_of(tokens)].last();
        let &(marked, text) = mark.unwrap_or(&(0, 0));
        if marked == tokens {
            return text;
        }
        // The comma behind the last of the ids; the one behind a mark comes before the first.
        let commas = tokens - marked - usize::from(marked == 0);
        memchr::memchr_iter(b',', &self.text[text..]).nth(commas).map_or(self.text.len(), |comma| text + comma)
    }

    pub(super) fn append(&mut self, ids: &[i64], text: &[u8], separator: &[u8]) {
        if ids.is_empty() {
            return;
        }
        if !self.ids.is_empty() {
            self.text.extend_from_slice(if separator.is_empty() { b"," } else { separator });
        }
        self.ids.extend_from_slice(ids);
        self.text.extend_from_slice(text);
        self.marks.push((self.ids.len(), self.text.len()));
    }

    /// Append what is new of a list; a row's first list is moved.
    pub(super) fn append_list(&mut self, list: &mut IdList, separator: &[u8]) {
        if self.ids.is_empty() && !list.ids.is_empty() {
            std::mem::swap(&mut self.ids, &mut list.ids);
            std::mem::swap(&mut self.text, &mut list.text);
            self.marks.push((self.ids.len(), self.text.len()));
        } else {
            self.append(&list.ids, &list.text, separator);
        }
    }

    /// Append a generation. Gives where it stands.
    pub(super) fn respond(&mut self, item: &mut Item, separator: &[u8], turn: usize) -> Range<usize> {
        let start = self.ids.len();
        self.last_response_start = start;
        self.append_list(&mut item.generation, separator);
        let span = start..self.ids.len();
        self.spans.push(Span { turn, tokens: span.clone(), values: self.values.len() });
        if self.values.is_empty() {
            std::mem::swap(&mut self.values, &mut item.log_probs.values);
        } else {
            self.values.extend_from_slice(&item.log_probs.values);
        }
        self.unusable.extend(item.log_probs.unusable.iter().map(|at| start + at));
        self.turns.push(turn);
        span
    }

    /// Whether its last turn generated what the item tells.
    pub(super) fn ends_with(&self, generation: &[i64], log_probs: &LogProbList) -> bool {
        let Some(last) = self.spans.last() else { return false };
        let start = last.tokens.start;
        let values = &self.values[last.values..];
        let unusable = &self.unusable[self.unusable.partition_point(|&at| at < start)..];
        start == self.last_response_start
            && generation == &self.ids[start..]
            && log_probs.values.iter().map(|value| value.to_bits()).eq(values.iter().map(|value| value.to_bits()))
            && log_probs.unusable.iter().map(|at| start + at).eq(unusable.iter().copied())
    }

    /// Keep `tokens` ids. Gives how many trained tokens that removed.
    pub(super) fn cut(&mut self, tokens: usize, text: usize) -> usize {
        self.ids.truncate(tokens);
        self.text.truncate(text);
        self.marks.truncate(self.marks_of(tokens));
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

    /// Begin another row in the place of this one, of which it keeps `tokens` ids, all of them context. Gives this one,
    /// complete.
    pub(super) fn turn_over(&mut self, begun: usize, tokens: usize, text: usize) -> Self {
        let complete = Self {
            begun: self.begun,
            turns: std::mem::take(&mut self.turns),
            ids: if tokens == 0 { std::mem::take(&mut self.ids) } else { self.ids.clone() },
            spans: std::mem::take(&mut self.spans),
            values: std::mem::take(&mut self.values),
            unusable: std::mem::take(&mut self.unusable),
            ..Self::default()
        };
        self.begun = begun;
        self.cut(tokens, text);
        complete
    }

    pub(super) fn is_trained(&self) -> bool {
        self.values.len() > self.unusable.len()
    }

    pub(super) fn row(&self, mut input_ids: Vec<i64>) -> Row {
        input_ids.shrink_to_fit(); // it grew by doubling, and is kept as long as the row
        let mut completion_mask = vec![0; input_ids.len()];
        let mut old_log_probs = vec![0.0; input_ids.len()];
        for Span { tokens, values, .. } in &self.spans {
            completion_mask[tokens.clone()].fill(1);
            old_log_probs[tokens.clone()].copy_from_slice(&self.values[*values..*values + tokens.len()]);
        }
        for &at in &self.unusable {
            completion_mask[at] = 0;
        }
        let trained = self.spans.iter().filter(|span| completion_mask[span.tokens.clone()].contains(&1));
        let turn_spans = trained.map(|span| [span.turn, span.tokens.start, span.tokens.end].map(as_i64)).collect();
        Row { input_ids, completion_mask, old_log_probs, turn_spans }
    }
}

fn as_i64(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
