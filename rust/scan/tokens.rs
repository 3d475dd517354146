//! The fast paths of the machine, inside token arrays: held text, plain ids, plain logprobs.
//!
//! Whatever is out of the ordinary is left to the machine, one element at a time.

use memchr::memchr;

use super::machine::{Fault, Scanner};
use super::state::{Field, State};
use super::{Weave, number};
use crate::error::{ErrorKind, MAX_LIST_TOKENS};

/// Blocks in which text is compared: large enough for `memcmp`, small enough for what follows a difference.
const BLOCK: usize = 4096;
/// Bytes of text that one element takes at least, in what is reserved for a list.
const ID_BYTES: usize = 5;
const LOG_PROB_BYTES: usize = 14;

impl Scanner {
    /// An element of a token array begins at `at`: where the machine goes on, if a fast path took anything.
    pub(super) fn tokens(&mut self, field: Field, bytes: &[u8], at: usize) -> Result<Option<usize>, Fault> {
        if field != Field::RoutedExperts && self.stack.last().is_some_and(|level| level.index >= MAX_LIST_TOKENS) {
            return Err((ErrorKind::ListTooLong, at));
        }
        let end = match field {
            Field::Prompt | Field::Generation => {
                let list = if field == Field::Prompt { &mut self.item.prompt } else { &mut self.item.generation };
                if let Some(from) = list.text_from() {
                    self.state = State::HeldText(from);
                    return Ok(Some(at));
                }
                if !list.is_new() {
                    return Ok(None);
                }
                if !list.is_capturing() {
                    list.start_capturing();
                    self.text_from = Some((field, at));
                }
                let end = self.plain_ids(field, bytes, at);
                if end == at {
                    self.stop_keeping_text(field, bytes, at);
                }
                end
            }
            Field::LogProbs => self.plain_log_probs(bytes, at),
            Field::RoutedExperts => at,
        };
        Ok((end > at).then_some(end))
    }

    /// An element begins that is out of the ordinary: its text is kept when all of it is known.
    fn stop_keeping_text(&mut self, field: Field, bytes: &[u8], at: usize) {
        self.keep_text(bytes, at);
        self.text_from = None;
        let list = if field == Field::Prompt { &mut self.item.prompt } else { &mut self.item.generation };
        list.stop_capturing();
    }

    /// Go on comparing the prompt at hand with the held text, from `from` there.
    pub(super) fn held_text<W: Weave>(
        &mut self,
        bytes: &[u8],
        at: usize,
        from: usize,
        weave: &mut W,
    ) -> Result<usize, Fault> {
        let held = weave.held();
        let same = common_prefix(&held.text[from..], &bytes[at..]);
        let (from, end) = (from + same, at + same);
        self.count_lines(bytes, at, end);
        if end == bytes.len() {
            self.state = State::HeldText(from);
            return Ok(end);
        }
        let part = self.item.prompt.part_from_held(from, held);
        let part = held.text[part].to_vec();
        let matched = self.item.prompt.matched as u64;
        if let Some(level) = self.stack.last_mut() {
            level.index = matched;
        }
        self.state = if matched == 0 { State::ValueOrEnd } else { State::Value };
        self.replay(&part, weave)?;
        Ok(end)
    }

    fn plain_ids(&mut self, field: Field, bytes: &[u8], at: usize) -> usize {
        let Some(level) = self.stack.last_mut() else { return at };
        let list = if field == Field::Prompt { &mut self.item.prompt } else { &mut self.item.generation };
        reserve(&mut list.ids, &bytes[at..], ID_BYTES);
        let room = MAX_LIST_TOKENS - level.index;
        let (elements, end) = read(bytes, at, room, number::short_id, &mut list.ids);
        if elements > 0 {
            list.len = level.index + elements;
            level.index = list.len;
            self.state = State::Value;
        }
        end
    }

    fn plain_log_probs(&mut self, bytes: &[u8], at: usize) -> usize {
        let Some(level) = self.stack.last_mut() else { return at };
        let list = &mut self.item.log_probs;
        reserve(&mut list.values, &bytes[at..], LOG_PROB_BYTES);
        let known = list.values.len();
        let room = MAX_LIST_TOKENS - level.index;
        let (elements, end) = read(bytes, at, room, number::short_log_prob, &mut list.values);
        if elements > 0 {
            list.count_positive_from(known);
            list.len = level.index + elements;
            level.index = list.len;
            self.state = State::Value;
        }
        end
    }
}

/// Elements that are read before their list grows by them.
const BATCH: usize = 64;

/// Read elements of a list, at most `room`, as long as each is in the shape that `short` knows. Gives how many there
/// were, and what is behind them and their commas.
#[inline]
fn read<T: Copy + Default>(
    bytes: &[u8],
    at: usize,
    room: u64,
    short: impl Fn(&[u8]) -> Option<(T, usize)>,
    list: &mut Vec<T>,
) -> (u64, usize) {
    let mut rest = &bytes[at..];
    let mut batch = [T::default(); BATCH];
    let mut left = room;
    loop {
        let limit = usize::try_from(left).unwrap_or(BATCH).min(BATCH);
        let mut count = 0;
        let mut behind_space = false;
        while count < limit {
            if let Some((element, length)) = short(rest) {
                batch[count] = element;
                count += 1;
                rest = &rest[length + 1..];
                behind_space = false;
            } else if let [b' ', behind @ ..] = rest
                && !behind_space
            {
                rest = behind;
                behind_space = true;
            } else {
                break;
            }
        }
        list.extend_from_slice(&batch[..count]);
        left -= count as u64;
        if count < BATCH {
            return (room - left, bytes.len() - rest.len());
        }
    }
}

/// Room for the rest of a list, as far as `bytes` tell, before its vector grows step by step.
fn reserve<T>(list: &mut Vec<T>, bytes: &[u8], element_bytes: usize) {
    if list.len() == list.capacity() {
        list.reserve(memchr(b']', bytes).unwrap_or(bytes.len()) / element_bytes + 1);
    }
}

/// How many bytes at the start are the same.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let length = a.len().min(b.len());
    let (a, b) = (&a[..length], &b[..length]);
    let mut at = 0;
    while length - at >= BLOCK && a[at..at + BLOCK] == b[at..at + BLOCK] {
        at += BLOCK;
    }
    while let (Some(x), Some(y)) = (a[at..].first_chunk::<8>(), b[at..].first_chunk::<8>()) {
        let difference = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if difference != 0 {
            return at + (difference.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}
