//! Parses one body and says what came out: nothing else happens here, so that its instructions can be counted.
//!
//! `parse FILE [BYTES_PER_CHUNK]`; without a chunk size the whole body is one chunk.
#![allow(clippy::print_stdout)]

use _native::run::{RunParser, Settings};
use _native::weave::Branches;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("parse FILE [BYTES_PER_CHUNK]")?;
    let body = std::fs::read(file)?;
    let chunk = arguments.next().map_or(Ok(body.len()), |bytes| bytes.parse())?;
    let settings = Settings { fork_threshold_tokens: 1024, branches: Branches::Linear, max_body_bytes: None };
    let mut parser = RunParser::new(settings);
    for bytes in body.chunks(chunk.max(1)) {
        parser.feed(bytes)?;
    }
    let (residual, woven) = parser.finish()?;
    let tokens: usize = woven.rows.iter().map(|row| row.input_ids.len()).sum();
    let residual = residual.into_parts().0.len();
    println!(
        "{} bytes, {} turns, {} rows, {tokens} tokens, {residual} bytes kept",
        body.len(),
        woven.turns.len(),
        woven.rows.len()
    );
    Ok(())
}
