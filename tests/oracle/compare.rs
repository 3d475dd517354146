//! The core's results, compared with one another and with the rules.

use _native::error::{EXCERPT_BYTES, Error, ErrorKind};
use _native::scan::Member;
use _native::weave::{Row, Woven};

use super::json::{self, Fault, Node, Value};
use super::rows::Joined;
use super::turns::{Call, TOKEN_FIELDS};
use super::{Parsed, Setup, rows, turns};

/// Two parses of the same bytes gave the same.
pub fn assert_same(one: &Result<Parsed, Error>, other: &Result<Parsed, Error>, how: &str) {
    match (one, other) {
        (Err(one), Err(other)) => assert_eq!(one, other, "{how}"),
        (Ok(one), Ok(other)) => {
            assert_eq!(String::from_utf8_lossy(&one.residual), String::from_utf8_lossy(&other.residual), "{how}");
            assert_eq!(one.residual, other.residual, "{how}");
            assert_eq!((&one.members, &one.response), (&other.members, &other.response), "{how}");
            let (one, other) = (&one.woven, &other.woven);
            assert_eq!(all_of(&one.rows), all_of(&other.rows), "{how}");
            assert_eq!((&one.rows, &one.turns), (&other.rows, &other.turns), "{how}");
            assert_eq!((&one.defects, &one.drift), (&other.defects, &other.drift), "{how}");
        }
        _ => panic!("{how}: {one:?} and {other:?}"),
    }
}

/// Rows with the bits of their logprobs.
fn all_of(rows: &[Row]) -> Vec<(&[i64], &[i64], Vec<u32>)> {
    rows.iter().map(|row| (&row.input_ids[..], &row.completion_mask[..], bits(&row.old_log_probs))).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The core gave what an independent reading of the body gives.
pub fn assert_as_the_rules(setup: &Setup, body: &[u8], found: &Result<Parsed, Error>) {
    match (read(setup, body), found) {
        (Err(fault), Err(error)) => assert_same_place(body, &fault, error),
        (Ok(document), Ok(found)) => {
            assert_same_document(&document, found);
            assert_same_rows(setup, &document, &found.woven);
            assert_nothing_lost(&found.woven);
        }
        (expected, found) => panic!("the rules: {expected:?}, the core: {found:?}"),
    }
}

/// The document, unless it is none, or more than may come.
fn read(setup: &Setup, body: &[u8]) -> Result<Node, Fault> {
    let limit = setup.settings.max_body_bytes.filter(|&limit| limit < body.len() as u64);
    let Some(limit) = limit else { return json::read(body) };
    match json::read(&body[..limit as usize]) {
        Err(fault) if fault.kind != ErrorKind::EndsEarly => Err(fault),
        whole_or_not => {
            let path = whole_or_not.err().map_or_else(Vec::new, |fault| fault.path);
            Err(Fault { kind: ErrorKind::BodyTooLarge(limit), offset: limit as usize, path })
        }
    }
}

fn assert_same_place(body: &[u8], fault: &Fault, error: &Error) {
    let kinds = (std::mem::discriminant(&fault.kind), std::mem::discriminant(&error.kind));
    assert_eq!(kinds.0, kinds.1, "{fault:?}, {error:?}");
    assert_eq!((fault.offset as u64, &fault.path), (error.offset, &error.path));
    let before = &body[..fault.offset];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let line = before.split(|&byte| byte == b'\n').count();
    assert_eq!((line as u64, (fault.offset - line_start + 1) as u64), (error.line, error.column));
    let seen = if matches!(fault.kind, ErrorKind::BodyTooLarge(_)) { fault.offset } else { body.len() };
    let end = seen.min(fault.offset + 1);
    assert_eq!(&body[end.saturating_sub(EXCERPT_BYTES)..end], &error.excerpt[..]);
    assert!(!error.to_string().is_empty());
}

// The residual

#[derive(Clone, Copy)]
enum Place {
    Document,
    Response,
    Output,
    Item,
    Other,
}

fn assert_same_document(document: &Node, found: &Parsed) {
    let left = json::read(&found.residual).expect("the residual is JSON");
    assert_same_value(Place::Document, document, &left);
    assert_members(Place::Document, Some(document), found, &found.members);
    assert_members(Place::Response, document.member("response"), found, &found.response);
}

/// The members of an object are where the core says that they are.
fn assert_members(place: Place, object: Option<&Node>, found: &Parsed, members: &[Member]) {
    let Some(Node { value: Value::Object(expected), .. }) = object else {
        assert_eq!(members, &[], "members of what is no object");
        return;
    };
    assert_eq!(expected.len(), members.len());
    for ((key, value), member) in expected.iter().zip(members) {
        assert_eq!(key, &member.key);
        let left = json::read(&found.residual[member.start..member.end]).expect("a member is JSON");
        assert_same_value(place_of(place, key), value, &left);
        assert_eq!(left.start, 0, "a member begins with its value");
        assert_eq!(left.end, member.end - member.start, "a member ends with its value");
    }
}

fn place_of(place: Place, key: &str) -> Place {
    match (place, key) {
        (Place::Document, "response") => Place::Response,
        (Place::Response, "output") => Place::Output,
        _ => Place::Other,
    }
}

/// What is left of a value is all of it, but for the token arrays of the items.
fn assert_same_value(place: Place, sent: &Node, left: &Node) {
    match (&sent.value, &left.value) {
        (Value::Object(sent), Value::Object(left)) => {
            let is_kept = |key: &str| !matches!(place, Place::Item) || !TOKEN_FIELDS.contains(&key);
            let kept: Vec<_> = sent.iter().filter(|(key, _)| is_kept(key)).collect();
            assert_eq!(kept.len(), left.len(), "{sent:?}, {left:?}");
            for ((key, sent), (left_key, left)) in kept.into_iter().zip(left) {
                assert_eq!(key, left_key);
                assert_same_value(place_of(place, key), sent, left);
            }
        }
        (Value::Array(sent), Value::Array(left)) => {
            assert_eq!(sent.len(), left.len());
            let place = if matches!(place, Place::Output) { Place::Item } else { Place::Other };
            sent.iter().zip(left).for_each(|(sent, left)| assert_same_value(place, sent, left));
        }
        (Value::String(sent), Value::String(left)) | (Value::Number(sent), Value::Number(left)) => {
            assert_eq!(sent, left);
        }
        (Value::NotFinite(sent), Value::NotFinite(left)) => assert_eq!(sent, left),
        (Value::Bool(sent), Value::Bool(left)) => assert_eq!(sent, left),
        (Value::Null, Value::Null) => {}
        _ => panic!("{sent:?} became {left:?}"),
    }
}

// Turns and rows

fn assert_same_rows(setup: &Setup, document: &Node, woven: &Woven) {
    let (calls, defects) = turns::take(document);
    assert_eq!(defects.len(), woven.defects.len(), "{:?}", woven.defects);
    for (expected, found) in defects.iter().zip(&woven.defects) {
        let facts = (expected.item_index, expected.field, expected.code);
        assert_eq!(facts, (found.item_index, found.field, found.code));
        let place = expected.field.zip(expected.element).map(|(field, element)| format!("{field}[{element}] "));
        assert!(found.detail.starts_with(&place.unwrap_or_default()), "{}", found.detail);
    }
    let (expected, joined, drift) =
        rows::reconcile(&calls, setup.settings.fork_threshold_tokens, setup.settings.branches);
    let expected: Vec<_> = expected.iter().map(|row| (&row.ids[..], &row.mask[..], bits(&row.log_probs))).collect();
    assert_eq!(all_of(&woven.rows), expected);
    assert_eq!(woven.drift, drift);
    assert_eq!(woven.turns.len(), calls.len());
    for ((call, joined), turn) in calls.iter().zip(&joined).zip(&woven.turns) {
        let Call { item_index, routed_experts_bytes, .. } = *call;
        let sizes = (call.prompt.len(), call.output.len(), routed_experts_bytes);
        assert_eq!(item_index, turn.item_index);
        assert_eq!(sizes, (turn.prompt_tokens, turn.output_tokens, turn.routed_experts_bytes));
        let Joined { transition, matched, drift, row, span, lost } = joined;
        let how = (*transition, *matched, *drift, *row);
        assert_eq!(how, (turn.transition, turn.matched_tokens, turn.drift_tokens, turn.row), "item {item_index}");
        assert_eq!((*span, lost), ((turn.span.start, turn.span.end), &turn.lost), "item {item_index}");
    }
}

/// Each generated token is trained in one row, or counted.
fn assert_nothing_lost(woven: &Woven) {
    let mut trained = 0;
    for row in &woven.rows {
        let length = row.input_ids.len();
        assert_eq!((row.completion_mask.len(), row.old_log_probs.len()), (length, length));
        for (&mask, value) in row.completion_mask.iter().zip(&row.old_log_probs) {
            assert!(mask == 1 && value.is_finite() || mask == 0 && value.to_bits() == 0, "mask {mask}, {value}");
            trained += mask as u64;
        }
    }
    let generated: usize = woven.turns.iter().map(|turn| turn.output_tokens).sum();
    assert_eq!(trained + woven.drift.discarded_tokens + woven.drift.unusable_tokens, generated as u64);
    for turn in &woven.turns {
        let kept = turn.row.map_or(0, |_| turn.span.len());
        assert_eq!(kept + turn.lost.len(), turn.output_tokens);
    }
}
