//! The resumable JSON machine.

use super::Weave;
use super::item::Item;
use super::residual::Residual;
use super::state::{Field, Level, State};
use crate::error::{EXCERPT_BYTES, Error, ErrorKind, MAX_KEPT_SPACE, Step};

/// What is wrong with the bytes at hand, and at which of them.
pub(super) type Fault = (ErrorKind, usize);

/// A body's scanner.
#[derive(Debug)]
pub struct Scanner {
    pub(super) state: State,
    pub(super) stack: Vec<Level>,
    /// The keys of the members at hand, decoded, outermost first.
    pub(super) keys: Vec<u8>,
    pub(super) in_key: bool,
    pub(super) key_is_escaped: bool,
    pub(super) number_chars: usize,
    /// The element of a token array at hand, as sent.
    pub(super) element: Vec<u8>,
    pub(super) item: Item,
    pub(super) routed_experts_at: u64,
    /// The list whose new ids' text waits to be kept, and from where in the chunk at hand.
    pub(super) text_from: Option<(Field, usize)>,
    pub(super) residual: Residual,
    /// Line ends are among the text that was kept of lists.
    pub(super) keeps_lines: bool,
    /// Bytes kept of a run of white space between token ids that reached the end of the last chunk.
    pub(super) kept_space: usize,
    /// Bytes before the chunk at hand.
    pub(super) fed: u64,
    pub(super) line: u64,
    pub(super) line_at: u64,
    /// The last bytes before the chunk at hand.
    pub(super) recent: Vec<u8>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Start(0),
            stack: Vec::new(),
            keys: Vec::new(),
            in_key: false,
            key_is_escaped: false,
            number_chars: 0,
            element: Vec::new(),
            item: Item::default(),
            routed_experts_at: 0,
            text_from: None,
            keeps_lines: false,
            kept_space: 0,
            residual: Residual::default(),
            fed: 0,
            line: 1,
            line_at: 0,
            recent: Vec::new(),
        }
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

impl Scanner {
    /// Parse the next bytes.
    ///
    /// # Errors
    /// No continuation of what was fed is JSON. The scanner is of no more use then.
    pub fn feed<W: Weave>(&mut self, chunk: &[u8], weave: &mut W) -> Result<(), Error> {
        self.residual.chunk_begins();
        self.text_from = self.text_from.map(|(field, _)| (field, 0));
        self.run(chunk, weave).map_err(|(kind, at)| self.error(kind, chunk, at))?;
        self.residual.chunk_ends(chunk);
        self.keep_text(chunk, chunk.len());
        self.fed += chunk.len() as u64;
        let keep = self.recent.len().saturating_sub(EXCERPT_BYTES.saturating_sub(chunk.len()));
        self.recent.drain(..keep);
        self.recent.extend_from_slice(&chunk[chunk.len().saturating_sub(EXCERPT_BYTES)..]);
        Ok(())
    }

    /// The document has ended; gives the residual.
    ///
    /// # Errors
    /// It has not: [`ErrorKind::EndsEarly`].
    pub fn finish<W: Weave>(&mut self, weave: &W) -> Result<Residual, Error> {
        let is_whole = match self.state {
            State::End => true,
            State::Number(state) => self.stack.is_empty() && state.may_end(),
            _ => false,
        };
        if !is_whole {
            return Err(self.error_here(ErrorKind::EndsEarly, weave));
        }
        Ok(std::mem::take(&mut self.residual))
    }

    /// An error behind all that was fed.
    pub(crate) fn error_here<W: Weave>(&mut self, kind: ErrorKind, weave: &W) -> Error {
        if let (State::HeldText(from), Some(level)) = (self.state, self.stack.last_mut()) {
            level.index = self.item.prompt.index_in_held(from, weave.held()) as u64;
        }
        self.error(kind, &[], 0)
    }

    fn run<W: Weave>(&mut self, bytes: &[u8], weave: &mut W) -> Result<(), Fault> {
        let mut at = 0;
        while at < bytes.len() {
            at = self.step(bytes, at, weave)?;
        }
        Ok(())
    }

    /// One step from `at`, over as many bytes as it takes.
    fn step<W: Weave>(&mut self, bytes: &[u8], at: usize, weave: &mut W) -> Result<usize, Fault> {
        match self.state {
            State::String => return self.string(bytes, at, weave),
            State::HeldText(from) => return self.held_text(bytes, at, from, weave),
            State::Number(state) => return self.number(bytes, at, state, weave),
            State::Escape => return self.escape(bytes, at),
            State::Hex(count, unit) => return self.hex(bytes, at, count, unit),
            State::Word(word, seen, kind) => return self.word(bytes, at, word, seen, kind, weave),
            _ => {}
        }
        if let State::Start(seen) = self.state
            && (seen > 0 || self.is_at_mark(bytes, at))
        {
            return self.byte_order_mark(bytes, at, seen);
        }
        let at = self.skip_space(bytes, at);
        let Some(&byte) = bytes.get(at) else { return Ok(at) };
        match self.state {
            State::ValueOrEnd if byte == b']' => self.close(bytes, at, weave),
            State::Start(_) | State::Value | State::ValueOrEnd => self.value(bytes, at, byte, weave),
            State::KeyOrEnd if byte == b'}' => self.close(bytes, at, weave),
            State::Key | State::KeyOrEnd if byte == b'"' => Ok(self.key_begins(at)),
            State::Key => Err((ErrorKind::Unexpected("a key"), at)),
            State::KeyOrEnd => Err((ErrorKind::Unexpected("a key or `}`"), at)),
            State::Colon if byte == b':' => {
                self.state = State::Value;
                Ok(at + 1)
            }
            State::Colon => Err((ErrorKind::Unexpected("`:`"), at)),
            State::CommaOrEnd => self.comma_or_end(bytes, at, byte, weave),
            _ => Err((ErrorKind::TrailingBytes, at)),
        }
    }

    fn skip_space(&mut self, bytes: &[u8], at: usize) -> usize {
        let mut end = at;
        while let Some(byte @ (b' ' | b'\n' | b'\r' | b'\t')) = bytes.get(end) {
            end += 1;
            if *byte == b'\n' {
                self.line += 1;
                self.line_at = self.fed + end as u64;
            }
        }
        if end > at && self.text_from.is_some() {
            self.shorten_space(bytes, at, end);
        }
        end
    }

    /// Between token ids stands white space from `at` to `end`: of a long run keep only so much of their text.
    fn shorten_space(&mut self, bytes: &[u8], at: usize, end: usize) {
        self.keeps_lines |= bytes[at..end].contains(&b'\n');
        let kept = (MAX_KEPT_SPACE - self.kept_space).min(end - at);
        if kept < end - at {
            self.keep_text(bytes, at + kept);
            self.text_from = self.text_from.map(|(field, _)| (field, end));
        }
        // A run that reaches the end of a chunk may go on in the next one.
        self.kept_space = if end == bytes.len() { self.kept_space + kept } else { 0 };
    }

    /// Lines end only in white space, so the held text is the only other place where they are counted.
    pub(super) fn count_lines(&mut self, bytes: &[u8], from: usize, to: usize) {
        if self.keeps_lines
            && let Some(last) = memchr::memrchr(b'\n', &bytes[from..to])
        {
            self.line += memchr::memchr_iter(b'\n', &bytes[from..to]).count() as u64;
            self.line_at = self.fed + (from + last + 1) as u64;
        }
    }

    fn is_at_mark(&self, bytes: &[u8], at: usize) -> bool {
        self.fed + at as u64 == 0 && bytes[at] == BYTE_ORDER_MARK[0]
    }

    fn byte_order_mark(&mut self, bytes: &[u8], at: usize, seen: u8) -> Result<usize, Fault> {
        if bytes[at] != BYTE_ORDER_MARK[usize::from(seen)] {
            return Err((ErrorKind::Unexpected("a byte order mark"), at));
        }
        self.residual.copy_from(at + 1);
        self.state = if seen == 2 { State::Value } else { State::Start(seen + 1) };
        Ok(at + 1)
    }

    /// Read `bytes`, which came before, once more, as part of the element at hand.
    pub(super) fn replay<W: Weave>(&mut self, bytes: &[u8], weave: &mut W) -> Result<(), Fault> {
        let lines = (self.line, self.line_at);
        let result = self.run(bytes, weave);
        (self.line, self.line_at) = lines;
        result
    }

    /// Keep the text of new ids up to `at`.
    pub(super) fn keep_text(&mut self, bytes: &[u8], at: usize) {
        let Some((field, from)) = self.text_from else { return };
        let list = if field == Field::Prompt { &mut self.item.prompt } else { &mut self.item.generation };
        list.text.extend_from_slice(&bytes[from..at]);
        self.text_from = Some((field, at));
    }

    /// An error at byte `at` of the chunk at hand.
    fn error(&self, kind: ErrorKind, chunk: &[u8], at: usize) -> Error {
        let offset = self.fed + at as u64;
        // What follows the byte is left out: it may not have come yet, and the error is the same however the bytes came.
        let end = (at + 1).min(chunk.len());
        let shown = &chunk[end.saturating_sub(EXCERPT_BYTES)..end];
        let before = self.recent.len().saturating_sub(EXCERPT_BYTES - shown.len());
        let excerpt = [&self.recent[before..], shown].concat();
        Error { kind, offset, line: self.line, column: offset - self.line_at + 1, path: self.path(), excerpt }
    }

    fn path(&self) -> Vec<Step> {
        let mut path = Vec::new();
        for (depth, level) in self.stack.iter().enumerate() {
            if !level.is_object {
                path.push(Step::Index(level.index));
            } else if level.has_key {
                let end = self.stack.get(depth + 1).map_or(self.keys.len(), |inner| inner.key_at);
                path.push(Step::Key(String::from_utf8_lossy(&self.keys[level.key_at..end]).into_owned()));
            }
        }
        path
    }
}
