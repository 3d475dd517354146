//! Values, objects and arrays: what begins, what ends, and what that means at this place of the document.

use super::item::Shape;
use super::machine::{Fault, Scanner};
use super::residual::Member;
use super::state::{Field, Kind, Level, Num, Role, State};
use super::{Weave, number};
use crate::error::{ErrorKind, MAX_DEPTH};

impl Scanner {
    pub(super) fn value<W: Weave>(&mut self, bytes: &[u8], at: usize, byte: u8, weave: &mut W) -> Result<usize, Fault> {
        let role = self.stack.last().map(|level| level.role);
        match role {
            Some(Role::Tokens(field)) => {
                if let Some(next) = self.tokens(field, bytes, at)? {
                    return Ok(next);
                }
                self.element.clear();
            }
            Some(Role::Document | Role::Response) => {
                let place = self.residual.place(at);
                if let Some(level) = self.stack.last_mut() {
                    level.place = place;
                }
            }
            Some(Role::Item) => self.routed_experts_at = self.fed + at as u64,
            _ => {}
        }
        match byte {
            b'"' => {
                self.in_key = false;
                self.keep_element(b"\"");
                self.state = State::String;
            }
            b'{' | b'[' => return self.open(bytes, at, byte == b'{', weave),
            b'-' | b'0'..=b'9' => {
                self.number_chars = 1;
                self.keep_element(&bytes[at..=at]);
                self.state = State::Number(match byte {
                    b'-' => Num::Minus,
                    b'0' => Num::Zero,
                    _ => Num::Int,
                });
            }
            b't' => self.state = State::Word(b"true", 1, Kind::Bool),
            b'f' => self.state = State::Word(b"false", 1, Kind::Bool),
            b'n' => self.state = State::Word(b"null", 1, Kind::Null),
            b'N' => self.state = State::Word(b"NaN", 1, Kind::NotFinite),
            b'I' => self.state = State::Word(b"Infinity", 1, Kind::NotFinite),
            _ if self.state == State::ValueOrEnd => return Err((ErrorKind::Unexpected("a value or `]`"), at)),
            _ => return Err((ErrorKind::Unexpected("a value"), at)),
        }
        Ok(at + 1)
    }

    pub(super) fn open<W: Weave>(
        &mut self,
        bytes: &[u8],
        at: usize,
        is_object: bool,
        weave: &mut W,
    ) -> Result<usize, Fault> {
        if self.stack.len() == MAX_DEPTH {
            return Err((ErrorKind::TooDeep, at));
        }
        let role = self.role_of_child(is_object);
        match role {
            Role::Item => {
                let index = self.stack.last().map_or(0, |level| level.index);
                self.item.begin(index);
                self.residual.flush(bytes, at + 1);
            }
            Role::Tokens(Field::Prompt) => {
                weave.prompt_begins();
                self.item.prompt.open(Some(weave.held()));
            }
            Role::Tokens(Field::Generation) => self.item.generation.open(None),
            Role::Tokens(Field::LogProbs) => self.item.log_probs.open(),
            _ => {}
        }
        self.stack.push(Level {
            role,
            is_object,
            index: 0,
            key_at: self.keys.len(),
            has_key: false,
            place: self.residual.place(at + 1),
            keeps_member: false,
            left_out: None,
        });
        self.state = if is_object { State::KeyOrEnd } else { State::ValueOrEnd };
        Ok(at + 1)
    }

    pub(super) fn role_of_child(&self, is_object: bool) -> Role {
        let Some(parent) = self.stack.last() else {
            return if is_object { Role::Document } else { Role::Other };
        };
        match (parent.role, is_object) {
            (Role::Document, true) if &self.keys[parent.key_at..] == b"response" => Role::Response,
            (Role::Response, false) if &self.keys[parent.key_at..] == b"output" => Role::Output,
            (Role::Output, true) => Role::Item,
            (Role::Item, false) => parent.left_out.map_or(Role::Other, Role::Tokens),
            _ => Role::Other,
        }
    }

    pub(super) fn close<W: Weave>(&mut self, bytes: &[u8], at: usize, weave: &mut W) -> Result<usize, Fault> {
        let Some(level) = self.stack.pop() else { return Err((ErrorKind::TrailingBytes, at)) };
        self.keys.truncate(level.key_at);
        match level.role {
            Role::Item => {
                if !self.residual.is_copying() {
                    self.residual.copy_from(at);
                }
                weave.item(&mut self.item);
            }
            Role::Tokens(Field::Prompt | Field::Generation) => {
                self.keep_text(bytes, at);
                self.text_from = None;
                if level.role == Role::Tokens(Field::Prompt) {
                    self.item.prompt.close();
                } else {
                    self.item.generation.close();
                }
            }
            _ => {}
        }
        let kind = if level.is_object { Kind::Object } else { Kind::Array };
        self.value_ends(at + 1, kind, weave);
        Ok(at + 1)
    }

    pub(super) fn key_begins(&mut self, at: usize) -> usize {
        self.in_key = true;
        self.key_is_escaped = false;
        if let Some(level) = self.stack.last_mut() {
            level.has_key = false;
            self.keys.truncate(level.key_at);
        }
        self.state = State::String;
        at + 1
    }

    pub(super) fn key_ends<W: Weave>(&mut self, weave: &mut W) {
        self.state = State::Colon;
        let Some(level) = self.stack.last_mut() else { return };
        if self.key_is_escaped {
            let key = number::unescape(&self.keys[level.key_at..]);
            self.keys.truncate(level.key_at);
            self.keys.extend_from_slice(key.as_bytes());
        }
        level.has_key = true;
        let key = &self.keys[level.key_at..];
        match level.role {
            Role::Document if key == b"response" => {
                self.residual.response.clear();
                weave.restart();
            }
            Role::Response if key == b"output" => weave.restart(),
            Role::Item => match Field::of_key(key) {
                None => level.keeps_member = true,
                Some(field) => {
                    level.left_out = Some(field);
                    self.residual.leave_out_from(level.place);
                    match field {
                        Field::Prompt => self.item.prompt.clear(),
                        Field::Generation => self.item.generation.clear(),
                        Field::LogProbs => self.item.log_probs.clear(),
                        Field::RoutedExperts => self.item.routed_experts_bytes = 0,
                    }
                }
            },
            _ => {}
        }
    }

    pub(super) fn comma_or_end<W: Weave>(
        &mut self,
        bytes: &[u8],
        at: usize,
        byte: u8,
        weave: &mut W,
    ) -> Result<usize, Fault> {
        let Some(level) = self.stack.last_mut() else { return Err((ErrorKind::TrailingBytes, at)) };
        match byte {
            b',' if level.is_object => {
                level.has_key = false;
                if level.role == Role::Item {
                    self.residual.flush(bytes, at);
                    level.place = self.residual.place(at);
                    // The comma belongs to the member behind it, and to none before the first that is kept.
                    self.residual.copy_from(if level.keeps_member { at } else { at + 1 });
                }
                self.state = State::Key;
                Ok(at + 1)
            }
            b',' => {
                level.index += 1;
                self.state = State::Value;
                Ok(at + 1)
            }
            b'}' if level.is_object => self.close(bytes, at, weave),
            b']' if !level.is_object => self.close(bytes, at, weave),
            _ if level.is_object => Err((ErrorKind::Unexpected("`,` or `}`"), at)),
            _ => Err((ErrorKind::Unexpected("`,` or `]`"), at)),
        }
    }

    /// A value is complete; `at` is behind it.
    pub(super) fn value_ends<W: Weave>(&mut self, at: usize, kind: Kind, weave: &mut W) {
        self.state = State::CommaOrEnd;
        let Some(level) = self.stack.last_mut() else {
            self.state = State::End;
            return;
        };
        match level.role {
            Role::Document | Role::Response => {
                let key = String::from_utf8_lossy(&self.keys[level.key_at..]).into_owned();
                let member = Member { key, start: level.place, end: self.residual.place(at) };
                if level.role == Role::Document {
                    self.residual.members.push(member);
                } else {
                    self.residual.response.push(member);
                }
            }
            Role::Item => {
                if let Some(field) = level.left_out.take() {
                    self.field_ends(field, kind, at);
                }
            }
            Role::Tokens(field) => self.element_ends(field, kind, at, weave),
            Role::Output | Role::Other => {}
        }
    }

    /// The value of a field that is left out is complete; lists were seen to when they opened.
    pub(super) fn field_ends(&mut self, field: Field, kind: Kind, at: usize) {
        let shape = match kind {
            Kind::Null => Shape::Absent,
            Kind::Array => Shape::List,
            other => Shape::Other(other.in_words()),
        };
        match field {
            Field::Prompt => self.item.prompt.shape = shape,
            Field::Generation => self.item.generation.shape = shape,
            Field::LogProbs => self.item.log_probs.shape = shape,
            Field::RoutedExperts if kind == Kind::Null => {}
            Field::RoutedExperts => self.item.routed_experts_bytes = self.fed + at as u64 - self.routed_experts_at,
        }
    }

    pub(super) fn element_ends<W: Weave>(&mut self, field: Field, kind: Kind, at: usize, weave: &mut W) {
        let index = self.stack.last().map_or(0, |level| level.index);
        let list = match field {
            Field::Prompt => &mut self.item.prompt,
            Field::Generation => &mut self.item.generation,
            Field::LogProbs => {
                let number = (kind == Kind::Number).then_some(self.element.as_slice());
                return self.item.log_probs.element(index, number, kind.is_scalar());
            }
            Field::RoutedExperts => return,
        };
        let was_capturing = list.is_capturing();
        list.element(index, &self.element, kind.is_scalar(), weave);
        if list.is_capturing() != was_capturing {
            self.text_from = list.is_capturing().then_some((field, at));
        }
    }
}
