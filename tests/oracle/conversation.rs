//! Bytes → an input whose body is a conversation: prompts that go on from earlier ones, cut, changed and rewritten.
//!
//! Raw bytes seldom make prompts that repeat one another; this makes nothing else.

use std::fmt::Write;

use super::HEADER;

/// Most turns of one conversation: more than there may be open rows.
const MAX_TURNS: usize = 160;
/// Ids of one to ten digits, some of which are pieces of others.
const IDS: [i64; 8] = [1, 2, 11, 12, 112, 1_234_567, 12_345_678, 2_147_483_647];
const SEPARATORS: [&str; 8] = [",", ",", ",", ", ", " ,", ",\n", " , ", ",\r\n                                   \t  "];
const LOG_PROBS: [&str; 8] = ["-0.5", "-1.25e-05", "-0", "0.25", "null", "-9999.0", "NaN", "-1"];

struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> usize {
        self.0.next().map_or(0, |&byte| usize::from(byte))
    }

    /// One time in so many.
    fn is_one_in(&mut self, many: usize) -> bool {
        self.next() % many == 1
    }

    fn ids(&mut self, most: usize) -> Vec<i64> {
        (0..self.next() % (most + 1)).map(|_| IDS[self.next() % IDS.len()]).collect()
    }
}

/// An input of `check`, header and body.
pub fn input(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes(bytes.iter());
    let mut input: Vec<u8> = (0..HEADER).map(|_| bytes.next() as u8).collect();
    let mut told: Vec<Vec<i64>> = vec![Vec::new()];
    let mut items: Vec<String> = Vec::new();
    while bytes.0.len() > 0 && items.len() < MAX_TURNS {
        let again = items.last().filter(|_| bytes.is_one_in(16)).cloned();
        let item = again.unwrap_or_else(|| turn(&mut bytes, &mut told));
        items.push(item);
    }
    let separator = SEPARATORS[bytes.next() % SEPARATORS.len()];
    input.extend(format!(r#"{{"response":{{"output":[{}]}}}}"#, items.join(separator)).bytes());
    input
}

/// The item of a turn that goes on from an earlier one; what it tells is appended.
fn turn(bytes: &mut Bytes, told: &mut Vec<Vec<i64>>) -> String {
    let from = bytes.next();
    let mut prompt = told[if from < 128 { told.len() - 1 } else { from % told.len() }].clone();
    match bytes.next() % 8 {
        0 => prompt.truncate(bytes.next() % (prompt.len() + 1)),
        1 => {
            let at = bytes.next() % (prompt.len() + 1);
            prompt.splice(at.., bytes.ids(3));
        }
        2 if !prompt.is_empty() => {
            let at = bytes.next() % prompt.len();
            prompt[at] = IDS[bytes.next() % IDS.len()];
        }
        _ => {}
    }
    prompt.extend(bytes.ids(3));
    let generation = bytes.ids(4);
    let item = item(bytes, &prompt, &generation);
    told.push([prompt, generation].concat());
    item
}

fn item(bytes: &mut Bytes, prompt: &[i64], generation: &[i64]) -> String {
    let log_probs: Vec<_> = (0..generation.len() + usize::from(bytes.is_one_in(32)))
        .map(|_| LOG_PROBS[if bytes.is_one_in(4) { bytes.next() % LOG_PROBS.len() } else { 0 }].to_owned())
        .collect();
    let fields = [
        ("prompt_token_ids", ids(bytes, prompt)),
        ("generation_token_ids", ids(bytes, generation)),
        ("generation_log_probs", log_probs),
    ];
    let first = if bytes.is_one_in(4) { bytes.next() % 3 } else { 0 };
    let mut text = String::from("{");
    for (name, elements) in fields.iter().cycle().skip(first).take(fields.len()) {
        let elements = elements.join(SEPARATORS[bytes.next() % SEPARATORS.len()]);
        let _ = write!(text, r#""{name}":[{elements}],"#);
    }
    text + r#""type":"message"}"#
}

/// The texts of ids; now and then one is written otherwise.
fn ids(bytes: &mut Bytes, ids: &[i64]) -> Vec<String> {
    let odd = bytes.next() % 32;
    let write = |(at, id): (usize, &i64)| match bytes.next() % 4 {
        _ if at % 32 != odd => id.to_string(),
        0 => format!("\"{id}\""),
        1 => format!("\"token_id:{id:040}\""),
        2 => format!("\"00{id}\""),
        _ => format!("{id}.0"),
    };
    ids.iter().enumerate().map(write).collect()
}
