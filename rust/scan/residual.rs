//! The document without its token arrays, byte for byte as it came, with the places of its members.

/// A member of an object: its key, and where its value stands in the residual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The key, decoded.
    pub key: String,
    /// First byte of the value.
    pub start: usize,
    /// First byte behind it.
    pub end: usize,
}

/// What is copied, and what is left out.
#[derive(Debug)]
pub struct Residual {
    bytes: Vec<u8>,
    /// From where in the chunk at hand bytes wait to be copied; None while they are left out.
    from: Option<usize>,
    /// Members of the document.
    pub members: Vec<Member>,
    /// Members of its `response`.
    pub response: Vec<Member>,
    /// Where the four digits of an escaped high surrogate stand that has not found its other half yet.
    high_surrogate: Option<usize>,
}

impl Default for Residual {
    fn default() -> Self {
        Self { bytes: Vec::new(), from: Some(0), members: Vec::new(), response: Vec::new(), high_surrogate: None }
    }
}

impl Residual {
    /// A chunk begins.
    pub(super) fn chunk_begins(&mut self) {
        self.from = self.from.map(|_| 0);
    }

    /// A chunk of bytes ends: its index is its length.
    pub(super) fn chunk_ends(&mut self, chunk: &[u8]) {
        self.flush(chunk, chunk.len());
    }

    /// Copy what waits, up to `at`.
    pub(super) fn flush(&mut self, chunk: &[u8], at: usize) {
        if let Some(from) = self.from {
            self.bytes.extend_from_slice(&chunk[from..at]);
            self.from = Some(at);
        }
    }

    /// Where the byte at `at` stands, or would stand, in the residual.
    pub(super) fn place(&self, at: usize) -> usize {
        self.bytes.len() + self.from.map_or(0, |from| at - from)
    }

    pub(super) fn is_copying(&self) -> bool {
        self.from.is_some()
    }

    /// Leave out all from the residual's length `place` on.
    pub(super) fn leave_out_from(&mut self, place: usize) {
        self.bytes.truncate(place);
        self.from = None;
    }

    /// Copy again, from `at` on.
    pub(super) fn copy_from(&mut self, at: usize) {
        self.from = Some(at);
    }

    /// An escape `\uXXXX` is complete in the string at hand; `at` is behind it.
    pub(super) fn escaped_unit(&mut self, unit: u16, chunk: &[u8], at: usize) {
        if !self.is_copying() {
            return;
        }
        self.flush(chunk, at);
        let digits = self.bytes.len() - 4;
        match unit {
            0xDC00..=0xDFFF if self.high_surrogate.is_some() => self.high_surrogate = None,
            0xDC00..=0xDFFF => self.replace(digits),
            0xD800..=0xDBFF => {
                self.close_surrogate();
                self.high_surrogate = Some(digits);
            }
            _ => self.close_surrogate(),
        }
    }

    /// Something other than a low surrogate follows in the string at hand.
    #[inline]
    pub(super) fn close_surrogate(&mut self) {
        if let Some(digits) = self.high_surrogate.take() {
            self.replace(digits);
        }
    }

    fn replace(&mut self, digits: usize) {
        self.bytes[digits..digits + 4].copy_from_slice(b"FFFD");
    }

    /// The document without its token arrays.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Vec<Member>, Vec<Member>) {
        (self.bytes, self.members, self.response)
    }
}
