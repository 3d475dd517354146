//! One item of `response.output` while it is read: its token arrays, staged until its closing brace.

use std::ops::Range;

use memchr::{memchr, memrchr};

use super::{Held, Weave, number};
use crate::error::MAX_KEPT_ID;

/// What stands where a list is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// No such key, or null.
    #[default]
    Absent,
    /// A list.
    List,
    /// Something else, in words.
    Other(&'static str),
}

/// An element that spoils its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadElement {
    /// Its index in the list.
    pub index: u64,
    /// Its text, cut to some characters.
    pub text: String,
}

/// The characters of a bad element that are kept.
const BAD_ELEMENT_CHARS: usize = 40;

impl BadElement {
    fn new(index: u64, text: &[u8]) -> Self {
        let text: String = String::from_utf8_lossy(text).chars().take(BAD_ELEMENT_CHARS).collect();
        Self { index, text }
    }
}

/// How the next element of a prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// As text, against the held text.
    Text,
    /// As a number, against the held id.
    Number,
    /// It is new.
    #[default]
    New,
}

/// A list of token ids: how much of the held row it repeats, and what is new.
#[derive(Debug, Default)]
pub struct IdList {
    /// What stands there.
    pub shape: Shape,
    /// Elements, bad ones included.
    pub len: u64,
    /// The first element that is no id.
    pub bad: Option<BadElement>,
    /// Held ids that the list begins with.
    pub matched: usize,
    /// Length of their text in the held text.
    pub matched_text: usize,
    /// The ids after those.
    pub ids: Vec<i64>,
    /// Their text, as sent.
    pub text: Vec<u8>,
    reading: Reading,
    /// Where the text of the held id number `matched` begins, while there are held ids left.
    held_at: usize,
    capturing: bool,
}

impl IdList {
    /// Forget what was staged.
    pub(super) fn clear(&mut self) {
        self.shape = Shape::Absent;
        self.len = 0;
        self.bad = None;
        self.matched = 0;
        self.matched_text = 0;
        self.ids.clear();
        self.text.clear();
        self.reading = Reading::New;
        self.held_at = 0;
        self.capturing = false;
    }

    /// A list begins. A prompt is compared with what is held.
    pub(super) fn open(&mut self, held: Option<Held<'_>>) {
        self.shape = Shape::List;
        if held.is_some_and(|held| !held.ids.is_empty()) {
            self.reading = Reading::Text;
        }
    }

    /// Whether the next element may be compared as text, and from where in the held text.
    pub(super) fn text_from(&self) -> Option<usize> {
        (self.reading == Reading::Text && self.bad.is_none()).then_some(self.held_at)
    }

    /// Whether the next elements are new, and sound so far.
    pub(super) fn is_new(&self) -> bool {
        self.reading == Reading::New && self.bad.is_none()
    }

    /// The next bytes of the text are worth keeping.
    pub(super) fn is_capturing(&self) -> bool {
        self.capturing
    }

    pub(super) fn start_capturing(&mut self) {
        self.capturing = self.bad.is_none();
    }

    pub(super) fn stop_capturing(&mut self) {
        self.capturing = false;
    }

    /// The held text up to `at` is what was sent, then something else came. Gives the part of it that belongs to the
    /// element in which the two part, to be read once more as a number.
    pub(super) fn part_from_held(&mut self, at: usize, held: Held<'_>) -> Range<usize> {
        let run = &held.text[self.held_at..at];
        let start = match memrchr(b',', run) {
            None => self.held_at,
            Some(comma) => {
                self.matched = if at == held.text.len() {
                    held.ids.len() - 1
                } else {
                    self.matched + memchr::memchr_iter(b',', &run[..=comma]).count()
                };
                self.matched_text = self.held_at + comma;
                self.held_at + comma + 1
            }
        };
        self.reading = Reading::Number;
        self.held_at = start;
        start..at
    }

    /// Index of the element that is being compared, the held text up to `at` being what was sent.
    pub(super) fn index_in_held(&self, at: usize, held: Held<'_>) -> usize {
        self.matched + memchr::memchr_iter(b',', &held.text[self.held_at..at]).count()
    }

    /// One element is complete; `text` is what was sent.
    pub(super) fn element<W: Weave>(&mut self, index: u64, text: &[u8], is_scalar: bool, weave: &mut W) {
        self.len = index + 1;
        if self.bad.is_some() {
            return;
        }
        let Some(id) = number::id_of(text).filter(|_| is_scalar) else {
            self.bad = Some(BadElement::new(index, if is_scalar { text } else { b"a list or an object" }));
            self.capturing = false;
            return;
        };
        if self.reading == Reading::New {
            self.push(id, text);
        } else if weave.held().ids.get(self.matched) == Some(&id) {
            self.advance(weave.held());
        } else if let Some(matched_text) = weave.follow(self.matched, id) {
            self.stand_behind(matched_text, weave.held());
            self.advance(weave.held());
        } else {
            self.reading = Reading::New;
            self.push(id, text);
        }
    }

    /// A new id, and what was sent for it.
    fn push(&mut self, id: i64, text: &[u8]) {
        self.ids.push(id);
        if text.len() > MAX_KEPT_ID {
            self.text.extend_from_slice(id.to_string().as_bytes());
        } else {
            self.text.extend_from_slice(text);
        }
        self.start_capturing();
    }

    /// The held id number `matched` was sent, perhaps written otherwise: go on behind it.
    fn advance(&mut self, held: Held<'_>) {
        self.matched += 1;
        if let Some(comma) = memchr(b',', &held.text[self.held_at..]) {
            self.stand_behind(self.held_at + comma, held);
            self.reading = Reading::Text;
        } else {
            self.matched_text = held.text.len();
            self.held_at = held.text.len();
            // Another row may go on where this one ends.
            self.reading = if held.is_alone { Reading::New } else { Reading::Number };
        }
    }

    /// So much of the held text is the matched ids': find the next one.
    fn stand_behind(&mut self, matched_text: usize, held: Held<'_>) {
        self.matched_text = matched_text;
        self.held_at = matched_text;
        if self.matched_text > 0 {
            let behind =
                memchr(b',', &held.text[matched_text..]).map_or(held.text.len(), |comma| matched_text + comma + 1);
            let space = held.text[behind..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.held_at = behind + space;
        }
    }

    /// The list ends.
    pub(super) fn close(&mut self) {
        self.capturing = false;
        let kept = self.text.iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(0, |at| at + 1);
        self.text.truncate(kept);
    }
}

/// A list of logprobs.
#[derive(Debug, Default)]
pub struct LogProbList {
    /// What stands there.
    pub shape: Shape,
    /// Elements, bad ones included.
    pub len: u64,
    /// The first element that is a list or an object.
    pub bad: Option<BadElement>,
    /// The values; 0.0 where unusable.
    pub values: Vec<f32>,
    /// Indices of the unusable ones.
    pub unusable: Vec<usize>,
    /// Values above zero.
    pub positive: u64,
}

impl LogProbList {
    pub(super) fn clear(&mut self) {
        self.shape = Shape::Absent;
        self.len = 0;
        self.bad = None;
        self.values.clear();
        self.unusable.clear();
        self.positive = 0;
    }

    pub(super) fn open(&mut self) {
        self.shape = Shape::List;
    }

    /// Values were pushed, from the index `from` on.
    pub(super) fn count_positive_from(&mut self, from: usize) {
        self.positive += self.values[from..].iter().map(|value| u64::from(*value > 0.0)).sum::<u64>();
    }

    /// One element is complete; `number` is its text if it is a finite JSON number.
    pub(super) fn element(&mut self, index: u64, number: Option<&[u8]>, is_scalar: bool) {
        self.len = index + 1;
        if !is_scalar {
            self.bad.get_or_insert_with(|| BadElement::new(index, b"a list or an object"));
        }
        if let Some(value) = number.and_then(number::log_prob_of) {
            self.values.push(value);
            self.count_positive_from(self.values.len() - 1);
        } else {
            self.unusable.push(self.values.len());
            self.values.push(0.0);
        }
    }
}

/// One item, staged.
#[derive(Debug, Default)]
pub struct Item {
    /// Its index in `response.output`.
    pub index: u64,
    /// `prompt_token_ids`.
    pub prompt: IdList,
    /// `generation_token_ids`.
    pub generation: IdList,
    /// `generation_log_probs`.
    pub log_probs: LogProbList,
    /// Size of the value of `routed_experts` as sent; 0 for null.
    pub routed_experts_bytes: u64,
}

impl Item {
    pub(super) fn begin(&mut self, index: u64) {
        self.index = index;
        self.prompt.clear();
        self.generation.clear();
        self.log_probs.clear();
        self.routed_experts_bytes = 0;
    }
}
