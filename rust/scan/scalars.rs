//! Strings, numbers and words, byte by byte, across chunks.

use super::machine::{Fault, Scanner};
use super::state::{Kind, Level, Num, Role, State};
use super::{Weave, number};
use crate::error::{ErrorKind, MAX_KEY_BYTES, MAX_NUMBER_CHARS};

impl Scanner {
    pub(super) fn string<W: Weave>(&mut self, bytes: &[u8], at: usize, weave: &mut W) -> Result<usize, Fault> {
        let plain = plain_length(&bytes[at..]);
        let end = at + plain;
        if plain > 0 {
            self.residual.close_surrogate();
            if self.in_key {
                self.keep_key(&bytes[at..end], at)?;
            } else {
                self.keep_element(&bytes[at..end]);
            }
        }
        match bytes.get(end) {
            None => return Ok(end),
            Some(b'"') => {
                self.residual.close_surrogate();
                if self.in_key {
                    self.key_ends(weave);
                } else {
                    self.keep_element(b"\"");
                    self.value_ends(end + 1, Kind::String, weave);
                }
            }
            Some(b'\\') => {
                self.key_is_escaped = true;
                self.keep_escape(b'\\', end)?;
                self.state = State::Escape;
            }
            Some(_) => return Err((ErrorKind::ControlCharacter, end)),
        }
        Ok(end + 1)
    }

    pub(super) fn escape(&mut self, bytes: &[u8], at: usize) -> Result<usize, Fault> {
        match bytes[at] {
            b'u' => self.state = State::Hex(0, 0),
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.residual.close_surrogate();
                self.state = State::String;
            }
            _ => return Err((ErrorKind::Unexpected("an escape"), at)),
        }
        self.keep_escape(bytes[at], at)?;
        Ok(at + 1)
    }

    pub(super) fn hex(&mut self, bytes: &[u8], at: usize, count: u8, unit: u16) -> Result<usize, Fault> {
        let Some(digit) = char::from(bytes[at]).to_digit(16) else {
            return Err((ErrorKind::Unexpected("four hexadecimal digits"), at));
        };
        #[allow(clippy::cast_possible_truncation)] // a digit below 16
        let unit = (unit << 4) | digit as u16;
        self.keep_escape(bytes[at], at)?;
        self.state = State::Hex(count + 1, unit);
        if count == 3 {
            self.unescape_element(unit);
            self.residual.escaped_unit(unit, bytes, at + 1);
            self.state = State::String;
        }
        Ok(at + 1)
    }

    /// Keep one byte of an escape, which is at `at`.
    fn keep_escape(&mut self, byte: u8, at: usize) -> Result<(), Fault> {
        if self.in_key {
            return self.keep_key(&[byte], at);
        }
        self.keep_element(&[byte]);
        Ok(())
    }

    /// Keep bytes of the key at hand, the first of which is at `at`.
    fn keep_key(&mut self, bytes: &[u8], at: usize) -> Result<(), Fault> {
        let kept = self.stack.last().map_or(0, |level| self.keys.len() - level.key_at);
        if kept + bytes.len() > MAX_KEY_BYTES {
            return Err((ErrorKind::KeyTooLong, at + MAX_KEY_BYTES - kept));
        }
        self.keys.extend_from_slice(bytes);
        Ok(())
    }

    /// Keep bytes of the element of a token array at hand: of a long one, as many as tell whether it is an id.
    pub(super) fn keep_element(&mut self, bytes: &[u8]) {
        if !matches!(self.stack.last(), Some(Level { role: Role::Tokens(_), .. })) {
            return;
        }
        // At the same length however the bytes are cut, since a defect tells what is kept.
        let mut rest = bytes;
        while !rest.is_empty() && self.element.len() <= MAX_NUMBER_CHARS {
            let room = MAX_NUMBER_CHARS + 1 - self.element.len();
            let (part, behind) = rest.split_at(rest.len().min(room));
            self.element.extend_from_slice(part);
            rest = behind;
            if self.element.len() > MAX_NUMBER_CHARS {
                number::shorten(&mut self.element);
            }
        }
    }

    /// An escape is complete: of an element keep the character itself, if ids are written with it. So a long element can
    /// be shortened without looking for escapes.
    fn unescape_element(&mut self, unit: u16) {
        if let Ok(byte @ (b'0'..=b'9' | b'a'..=b'z' | b'_' | b':')) = u8::try_from(unit)
            && let [before @ .., b'\\', b'u', _, _, _, _] = &self.element[..]
        {
            self.element.truncate(before.len());
            self.element.push(byte);
        }
    }

    pub(super) fn number<W: Weave>(
        &mut self,
        bytes: &[u8],
        at: usize,
        state: Num,
        weave: &mut W,
    ) -> Result<usize, Fault> {
        let mut state = state;
        let mut end = at;
        while let Some(&byte) = bytes.get(end) {
            state = match (state, byte) {
                (Num::Minus, b'0') => Num::Zero,
                (Num::Minus, b'1'..=b'9') | (Num::Int, b'0'..=b'9') => Num::Int,
                (Num::Minus, b'I') => {
                    self.state = State::Word(b"Infinity", 1, Kind::NotFinite);
                    return Ok(end + 1);
                }
                (Num::Zero | Num::Int, b'.') => Num::Point,
                (Num::Point | Num::Fraction, b'0'..=b'9') => Num::Fraction,
                (Num::Zero | Num::Int | Num::Fraction, b'e' | b'E') => Num::E,
                (Num::E, b'+' | b'-') => Num::ESign,
                (Num::E | Num::ESign | Num::Exponent, b'0'..=b'9') => Num::Exponent,
                (state, _) if state.may_end() && !(state == Num::Zero && byte.is_ascii_digit()) => {
                    self.keep_element(&bytes[at..end]);
                    self.value_ends(end, Kind::Number, weave);
                    return Ok(end);
                }
                _ => return Err((ErrorKind::Unexpected("a number"), end)),
            };
            if self.number_chars == MAX_NUMBER_CHARS {
                return Err((ErrorKind::NumberTooLong, end));
            }
            self.number_chars += 1;
            end += 1;
        }
        self.keep_element(&bytes[at..end]);
        self.state = State::Number(state);
        Ok(end)
    }

    pub(super) fn word<W: Weave>(
        &mut self,
        bytes: &[u8],
        at: usize,
        word: &'static [u8],
        seen: u8,
        kind: Kind,
        weave: &mut W,
    ) -> Result<usize, Fault> {
        if bytes[at] != word[usize::from(seen)] {
            return Err((ErrorKind::Unexpected("true, false, null, NaN or Infinity"), at));
        }
        if usize::from(seen) + 1 < word.len() {
            self.state = State::Word(word, seen + 1, kind);
        } else {
            self.element.clear();
            self.keep_element(word);
            self.value_ends(at + 1, kind, weave);
        }
        Ok(at + 1)
    }
}

/// How many bytes of a string come before its end, an escape, or a control character.
fn plain_length(bytes: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // The high bit of the first byte that is below `limit`, and perhaps of others behind it.
    let below = |word: u64, limit: u8| word.wrapping_sub(EACH * u64::from(limit)) & !word;
    let mut at = 0;
    while let Some(eight) = bytes[at..].first_chunk() {
        let word = u64::from_le_bytes(*eight);
        let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
        let special = (is(b'"') | is(b'\\') | below(word, b' ')) & (EACH << 7);
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < b' ';
    at + bytes[at..].iter().position(special).unwrap_or(bytes.len() - at)
}
