//! Turns → rows, as TRL's reconciler makes them: clean, realign or fork.

mod bundle;
mod row;

use std::ops::Range;

use bundle::{Bundle, judge};
use row::{OpenRow, Span};

use crate::scan::{Held, Item, Weave};

/// How a turn was joined to what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The prompt repeats all that is held.
    Clean,
    /// It leaves the last response shortly before its end: what it says instead is context.
    Realign,
    /// It leaves earlier, or by more: a new row.
    Fork,
}

impl Transition {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Realign => "realign",
            Self::Fork => "fork",
        }
    }
}

/// One model call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its item in `response.output`.
    pub item_index: u64,
    /// Ids of its prompt.
    pub prompt_tokens: usize,
    /// Ids generated.
    pub output_tokens: usize,
    /// None for the first.
    pub transition: Option<Transition>,
    /// Held ids that the prompt repeats.
    pub matched_tokens: usize,
    /// Held ids that it doesn't.
    pub drift_tokens: usize,
    /// The row it is in; None when nothing of that row is trained.
    pub row: Option<usize>,
    /// Where its generated ids stand in the row, as far as they are still there.
    pub span: Range<usize>,
    /// Generated ids that are in no row: a realign removed them, or nothing of their row is trained.
    pub lost: Vec<i64>,
    /// Size of its `routed_experts` as sent.
    pub routed_experts_bytes: u64,
}

/// One training row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// All ids, the prompt's included.
    pub input_ids: Vec<i64>,
    /// 1 where the token is trained.
    pub completion_mask: Vec<i64>,
    /// The sampled logprob where the token is trained, else 0.0.
    pub old_log_probs: Vec<f32>,
}

/// One thing wrong with one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// The item.
    pub item_index: u64,
    /// The field, if it is one field's.
    pub field: Option<&'static str>,
    /// What kind of thing.
    pub code: &'static str,
    /// In words.
    pub detail: String,
}

/// Counts over the transitions of one rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Transitions of each kind.
    pub clean: u64,
    /// See [`Transition::Realign`].
    pub realign: u64,
    /// See [`Transition::Fork`].
    pub fork: u64,
    /// Held tokens not repeated, forks included.
    pub drift_tokens: u64,
    /// The most in one transition.
    pub drift_max: u64,
    /// Trained tokens that a realign removed.
    pub discarded_tokens: u64,
    /// Generated tokens without a usable logprob.
    pub unusable_tokens: u64,
    /// Logprobs above zero.
    pub positive_logprobs: u64,
}

/// What was woven from one body.
#[derive(Debug, Default)]
pub struct Woven {
    /// The rows with something to train, in order.
    pub rows: Vec<Row>,
    /// The turns, in order.
    pub turns: Vec<Turn>,
    /// The defects, in order.
    pub defects: Vec<Defect>,
    /// Counts.
    pub drift: Drift,
}

/// Weaves the items of one body.
#[derive(Debug)]
pub struct Loom {
    fork_threshold_tokens: i64,
    open: OpenRow,
    /// What stands between two ids of this body, once a list has shown it.
    separator: Vec<u8>,
    /// Rows begun before the open one, and of those the ones with something to train.
    closed: usize,
    woven: Woven,
    /// For each row begun, its index among those with something to train.
    row_index: Vec<Option<usize>>,
}

impl Loom {
    /// A drift of `fork_threshold_tokens`, or more, forks.
    #[must_use]
    pub fn new(fork_threshold_tokens: i64) -> Self {
        Self {
            fork_threshold_tokens,
            open: OpenRow::default(),
            separator: Vec::new(),
            closed: 0,
            woven: Woven::default(),
            row_index: Vec::new(),
        }
    }

    /// The body is complete.
    #[must_use]
    pub fn finish(mut self) -> Woven {
        let ids = std::mem::take(&mut self.open.ids);
        self.close_row(ids);
        for turn in &mut self.woven.turns {
            turn.row = turn.row.and_then(|begun| self.row_index[begun]);
        }
        self.woven
    }

    fn close_row(&mut self, ids: Vec<i64>) {
        let is_trained = self.open.is_trained();
        self.row_index.push(is_trained.then_some(self.woven.rows.len()));
        if is_trained {
            self.woven.rows.push(self.open.row(ids));
            return;
        }
        for turn in self.woven.turns.iter_mut().rev().take_while(|turn| turn.row == Some(self.closed)) {
            turn.lost.splice(0..0, ids[turn.span.clone()].iter().copied());
        }
    }

    fn turn(&mut self, item: &mut Item) {
        let first = self.woven.turns.is_empty();
        let matched = item.prompt.matched;
        let drift = self.open.ids.len() - matched;
        let prompt_tokens = matched + item.prompt.ids.len();
        let transition = (!first).then(|| self.transition(matched, drift));
        match transition {
            None | Some(Transition::Clean) => {}
            Some(Transition::Realign) => {
                if let Some(last) = self.woven.turns.last_mut() {
                    last.lost = self.open.ids[matched..last.span.end].to_vec();
                    last.span.end = matched;
                }
                let removed = self.open.cut(matched, item.prompt.matched_text);
                self.woven.drift.discarded_tokens += removed as u64;
            }
            Some(Transition::Fork) => self.fork(matched, item.prompt.matched_text),
        }
        if let Some(transition) = transition {
            self.count(transition, drift as u64);
        }
        self.open.append(&mut item.prompt, &self.separator);
        let start = self.open.ids.len();
        let output_tokens = item.generation.ids.len();
        let span = start..start + output_tokens;
        self.open.last_response_start = start;
        self.open.append(&mut item.generation, &self.separator);
        self.open.spans.push(Span { tokens: span.clone(), values: self.open.values.len() });
        if self.open.values.is_empty() {
            std::mem::swap(&mut self.open.values, &mut item.log_probs.values);
        } else {
            self.open.values.extend_from_slice(&item.log_probs.values);
        }
        self.open.unusable.extend(item.log_probs.unusable.iter().map(|at| start + at));
        self.woven.drift.unusable_tokens += item.log_probs.unusable.len() as u64;
        self.woven.drift.positive_logprobs += item.log_probs.positive;
        self.woven.turns.push(Turn {
            item_index: item.index,
            prompt_tokens,
            output_tokens,
            transition,
            matched_tokens: matched,
            drift_tokens: if first { 0 } else { drift },
            row: Some(self.closed),
            span,
            lost: Vec::new(),
            routed_experts_bytes: item.routed_experts_bytes,
        });
    }

    fn transition(&self, matched: usize, drift: usize) -> Transition {
        if drift == 0 {
            Transition::Clean
        } else if matched >= self.open.last_response_start
            && i64::try_from(drift).is_ok_and(|drift| drift < self.fork_threshold_tokens)
        {
            Transition::Realign
        } else {
            Transition::Fork
        }
    }

    /// Close the open row; the new one keeps what the two share in its place, as context.
    fn fork(&mut self, matched: usize, matched_text: usize) {
        let ids = if matched == 0 { std::mem::take(&mut self.open.ids) } else { self.open.ids.clone() };
        self.close_row(ids);
        self.closed += 1;
        self.open.ids.truncate(matched);
        self.open.text.truncate(matched_text);
        self.open.spans.clear();
        self.open.values.clear();
        self.open.unusable.clear();
    }

    fn count(&mut self, transition: Transition, drift: u64) {
        let counts = &mut self.woven.drift;
        match transition {
            Transition::Clean => counts.clean += 1,
            Transition::Realign => counts.realign += 1,
            Transition::Fork => counts.fork += 1,
        }
        counts.drift_tokens += drift;
        counts.drift_max = counts.drift_max.max(drift);
    }

    /// Whether the item tells the turn before it once more.
    fn is_told_twice(&self, item: &Item) -> bool {
        let Some(last) = self.open.spans.last().filter(|_| !self.woven.turns.is_empty()) else { return false };
        let start = last.tokens.start;
        let values = &self.open.values[last.values..];
        let unusable = &self.open.unusable[self.open.unusable.partition_point(|&at| at < start)..];
        start == self.open.last_response_start
            && item.prompt.matched == start
            && item.prompt.ids.is_empty()
            && item.generation.ids == self.open.ids[start..]
            && item.log_probs.values.iter().map(|value| value.to_bits()).eq(values.iter().map(|value| value.to_bits()))
            && item.log_probs.unusable.iter().map(|at| start + at).eq(unusable.iter().copied())
    }

    fn learn_separator(&mut self, text: &[u8]) {
        let Some(comma) = memchr::memchr(b',', text) else { return };
        let space = |byte: &&u8| byte.is_ascii_whitespace();
        let before = text[..comma].iter().rev().take_while(space).count();
        let after = text[comma + 1..].iter().take_while(space).count();
        self.separator.extend_from_slice(&text[comma - before..=comma + after]);
    }
}

impl Weave for Loom {
    fn held(&self) -> Held<'_> {
        Held { ids: &self.open.ids, text: &self.open.text }
    }

    fn item(&mut self, item: &mut Item) {
        match judge(item) {
            Bundle::NoTurn => {}
            Bundle::Defective(field, code, detail) => {
                self.woven.defects.push(Defect { item_index: item.index, field: Some(field), code, detail });
            }
            Bundle::Turn if self.is_told_twice(item) => {
                let before = self.woven.turns.last().map_or(0, |turn| turn.item_index);
                let detail = format!("the same call as item {before}");
                self.woven.defects.push(Defect { item_index: item.index, field: None, code: "duplicate_turn", detail });
            }
            Bundle::Turn => {
                if self.separator.is_empty() {
                    self.learn_separator(if item.prompt.ids.len() > 1 {
                        &item.prompt.text
                    } else {
                        &item.generation.text
                    });
                }
                self.turn(item);
            }
        }
    }

    fn restart(&mut self) {
        *self = Self::new(self.fork_threshold_tokens);
    }
}
