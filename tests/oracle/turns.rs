//! Items → turns and defects, by the rules alone.

use std::collections::HashMap;

use super::json::{Node, Value};

/// One model call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub item_index: u64,
    pub prompt: Vec<i64>,
    pub output: Vec<i64>,
    pub mask: Vec<i64>,
    pub log_probs: Vec<f32>,
    pub routed_experts_bytes: u64,
}

/// One thing wrong with one item, and with which element of the field.
#[derive(Debug, PartialEq)]
pub struct Defect {
    pub item_index: u64,
    pub field: Option<&'static str>,
    pub code: &'static str,
    pub element: Option<usize>,
}

const PROMPT: &str = "prompt_token_ids";
const OUTPUT: &str = "generation_token_ids";
const LOG_PROBS: &str = "generation_log_probs";
/// The members that an item of `response.output` has for the core alone.
pub const TOKEN_FIELDS: [&str; 4] = [PROMPT, OUTPUT, LOG_PROBS, "routed_experts"];

type Wrong = (Option<&'static str>, &'static str, Option<usize>);

/// The turns and the defects of `response.output`.
pub fn take(document: &Node) -> (Vec<Call>, Vec<Defect>) {
    let output = document.member("response").and_then(|response| response.member("output"));
    let Some(Node { value: Value::Array(items), .. }) = output else { return Default::default() };
    let mut calls: Vec<Call> = Vec::new();
    let mut defects = Vec::new();
    for (item_index, item) in (0..).zip(items) {
        let Value::Object(members) = &item.value else { continue };
        let members: HashMap<&str, &Node> = members.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let found = call(item_index, &members).and_then(|call| match (call, calls.last()) {
            (Some(call), Some(last)) if told(&call) == told(last) => Err((None, "duplicate_turn", None)),
            (call, _) => Ok(call),
        });
        match found {
            Ok(call) => calls.extend(call),
            Err((field, code, element)) => defects.push(Defect { item_index, field, code, element }),
        }
    }
    (calls, defects)
}

/// What two tellings of one call have in common, bit for bit.
fn told(call: &Call) -> (&[i64], &[i64], &[i64], Vec<u32>) {
    (&call.prompt, &call.output, &call.mask, call.log_probs.iter().map(|value| value.to_bits()).collect())
}

fn call(item_index: u64, members: &HashMap<&str, &Node>) -> Result<Option<Call>, Wrong> {
    let value = |key| members.get(key).map(|node| &node.value);
    let is_empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(elements)) => elements.is_empty(),
        Some(_) => false,
    };
    if is_empty(value(OUTPUT)) {
        let is_told = matches!(value(PROMPT), Some(Value::Array(elements)) if !elements.is_empty());
        return if is_told { Err((Some(OUTPUT), "missing", None)) } else { Ok(None) };
    }
    let prompt = ids(PROMPT, value(PROMPT))?;
    if prompt.is_empty() {
        return Err((Some(PROMPT), "empty", None));
    }
    let output = ids(OUTPUT, value(OUTPUT))?;
    let values = list(LOG_PROBS, value(LOG_PROBS))?;
    if let Some(bad) = values.iter().position(|node| matches!(node.value, Value::Array(_) | Value::Object(_))) {
        return Err((Some(LOG_PROBS), "not_a_logprob", Some(bad)));
    }
    if values.len() != output.len() {
        return Err((Some(LOG_PROBS), "length_mismatch", None));
    }
    let usable: Vec<_> = values.iter().map(|node| log_prob(&node.value)).collect();
    Ok(Some(Call {
        item_index,
        prompt,
        output,
        mask: usable.iter().map(|value| i64::from(value.is_some())).collect(),
        log_probs: usable.into_iter().map(Option::unwrap_or_default).collect(),
        routed_experts_bytes: match members.get("routed_experts") {
            Some(node) if !matches!(node.value, Value::Null) => (node.end - node.start) as u64,
            _ => 0,
        },
    }))
}

fn list<'a>(field: &'static str, value: Option<&'a Value>) -> Result<&'a [Node], Wrong> {
    match value {
        None | Some(Value::Null) => Err((Some(field), "missing", None)),
        Some(Value::Array(elements)) => Ok(elements),
        Some(_) => Err((Some(field), "not_a_list", None)),
    }
}

fn ids(field: &'static str, value: Option<&Value>) -> Result<Vec<i64>, Wrong> {
    let ids = list(field, value)?.iter().enumerate().map(|(index, node)| {
        let digits = match &node.value {
            Value::String(text) => text.strip_prefix("token_id:").unwrap_or(text),
            Value::Number(text) => text,
            _ => "",
        };
        id(digits).ok_or((Some(field), "not_an_id", Some(index)))
    });
    ids.collect()
}

fn id(digits: &str) -> Option<i64> {
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let significant = digits.trim_start_matches('0');
    let id = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    (is_plain && id < 1 << 31).then_some(id)
}

fn log_prob(value: &Value) -> Option<f32> {
    let Value::Number(text) = value else { return None };
    let double: f64 = text.parse().ok()?;
    let single = double as f32;
    (double > -9999.0 && single.is_finite()).then_some(single)
}
