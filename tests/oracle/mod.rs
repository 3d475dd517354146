//! An independent reading of a body, and what must hold of the core's for any bytes at all.
//!
//! The fuzz target and the replay of its corpus share this. An input is a header of [`HEADER`] bytes, which chooses the
//! settings and the cuts, and a body.
#![allow(dead_code, clippy::expect_used, clippy::panic)] // so that it fails where it fails
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod compare;
pub mod conversation;
mod json;
mod rows;
mod turns;

use _native::error::{Error, ErrorKind};
use _native::run::{RunParser, Settings};
use _native::scan::Member;
use _native::weave::{Branches, Woven};

/// Bytes of an input before its body: settings, the seed of the cuts, their mean distance, and the limit of its size.
pub const HEADER: usize = 4;
const THRESHOLDS: [i64; 8] = [1024, 0, 1, 2, 3, 5, -1, i64::MAX];

/// What an input's header says.
struct Setup {
    settings: Settings,
    cut_seed: u64,
    cut_distance: u64,
}

impl Setup {
    fn new([settings, cut_seed, cut_distance, limit]: [u8; HEADER], body: &[u8]) -> Self {
        Self {
            settings: Settings {
                fork_threshold_tokens: THRESHOLDS[usize::from(settings & 7)],
                branches: if settings & 8 == 0 { Branches::Linear } else { Branches::Best },
                max_body_bytes: (settings & 16 != 0).then_some(body.len() as u64 * u64::from(limit) / 200),
            },
            cut_seed: u64::from(cut_seed),
            cut_distance: u64::from(cut_distance) + 1,
        }
    }
}

/// Whatever the bytes are: one result for every way of cutting them, and the one that the rules give.
pub fn check(input: &[u8]) {
    let Some((header, body)) = input.split_first_chunk::<HEADER>() else { return };
    let setup = Setup::new(*header, body);
    let whole = parse(&setup, [body]);
    compare::assert_same(&whole, &parse(&setup, pieces(&setup, body)), "in random pieces");
    compare::assert_same(&whole, &byte_by_byte(&setup, body), "byte by byte");
    compare::assert_as_the_rules(&setup, body, &whole);
}

/// What the core hands over.
#[derive(Debug)]
struct Parsed {
    residual: Vec<u8>,
    members: Vec<Member>,
    response: Vec<Member>,
    woven: Woven,
}

fn parse<'a>(setup: &Setup, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Parsed, Error> {
    let mut parser = RunParser::new(setup.settings);
    for piece in pieces {
        parser.feed(piece)?;
    }
    finish(parser)
}

fn finish(mut parser: RunParser) -> Result<Parsed, Error> {
    let (residual, woven) = parser.finish()?;
    let (residual, members, response) = residual.into_parts();
    Ok(Parsed { residual, members, response, woven })
}

/// What is wrong is known at the very byte, and stays wrong.
fn byte_by_byte(setup: &Setup, body: &[u8]) -> Result<Parsed, Error> {
    let mut parser = RunParser::new(setup.settings);
    for (at, piece) in body.chunks(1).enumerate() {
        if let Err(error) = parser.feed(piece) {
            assert_eq!(error.offset, at as u64, "raised late, or too early");
            assert_ne!(error.kind, ErrorKind::EndsEarly);
            assert_eq!(parser.feed(b" ").err().as_ref(), Some(&error));
            assert_eq!(parser.finish().err().as_ref(), Some(&error));
            return Err(error);
        }
    }
    finish(parser)
}

/// The body in pieces of random sizes, empty ones among them.
fn pieces<'a>(setup: &Setup, body: &'a [u8]) -> Vec<&'a [u8]> {
    let mut random = setup.cut_seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut pieces = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let size = (random >> 16) % (2 * setup.cut_distance);
        let (piece, behind) = rest.split_at(rest.len().min(size as usize));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}
