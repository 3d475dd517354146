//! Bytes → JSON or not, and where not; the same for every way of cutting.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails

mod support;

use _native::error::{Error, ErrorKind, MAX_DEPTH, MAX_KEPT_SPACE, MAX_KEY_BYTES, MAX_LIST_TOKENS, MAX_NUMBER_CHARS};
use _native::run::{RunParser, Settings};
use _native::scan::{Scanner, Weave};
use _native::weave::{Branches, Loom};
use proptest::prelude::*;
use support::parse;

fn error(body: &[u8]) -> Error {
    parse([body], 1024).err().unwrap_or_else(|| panic!("accepted: {:?}", String::from_utf8_lossy(body)))
}

fn residual(body: &[u8]) -> String {
    parse([body], 1024).unwrap_or_else(|error| panic!("{error}")).0
}

#[test]
fn what_is_json() {
    for body in [
        "{}",
        "[]",
        " \t\r\n{ } \n",
        "0",
        "-0",
        "-0.0e-0",
        "1E5",
        "1e+5",
        "12.5",
        "NaN",
        "-Infinity",
        "Infinity",
        "true",
        "false",
        "null",
        r#""""#,
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "[1,[2,{\"a\":[]}]]",
        "\"\u{e9}\u{1F600}\u{7f}\"",
    ] {
        assert_eq!(residual(body.as_bytes()), body);
    }
    assert_eq!(residual(b"\xEF\xBB\xBF[1]"), "[1]");
}

#[test]
fn what_is_not() {
    // The body, and the first byte after which nothing makes it JSON.
    for (body, offset) in [
        (&b"x"[..], 0),
        (b"[1,]", 3),
        (b"{,}", 1),
        (b"{\"a\":1,}", 7),
        (b"{\"a\" 1}", 5),
        (b"{1:2}", 1),
        (b"01", 1),
        (b"-a", 1),
        (b"1.x", 2),
        (b"1ex", 2),
        (b"1e+x", 3),
        (b"-NaN", 1),
        (b"+1", 0),
        (b".5", 0),
        (b"tru1", 3),
        (b"nulL", 3),
        (b"\"\\q\"", 2),
        (b"\"\\u12G4\"", 5),
        (b"\"a\nb\"", 2),
        (b"{} {}", 3),
        (b"[1}", 2),
        (b"{\"a\":1]", 6),
        (b"]", 0),
        (b"\xEF\xBBx", 2),
        (b" \xEF\xBB\xBF1", 1),
        (b"'a'", 0),
        (b"[1 2]", 3),
        (b"\xFF\xFE[\0", 0),
    ] {
        let found = error(body);
        assert_eq!(found.offset, offset, "{:?}: {found}", String::from_utf8_lossy(body));
        assert_ne!(found.kind, ErrorKind::EndsEarly);
    }
}

#[test]
fn what_ends_early() {
    for body in [
        "",
        " ",
        "{",
        "[",
        "[1",
        "[1,",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1,",
        "\"",
        "\"\\",
        "\"\\u12",
        "-",
        "1.",
        "1e",
        "1e-",
        "tr",
    ] {
        let found = error(body.as_bytes());
        assert_eq!((found.kind, found.offset), (ErrorKind::EndsEarly, body.len() as u64), "{body:?}");
    }
}

#[test]
fn limits() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert!(parse([&nested(MAX_DEPTH)[..]], 1024).is_ok());
    let found = error(&nested(MAX_DEPTH + 1));
    assert_eq!((found.kind, found.offset), (ErrorKind::TooDeep, MAX_DEPTH as u64));
    let found = error(&vec![b'['; 100_000]);
    assert_eq!((found.kind, found.offset), (ErrorKind::TooDeep, MAX_DEPTH as u64));

    let number = vec![b'1'; MAX_NUMBER_CHARS];
    assert!(parse([&number[..]], 1024).is_ok());
    let found = error(&vec![b'1'; 1 << 20]);
    assert_eq!((found.kind, found.offset), (ErrorKind::NumberTooLong, MAX_NUMBER_CHARS as u64));
}

#[test]
fn long_keys() {
    let body = |length: usize| [b"{\"", &vec![b'k'; length][..], b"\":1}"].concat();
    assert!(parse([&body(MAX_KEY_BYTES)[..]], 1024).is_ok());
    let long = body(10 << 20);
    let found = error(&long);
    assert_eq!((found.kind, found.offset), (ErrorKind::KeyTooLong, 2 + MAX_KEY_BYTES as u64));
    assert_eq!(parse(long.chunks(4099), 1024).err(), Some(found));
    let escapes = [b"{\"", &b"\\n".repeat(MAX_KEY_BYTES)[..]].concat();
    assert_eq!(error(&escapes).offset, 2 + MAX_KEY_BYTES as u64);
}

#[test]
fn long_lists() {
    for key in ["prompt_token_ids", "generation_log_probs"] {
        let head = format!(r#"{{"response":{{"output":[{{"{key}":["#);
        let body = [head.as_bytes(), &b"1,".repeat(usize::try_from(MAX_LIST_TOKENS).expect("small") + 2)].concat();
        let found = error(&body);
        assert_eq!((found.kind, found.offset), (ErrorKind::ListTooLong, head.len() as u64 + 2 * MAX_LIST_TOKENS));
        assert_eq!(parse(body.chunks(100_003), 1024).err(), Some(found));
    }
}

#[test]
fn a_limit_on_the_body() {
    let body = br#"{"a": [1, 2, 3]} "#;
    let limited = |limit: usize, size: usize| {
        let settings =
            Settings { fork_threshold_tokens: 0, branches: Branches::Linear, max_body_bytes: Some(limit as u64) };
        let mut parser = RunParser::new(settings);
        body.chunks(size).try_for_each(|chunk| parser.feed(chunk)).and_then(|()| parser.finish().map(|_| ())).err()
    };
    for size in 1..=body.len() {
        assert_eq!(limited(body.len(), size), None);
        let found = limited(9, size).expect("too large");
        assert_eq!((found.kind, found.offset), (ErrorKind::BodyTooLarge(9), 9));
        assert_eq!(found.path_text(), "a[1]");
    }
}

#[test]
fn long_white_space_between_ids_is_not_held() {
    let space = " \n".repeat(1 << 16);
    let item =
        |ids: &str| format!(r#"{{"prompt_token_ids":[{ids}],"generation_token_ids":[9],"generation_log_probs":[-1]}}"#);
    let body = |gap: &str| {
        let (first, next) = (item(&format!("1{gap},2,{gap}3{gap}")), item(&format!("1,2{gap},3,9{gap},4")));
        format!(r#"{{"response":{{"output":[{first},{next}]}}}}"#)
    };
    let (spaced, plain) = (body(&space), body(""));
    let (_, expected) = parse([plain.as_bytes()], 1024).expect("a sound body");
    for size in [1, 63, 64, 65, 4096, spaced.len()] {
        let (_, found) = parse(spaced.as_bytes().chunks(size), 1024).expect("a sound body");
        assert_eq!((&found.rows, &found.turns), (&expected.rows, &expected.turns));
    }
    let mut loom = Loom::new(1024, Branches::Linear);
    Scanner::default().feed(spaced.as_bytes(), &mut loom).expect("a sound body");
    assert!(loom.held().text.len() < 8 * MAX_KEPT_SPACE, "{} bytes are held", loom.held().text.len());
}

#[test]
fn an_error_says_where() {
    let body = b"{\"response\": {\n \"output\": [{}, 1, {\"prompt_token_ids\": [11, 12,\n  13, 1x";
    let found = error(body);
    assert_eq!(found.path_text(), "response.output[2].prompt_token_ids[3]");
    assert_eq!((found.line, found.column), (3, 8));
    assert!(found.excerpt_text().ends_with("13, 1x"));
    // Fed byte by byte, it is the same.
    assert_eq!(parse(body.chunks(1), 1024).err(), Some(found));
    assert_eq!(error(br#"{"a b": {"c": [1, {"d": tru"#).path_text(), r#"["a b"].c[1].d"#);
}

#[test]
fn the_path_of_an_early_end_knows_the_held_text() {
    let first = r#"{"prompt_token_ids":[1,2,3],"generation_token_ids":[4],"generation_log_probs":[-1]}"#;
    let body = format!(r#"{{"response":{{"output":[{first},{{"prompt_token_ids":[1,2,3,"#);
    let found = error(body.as_bytes());
    assert_eq!(found.path_text(), "response.output[1].prompt_token_ids[3]");
}

#[test]
fn token_arrays_leave_no_trace() {
    let item = |fields: &str| format!(r#"{{"response":{{"output":[{{{fields}}}]}}}}"#);
    for (fields, left) in [
        (r#""prompt_token_ids":[1],"a":1"#, r#""a":1"#),
        (r#""a":1,"prompt_token_ids":[1]"#, r#""a":1"#),
        (r#""a":1,"routed_experts":[[[1,2]]],"b":2"#, r#""a":1,"b":2"#),
        (r#""prompt_token_ids":null,"generation_log_probs":{"x":[1]},"generation_token_ids":"s""#, ""),
        (
            r#""prompt_token_ids":[1],"generation_token_ids":[1],"a":1,"generation_log_probs":[1],"b":2"#,
            r#""a":1,"b":2"#,
        ),
        (r#""prompt\u005ftoken_ids":[1],"a":1"#, r#""a":1"#),
    ] {
        let body = item(fields);
        for size in 1..body.len() {
            let (found, _) = parse(body.as_bytes().chunks(size), 1024).expect("a sound body");
            assert_eq!(found, item(left), "{fields}, in pieces of {size}");
        }
    }
    // The same keys elsewhere are like any other.
    let elsewhere =
        r#"{"prompt_token_ids":[1],"response":{"prompt_token_ids":[1],"output":[[{"prompt_token_ids":[1]}]]}}"#;
    assert_eq!(residual(elsewhere.as_bytes()), elsewhere);
}

#[test]
fn unpaired_surrogates_are_replaced() {
    for (text, left) in [
        (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
        (r#""\ud83d""#, r#""\uFFFD""#),
        (r#""\ude00""#, r#""\uFFFD""#),
        (r#""\ud83dx\ude00""#, r#""\uFFFDx\uFFFD""#),
        (r#""\ud83d\n""#, r#""\uFFFD\n""#),
        (r#""\ud83d\ud83d\ude00""#, r#""\uFFFD\ud83d\ude00""#),
        (r#"{"\ud83d":"\u0041"}"#, r#"{"\uFFFD":"\u0041"}"#),
        (r#"["\ud83d","\ude00"]"#, r#"["\uFFFD","\uFFFD"]"#),
    ] {
        for size in 1..=text.len() {
            assert_eq!(parse(text.as_bytes().chunks(size), 1024).expect("JSON").0, left, "{text} in pieces of {size}");
        }
    }
}

#[test]
fn a_repeated_key_starts_again() {
    let output =
        |id: i64| format!(r#"[{{"prompt_token_ids":[{id}],"generation_token_ids":[2],"generation_log_probs":[-1]}}]"#);
    let body = format!(
        r#"{{"response":{{"output":{}}},"response":{{"output":{},"output":{}}}}}"#,
        output(5),
        output(6),
        output(7)
    );
    let (_, woven) = parse([body.as_bytes()], 1024).expect("a sound body");
    assert_eq!(woven.turns.len(), 1);
    assert_eq!(woven.rows[0].input_ids, [7, 2]);
    let emptied = format!(r#"{{"response":{{"output":{}}},"response":null}}"#, output(5));
    assert!(parse([emptied.as_bytes()], 1024).expect("a sound body").1.turns.is_empty());
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_give_one_answer(
        bytes in prop::collection::vec(
            prop::sample::select(br#"{}[],:"\u0aD8+-.eE159NIntrfals x"#.to_vec()), 0..60),
        size in 1..8_usize,
    ) {
        prop_assert_eq!(format!("{:?}", parse(bytes.chunks(size), 2)), format!("{:?}", parse([&bytes[..]], 2)));
    }

    #[test]
    fn bytes_around_turns_in_any_pieces_give_one_answer(
        prompt in "[0-9, \\[\\]\"tokenid:_x.e-]{0,40}",
        size in 1..12_usize,
    ) {
        let turn = r#"{"prompt_token_ids":[1,22,333],"generation_token_ids":[4,55],"generation_log_probs":[-1,-2.5]}"#;
        let next = format!(r#"{{"prompt_token_ids":[1,22,333,4,{prompt}],"generation_token_ids":[1],"generation_log_probs":[-1]}}"#);
        let body = format!(r#"{{"response":{{"output":[{turn},{next},{turn}]}}}}"#);
        prop_assert_eq!(
            format!("{:?}", parse(body.as_bytes().chunks(size), 2)),
            format!("{:?}", parse([body.as_bytes()], 2))
        );
    }
}
