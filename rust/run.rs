//! One body: scanned and woven while it is fed.

use crate::error::{Error, ErrorKind};
use crate::scan::{Residual, Scanner};
use crate::weave::{Branches, Loom, Woven};

/// How one body is read.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A drift of as many tokens, or more, forks.
    pub fork_threshold_tokens: i64,
    /// Which rows stay open.
    pub branches: Branches,
    /// More bytes are an error.
    pub max_body_bytes: Option<u64>,
}

/// The parser of one body.
#[derive(Debug)]
pub struct RunParser {
    settings: Settings,
    scanner: Scanner,
    loom: Loom,
    fed: u64,
    failed: Option<Error>,
}

impl RunParser {
    /// A parser that has been fed nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { fork_threshold_tokens, branches, .. } = settings;
        let loom = Loom::new(fork_threshold_tokens, branches);
        Self { settings, scanner: Scanner::default(), loom, fed: 0, failed: None }
    }

    /// Parse the next bytes.
    ///
    /// # Errors
    /// No continuation of what was fed is JSON, or it is too large; every later call gives the same error.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.parse(chunk).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn parse(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let Some(limit) = self.settings.max_body_bytes else {
            return self.scanner.feed(chunk, &mut self.loom);
        };
        // What is wrong before the limit is said, however the bytes came.
        let within = usize::try_from(limit - self.fed).unwrap_or(usize::MAX).min(chunk.len());
        self.scanner.feed(&chunk[..within], &mut self.loom)?;
        self.fed += within as u64;
        if within == chunk.len() {
            return Ok(());
        }
        Err(self.scanner.error_here(ErrorKind::BodyTooLarge(limit), &self.loom))
    }

    /// The body is complete.
    ///
    /// # Errors
    /// It is not, or was no JSON.
    pub fn finish(&mut self) -> Result<(Residual, Woven), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let residual = self.scanner.finish(&self.loom).inspect_err(|error| self.failed = Some(error.clone()))?;
        let loom = std::mem::replace(&mut self.loom, Loom::new(0, Branches::Linear));
        Ok((residual, loom.finish()))
    }
}
