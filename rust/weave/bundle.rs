//! Whether the token arrays of an item are those of a model call.

use crate::scan::{IdList, Item, Shape};

const PROMPT: &str = "prompt_token_ids";
const GENERATION: &str = "generation_token_ids";
const LOG_PROBS: &str = "generation_log_probs";

/// What an item is, by its token arrays.
pub(super) enum Bundle {
    Turn,
    NoTurn,
    Defective(&'static str, &'static str, String),
}

/// Field by field, in the order prompt, generation, logprobs; the first thing that is wrong counts.
pub(super) fn judge(item: &Item) -> Bundle {
    let Item { prompt, generation, log_probs, .. } = item;
    if generation.shape == Shape::Absent || (generation.shape == Shape::List && generation.len == 0) {
        if prompt.len == 0 {
            return Bundle::NoTurn;
        }
        let detail = format!("{} prompt ids, but no {GENERATION}", prompt.len);
        return Bundle::Defective(GENERATION, "missing", detail);
    }
    if let Some(defective) = judge_ids(PROMPT, prompt).or_else(|| judge_ids(GENERATION, generation)) {
        return defective;
    }
    match (&log_probs.shape, &log_probs.bad) {
        (Shape::Absent, _) => Bundle::Defective(LOG_PROBS, "missing", format!("there are ids, but no {LOG_PROBS}")),
        (Shape::Other(what), _) => Bundle::Defective(LOG_PROBS, "not_a_list", format!("{LOG_PROBS} is {what}")),
        (Shape::List, Some(bad)) => {
            let detail = format!("{LOG_PROBS}[{}] is {}", bad.index, bad.text);
            Bundle::Defective(LOG_PROBS, "not_a_logprob", detail)
        }
        (Shape::List, None) if log_probs.len != generation.len => {
            let detail = format!("{} logprobs for {} generated ids", log_probs.len, generation.len);
            Bundle::Defective(LOG_PROBS, "length_mismatch", detail)
        }
        (Shape::List, None) => Bundle::Turn,
    }
}

fn judge_ids(field: &'static str, list: &IdList) -> Option<Bundle> {
    let (code, detail) = match (&list.shape, &list.bad) {
        (Shape::Absent, _) => ("missing", format!("there is no {field}")),
        (Shape::Other(what), _) => ("not_a_list", format!("{field} is {what}")),
        (Shape::List, _) if list.len == 0 => ("empty", format!("{field} is empty")),
        (Shape::List, Some(bad)) => ("not_an_id", format!("{field}[{}] is {}", bad.index, bad.text)),
        (Shape::List, None) => return None,
    };
    Some(Bundle::Defective(field, code, detail))
}
