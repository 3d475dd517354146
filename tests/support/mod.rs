//! What the integration tests share: bodies out of turns, and a parse in pieces.
#![allow(dead_code, clippy::expect_used)] // each test crate uses its part

use _native::error::Error;
use _native::run::{RunParser, Settings};
use _native::weave::{Branches, Woven};

/// One model call: prompt, generation, logprobs as JSON texts.
pub struct Call<'a>(pub &'a [i64], pub &'a [i64], pub &'a [&'a str]);

/// A body as NeMo Gym writes it, with `separator` between two elements of a list.
pub fn body(calls: &[Call<'_>], separator: &str) -> String {
    let items: Vec<String> = calls.iter().map(|call| item(call, separator)).collect();
    format!(r#"{{"reward":1.0,"response":{{"output":[{}]}}}}"#, items.join(","))
}

fn item(Call(prompt, generation, log_probs): &Call<'_>, separator: &str) -> String {
    let ids = |ids: &[i64]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
    format!(
        r#"{{"prompt_token_ids":[{}],"generation_token_ids":[{}],"generation_log_probs":[{}],"type":"message"}}"#,
        ids(prompt),
        ids(generation),
        log_probs.join(separator)
    )
}

/// The residual as text, and what was woven, of `body` fed in `pieces`.
pub fn parse<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    fork_threshold_tokens: i64,
) -> Result<(String, Woven), Error> {
    parse_branches(pieces, fork_threshold_tokens, Branches::Linear)
}

/// Likewise, with the rows that stay open.
pub fn parse_branches<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    fork_threshold_tokens: i64,
    branches: Branches,
) -> Result<(String, Woven), Error> {
    let mut parser = RunParser::new(Settings { fork_threshold_tokens, branches, max_body_bytes: None });
    for piece in pieces {
        parser.feed(piece)?;
    }
    let (residual, woven) = parser.finish()?;
    let (bytes, _, _) = residual.into_parts();
    Ok((String::from_utf8_lossy(&bytes).into_owned(), woven))
}

/// What was woven of a sound body.
pub fn woven(body: &str, fork_threshold_tokens: i64) -> Woven {
    parse([body.as_bytes()], fork_threshold_tokens).expect("a sound body").1
}
