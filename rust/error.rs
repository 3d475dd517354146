//! What can be wrong with a body: kind, place and path. Text is made only when the error is shown.

use std::fmt;

/// Open brackets at once; one more is an error.
pub const MAX_DEPTH: usize = 512;
/// Characters of one number; one more is an error. Python's `int` refuses more than 4300 digits.
pub const MAX_NUMBER_CHARS: usize = 4096;
/// Bytes of one key; one more is an error.
pub const MAX_KEY_BYTES: usize = 1 << 20;
/// Elements of one list of token ids or logprobs; one more is an error.
pub const MAX_LIST_TOKENS: u64 = 1 << 24;
/// Bytes of one run of white space between token ids that are kept to compare the next prompt with.
pub const MAX_KEPT_SPACE: usize = 64;
/// Bytes of one token id that are kept for that; of a longer one its digits are.
pub const MAX_KEPT_ID: usize = 32;
/// Rows that stay open at once; one more closes the one that was not continued for the longest time.
pub const MAX_OPEN_ROWS: usize = 64;
/// Bytes shown of the place of an error, its last one included.
pub const EXCERPT_BYTES: usize = 48;
/// Characters of a key that a path shows.
const PATH_KEY_CHARS: usize = 64;

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A byte that cannot stand where it stands; what could.
    Unexpected(&'static str),
    /// An unescaped control character in a string.
    ControlCharacter,
    /// The document ended before it was complete.
    EndsEarly,
    /// Something follows the document.
    TrailingBytes,
    /// More than [`MAX_DEPTH`] open brackets.
    TooDeep,
    /// A number of more than [`MAX_NUMBER_CHARS`] characters.
    NumberTooLong,
    /// A key of more than [`MAX_KEY_BYTES`] bytes.
    KeyTooLong,
    /// A list of more than [`MAX_LIST_TOKENS`] elements.
    ListTooLong,
    /// More bytes than the caller allows.
    BodyTooLarge(u64),
}

/// One step from the document to a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A member of an object.
    Key(String),
    /// An element of an array.
    Index(u64),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Key(key) if is_identifier(key) => write!(f, ".{key}"),
            Self::Key(key) => write!(f, "[{:?}]", key.chars().take(PATH_KEY_CHARS).collect::<String>()),
        }
    }
}

/// A body that is not JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What was wrong.
    pub kind: ErrorKind,
    /// The first byte after which no continuation is JSON, or the length of a document that ends early.
    pub offset: u64,
    /// Line of that byte, from 1.
    pub line: u64,
    /// Byte of that line, from 1.
    pub column: u64,
    /// Where in the document.
    pub path: Vec<Step>,
    /// The last [`EXCERPT_BYTES`] up to the place, with it.
    pub excerpt: Vec<u8>,
}

impl Error {
    /// The path as a person writes it: `response.output[3].prompt_token_ids[17]`.
    #[must_use]
    pub fn path_text(&self) -> String {
        let mut text: String = self.path.iter().map(ToString::to_string).collect();
        if text.starts_with('.') {
            text.remove(0);
        }
        text
    }

    /// The excerpt as text.
    #[must_use]
    pub fn excerpt_text(&self) -> String {
        String::from_utf8_lossy(&self.excerpt).into_owned()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ErrorKind::Unexpected(wanted) => write!(f, "not JSON: expected {wanted}")?,
            ErrorKind::ControlCharacter => f.write_str("not JSON: a control character in a string")?,
            ErrorKind::EndsEarly => f.write_str("the document ends early")?,
            ErrorKind::TrailingBytes => f.write_str("not JSON: something follows the document")?,
            ErrorKind::TooDeep => write!(f, "more than {MAX_DEPTH} brackets are open")?,
            ErrorKind::NumberTooLong => write!(f, "a number has more than {MAX_NUMBER_CHARS} characters")?,
            ErrorKind::KeyTooLong => write!(f, "a key has more than {MAX_KEY_BYTES} bytes")?,
            ErrorKind::ListTooLong => write!(f, "a list of tokens has more than {MAX_LIST_TOKENS} elements")?,
            ErrorKind::BodyTooLarge(limit) => write!(f, "the body has more than max_body_bytes={limit} bytes")?,
        }
        write!(f, " at byte {} (line {}, column {})", self.offset, self.line, self.column)?;
        let path = self.path_text();
        if !path.is_empty() {
            write!(f, " in {path}")?;
        }
        if !self.excerpt.is_empty() {
            write!(f, ", after {:?}", self.excerpt_text())?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

fn is_identifier(key: &str) -> bool {
    key.len() <= PATH_KEY_CHARS
        && key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
