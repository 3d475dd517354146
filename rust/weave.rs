//! Turns → rows, as TRL's reconciler makes them: clean, realign or fork.

mod branches;
mod bundle;
mod row;

use std::ops::Range;

pub use branches::Branches;
use branches::{OpenRows, Place};
use bundle::{Bundle, judge};
use row::OpenRow;

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
    /// Of every turn that is trained in the row: its number, its first token, and one past its last.
    pub turn_spans: Vec<[i64; 3]>,
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
    branches: Branches,
    open: OpenRows,
    /// What stands between two ids of this body, once a list has shown it.
    separator: Vec<u8>,
    woven: Woven,
    /// The rows that are complete, with the number each had when it was begun.
    complete: Vec<(usize, Row)>,
}

impl Loom {
    /// A drift of `fork_threshold_tokens`, or more, forks.
    #[must_use]
    pub fn new(fork_threshold_tokens: i64, branches: Branches) -> Self {
        Self {
            fork_threshold_tokens,
            branches,
            open: OpenRows::new(branches),
            separator: Vec::new(),
            woven: Woven::default(),
            complete: Vec::new(),
        }
    }

    /// The body is complete.
    #[must_use]
    pub fn finish(mut self) -> Woven {
        while let Some(row) = self.open.pop() {
            self.close(row);
        }
        self.complete.sort_unstable_by_key(|&(begun, _)| begun);
        for turn in &mut self.woven.turns {
            turn.row = turn.row.and_then(|begun| self.complete.binary_search_by_key(&begun, |&(begun, _)| begun).ok());
        }
        self.woven.rows = self.complete.into_iter().map(|(_, row)| row).collect();
        self.woven
    }

    fn close(&mut self, mut row: OpenRow) {
        if row.is_trained() {
            let ids = std::mem::take(&mut row.ids);
            self.complete.push((row.begun, row.row(ids)));
            return;
        }
        for &turn in &row.turns {
            let turn = &mut self.woven.turns[turn];
            turn.lost.splice(0..0, row.ids[turn.span.clone()].iter().copied());
        }
    }

    fn turn(&mut self, item: &mut Item) {
        let prompt = &item.prompt;
        let prompt_tokens = prompt.matched + prompt.ids.len();
        let place = self.open.place(prompt.matched, self.fork_threshold_tokens);
        match place.transition {
            None | Some(Transition::Clean) => {}
            Some(Transition::Realign) => self.realign(&place),
            Some(Transition::Fork) => {
                if let Some(closed) = self.open.fork(prompt.matched, prompt.matched_text) {
                    self.close(closed);
                }
            }
        }
        self.count(&place);
        let number = self.woven.turns.len();
        let span = self.open.append(&place, item, &self.separator, number);
        self.woven.drift.unusable_tokens += item.log_probs.unusable.len() as u64;
        self.woven.drift.positive_logprobs += item.log_probs.positive;
        self.woven.turns.push(Turn {
            item_index: item.index,
            prompt_tokens,
            output_tokens: span.len(),
            transition: place.transition,
            matched_tokens: place.matched,
            drift_tokens: place.drift,
            row: Some(self.open.last().begun),
            span,
            lost: Vec::new(),
            routed_experts_bytes: item.routed_experts_bytes,
        });
    }

    fn realign(&mut self, place: &Place) {
        let row = self.open.row(place.row);
        if let Some(&turn) = row.turns.last() {
            let turn = &mut self.woven.turns[turn];
            turn.lost = row.ids[place.matched..turn.span.end].to_vec();
            turn.span.end = place.matched;
        }
        self.woven.drift.discarded_tokens += self.open.cut(place.row, place.matched) as u64;
    }

    fn count(&mut self, place: &Place) {
        let counts = &mut self.woven.drift;
        match place.transition {
            None => {}
            Some(Transition::Clean) => counts.clean += 1,
            Some(Transition::Realign) => counts.realign += 1,
            Some(Transition::Fork) => counts.fork += 1,
        }
        counts.drift_tokens += place.drift as u64;
        counts.drift_max = counts.drift_max.max(place.drift as u64);
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
        self.open.held()
    }

    fn prompt_begins(&mut self) {
        self.open.follow_last();
    }

    fn follow(&mut self, matched: usize, id: i64) -> Option<usize> {
        self.open.follow(matched, id)
    }

    fn item(&mut self, item: &mut Item) {
        match judge(item) {
            Bundle::NoTurn => {}
            Bundle::Defective(field, code, detail) => {
                self.woven.defects.push(Defect { item_index: item.index, field: Some(field), code, detail });
            }
            Bundle::Turn if !self.woven.turns.is_empty() && self.open.ends_with(item) => {
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
        *self = Self::new(self.fork_threshold_tokens, self.branches);
    }
}
