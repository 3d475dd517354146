//! One body: scanned and woven while it is fed.

use crate::error::Error;
use crate::scan::{Residual, Scanner};
use crate::weave::{Branches, Loom, Woven};

/// The parser of one body.
#[derive(Debug)]
pub struct RunParser {
    scanner: Scanner,
    loom: Loom,
    failed: Option<Error>,
}

impl RunParser {
    /// A drift of `fork_threshold_tokens`, or more, forks.
    #[must_use]
    pub fn new(fork_threshold_tokens: i64, branches: Branches) -> Self {
        Self { scanner: Scanner::default(), loom: Loom::new(fork_threshold_tokens, branches), failed: None }
    }

    /// Parse the next bytes.
    ///
    /// # Errors
    /// No continuation of what was fed is JSON; every later call gives the same error.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.scanner.feed(chunk, &mut self.loom).inspect_err(|error| self.failed = Some(error.clone()))
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
