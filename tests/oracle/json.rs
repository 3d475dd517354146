//! JSON as Python's `json` reads it, recursively, with the places where a document stops being one.

use _native::error::{ErrorKind, MAX_DEPTH, MAX_NUMBER_CHARS, Step};

/// A value, and where it stands.
#[derive(Debug)]
pub struct Node {
    pub value: Value,
    pub start: usize,
    pub end: usize,
}

/// Numbers are kept as they were sent.
#[derive(Debug)]
pub enum Value {
    Null,
    Bool(bool),
    NotFinite(&'static str),
    Number(String),
    String(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The last member of that name.
    pub fn member(&self, key: &str) -> Option<&Self> {
        let Value::Object(members) = &self.value else { return None };
        members.iter().rfind(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// What is wrong, at which byte, and where in the document.
#[derive(Debug)]
pub struct Fault {
    pub kind: ErrorKind,
    pub offset: usize,
    pub path: Vec<Step>,
}

/// The document that the bytes are.
pub fn read(bytes: &[u8]) -> Result<Node, Fault> {
    let mut reader = Reader { bytes, at: 0, path: Vec::new() };
    reader.document().map_err(|kind| {
        let offset = reader.at;
        Fault { kind, offset, path: reader.path.into_iter().flatten().collect() }
    })
}

const UNEXPECTED: ErrorKind = ErrorKind::Unexpected("");

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// A step for each open bracket; none while an object waits for its key.
    path: Vec<Option<Step>>,
}

type Read<T> = Result<T, ErrorKind>;

impl Reader<'_> {
    fn peek(&self) -> Read<u8> {
        self.bytes.get(self.at).copied().ok_or(ErrorKind::EndsEarly)
    }

    /// One of these bytes, or it is no JSON.
    fn expect(&mut self, allowed: &[u8]) -> Read<u8> {
        let byte = self.peek()?;
        if !allowed.contains(&byte) {
            return Err(UNEXPECTED);
        }
        self.at += 1;
        Ok(byte)
    }

    fn skip_space(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| b" \t\n\r".contains(byte)) {
            self.at += 1;
        }
    }

    fn document(&mut self) -> Read<Node> {
        if self.peek()? == 0xEF {
            for byte in *b"\xEF\xBB\xBF" {
                self.expect(&[byte])?;
            }
        }
        let node = self.value()?;
        self.skip_space();
        if self.at < self.bytes.len() { Err(ErrorKind::TrailingBytes) } else { Ok(node) }
    }

    fn value(&mut self) -> Read<Node> {
        self.skip_space();
        let start = self.at;
        let value = match self.peek()? {
            b'{' => self.object()?,
            b'[' => self.array()?,
            b'"' => Value::String(self.string()?),
            b't' => self.word("true", Value::Bool(true))?,
            b'f' => self.word("false", Value::Bool(false))?,
            b'n' => self.word("null", Value::Null)?,
            b'N' => self.word("NaN", Value::NotFinite("NaN"))?,
            b'I' => self.word("Infinity", Value::NotFinite("Infinity"))?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(UNEXPECTED),
        };
        Ok(Node { value, start, end: self.at })
    }

    fn open(&mut self, step: Option<Step>) -> Read<()> {
        if self.path.len() == MAX_DEPTH {
            return Err(ErrorKind::TooDeep);
        }
        self.at += 1;
        self.path.push(step);
        self.skip_space();
        Ok(())
    }

    fn close(&mut self) {
        self.at += 1;
        self.path.pop();
    }

    fn array(&mut self) -> Read<Value> {
        self.open(Some(Step::Index(0)))?;
        let mut elements = Vec::new();
        if self.peek()? != b']' {
            loop {
                elements.push(self.value()?);
                self.skip_space();
                if self.peek()? == b']' {
                    break;
                }
                self.expect(b",")?;
                if let Some(step) = self.path.last_mut() {
                    *step = Some(Step::Index(elements.len() as u64));
                }
            }
        }
        self.close();
        Ok(Value::Array(elements))
    }

    fn object(&mut self) -> Read<Value> {
        self.open(None)?;
        let mut members = Vec::new();
        if self.peek()? != b'}' {
            loop {
                self.skip_space();
                if self.peek()? != b'"' {
                    return Err(UNEXPECTED);
                }
                let key = self.string()?;
                self.name(Some(Step::Key(key.clone())));
                self.skip_space();
                self.expect(b":")?;
                members.push((key, self.value()?));
                self.skip_space();
                if self.peek()? == b'}' {
                    break;
                }
                self.expect(b",")?;
                self.name(None);
            }
        }
        self.close();
        Ok(Value::Object(members))
    }

    fn name(&mut self, step: Option<Step>) {
        if let Some(last) = self.path.last_mut() {
            *last = step;
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Read<Value> {
        for byte in word.bytes() {
            self.expect(&[byte])?;
        }
        Ok(value)
    }

    /// An unpaired surrogate, and what is no UTF-8, becomes U+FFFD.
    fn string(&mut self) -> Read<String> {
        self.at += 1;
        let mut text = String::new();
        let mut units = Vec::new();
        let mut plain = self.at;
        loop {
            let byte = self.peek()?;
            if byte == b'\\' || byte == b'"' {
                let run = &self.bytes[plain..self.at];
                if !run.is_empty() {
                    text += &String::from_utf16_lossy(&std::mem::take(&mut units));
                    text += &String::from_utf8_lossy(run);
                }
                self.at += 1;
                if byte == b'"' {
                    return Ok(text + &String::from_utf16_lossy(&units));
                }
                units.push(self.escape()?);
                plain = self.at;
            } else if byte < b' ' {
                return Err(ErrorKind::ControlCharacter);
            } else {
                self.at += 1;
            }
        }
    }

    fn escape(&mut self) -> Read<u16> {
        let byte = self.expect(b"\"\\/bfnrtu")?;
        Ok(match byte {
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => {
                let mut unit = 0;
                for _ in 0..4 {
                    let digit = self.expect(b"0123456789abcdefABCDEF")?;
                    unit = unit * 16 + char::from(digit).to_digit(16).unwrap_or(0) as u16;
                }
                unit
            }
            other => u16::from(other),
        })
    }

    fn number(&mut self) -> Read<Value> {
        let start = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
            if self.peek()? == b'I' {
                return self.word("Infinity", Value::NotFinite("-Infinity"));
            }
        }
        if self.peek()? == b'0' {
            self.at += 1;
            if self.peek().is_ok_and(|byte| byte.is_ascii_digit()) {
                return Err(UNEXPECTED);
            }
        } else {
            self.digits(start)?;
        }
        if self.peek() == Ok(b'.') {
            self.advance(start)?;
            self.digits(start)?;
        }
        if matches!(self.peek(), Ok(b'e' | b'E')) {
            self.advance(start)?;
            if matches!(self.peek(), Ok(b'+' | b'-')) {
                self.advance(start)?;
            }
            self.digits(start)?;
        }
        Ok(Value::Number(String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned()))
    }

    /// One digit or more.
    fn digits(&mut self, start: usize) -> Read<()> {
        if !self.peek()?.is_ascii_digit() {
            return Err(UNEXPECTED);
        }
        while self.peek().is_ok_and(|byte| byte.is_ascii_digit()) {
            self.advance(start)?;
        }
        Ok(())
    }

    /// One more byte of the number that began at `start`.
    fn advance(&mut self, start: usize) -> Read<()> {
        if self.at - start == MAX_NUMBER_CHARS {
            return Err(ErrorKind::NumberTooLong);
        }
        self.at += 1;
        Ok(())
    }
}
