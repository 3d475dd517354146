//! Bytes → JSON or not, and where not; the same for every way of cutting.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails

mod support;

use _native::error::{Error, ErrorKind, MAX_DEPTH, MAX_NUMBER_CHARS};
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
