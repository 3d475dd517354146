//! Turns → rows, the plain way: every open row is compared in full with every prompt.

use _native::error::MAX_OPEN_ROWS;
use _native::weave::{Branches, Drift, Transition};

use super::turns::Call;

/// A training row while it grows, and when it is complete.
#[derive(Debug, Default)]
pub struct Row {
    pub ids: Vec<i64>,
    pub mask: Vec<i64>,
    pub log_probs: Vec<f32>,
    last_response_start: usize,
    last_turn: usize,
    /// Its turns.
    turns: Vec<usize>,
}

/// How a turn was joined, and what became of its generation.
#[derive(Debug)]
pub struct Joined {
    pub transition: Option<Transition>,
    pub matched: usize,
    pub drift: usize,
    /// Index into the rows that train something.
    pub row: Option<usize>,
    /// Where its ids stand in the row, as far as they are still there.
    pub span: (usize, usize),
    /// The ids that are in no row.
    pub lost: Vec<i64>,
}

/// The rows that train something, how each turn was joined, and the counts.
pub fn reconcile(calls: &[Call], threshold: i64, branches: Branches) -> (Vec<Row>, Vec<Joined>, Drift) {
    let mut rows: Vec<Row> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut joined: Vec<Joined> = Vec::new();
    let mut counts = Drift::default();
    for (number, call) in calls.iter().enumerate() {
        let place = (number > 0).then(|| place(&rows, &open, &call.prompt, threshold));
        let (transition, matched, drift) =
            place.as_ref().map_or((None, 0, 0), |place| (Some(place.transition), place.matched, place.drift));
        count(&mut counts, call, transition, drift);
        let row = match place {
            Some(place) if place.transition != Transition::Fork => {
                if place.transition == Transition::Realign {
                    let removed: i64 = rows[place.row].mask[place.matched..].iter().sum();
                    counts.discarded_tokens += removed as u64;
                    let last = *rows[place.row].turns.last().expect("a turn to realign");
                    joined[last].span.1 = place.matched;
                    cut(&mut rows[place.row], place.matched);
                }
                place.row
            }
            place => {
                let followed = place.map(|place| place.followed);
                close(&rows, &mut open, followed, branches);
                rows.push(Row::default());
                open.push(rows.len() - 1);
                rows.len() - 1
            }
        };
        let span = append(&mut rows[row], call, number);
        joined.push(Joined { transition, matched, drift, row: Some(row), span, lost: Vec::new() });
    }
    (settle(rows, &mut joined, calls), joined, counts)
}

/// Keep the rows that train something; say what became of the others' generations.
fn settle(rows: Vec<Row>, joined: &mut [Joined], calls: &[Call]) -> Vec<Row> {
    let is_trained = |row: &Row| row.mask.contains(&1);
    for (joined, call) in joined.iter_mut().zip(calls) {
        joined.row = joined.row.filter(|&row| is_trained(&rows[row]));
        let kept = joined.row.map_or(0, |_| joined.span.1 - joined.span.0);
        joined.lost = call.output[kept..].to_vec();
        joined.row = joined.row.map(|row| rows[..row].iter().filter(|row| is_trained(row)).count());
    }
    rows.into_iter().filter(is_trained).collect()
}

fn count(counts: &mut Drift, call: &Call, transition: Option<Transition>, drift: usize) {
    match transition {
        None => {}
        Some(Transition::Clean) => counts.clean += 1,
        Some(Transition::Realign) => counts.realign += 1,
        Some(Transition::Fork) => counts.fork += 1,
    }
    counts.drift_tokens += drift as u64;
    counts.drift_max = counts.drift_max.max(drift as u64);
    counts.unusable_tokens += call.mask.iter().filter(|&&mask| mask == 0).count() as u64;
    counts.positive_logprobs += call.log_probs.iter().filter(|&&value| value > 0.0).count() as u64;
}

fn cut(row: &mut Row, length: usize) {
    row.ids.truncate(length);
    row.mask.truncate(length);
    row.log_probs.truncate(length);
}

fn append(row: &mut Row, call: &Call, number: usize) -> (usize, usize) {
    row.ids.extend(&call.prompt[row.ids.len()..]);
    row.mask.resize(row.ids.len(), 0);
    row.log_probs.resize(row.ids.len(), 0.0);
    row.last_response_start = row.ids.len();
    row.ids.extend(&call.output);
    row.mask.extend(&call.mask);
    row.log_probs.extend(&call.log_probs);
    row.last_turn = number;
    row.turns.push(number);
    (row.last_response_start, row.ids.len())
}

/// Make room for a new open row.
fn close(rows: &[Row], open: &mut Vec<usize>, followed: Option<usize>, branches: Branches) {
    match branches {
        Branches::Linear => open.clear(),
        Branches::Best if open.len() == MAX_OPEN_ROWS => {
            let others = open.iter().copied().filter(|&row| Some(row) != followed);
            let unused = others.min_by_key(|&row| rows[row].last_turn);
            open.retain(|&row| Some(row) != unused);
        }
        Branches::Best => {}
    }
}

struct Place {
    row: usize,
    transition: Transition,
    matched: usize,
    drift: usize,
    /// The row that the prompt follows, whether it continues it or not.
    followed: usize,
}

/// Clean to the longest row, else by realigning to the one it repeats most of, else to a new one; of equals the newest.
fn place(rows: &[Row], open: &[usize], prompt: &[i64], threshold: i64) -> Place {
    let followed = followed(rows, open, prompt);
    let judge = |row: usize| {
        let matched = alike(&rows[row].ids, prompt);
        let drift = rows[row].ids.len() - matched;
        let transition = if drift == 0 {
            Transition::Clean
        } else if matched >= rows[row].last_response_start && (drift as i64) < threshold {
            Transition::Realign
        } else {
            Transition::Fork
        };
        Place { row, transition, matched, drift, followed }
    };
    for kind in [Transition::Clean, Transition::Realign] {
        let places = open.iter().map(|&row| judge(row)).filter(|place| place.transition == kind);
        if let Some(best) = places.max_by_key(|place| (place.matched, place.row)) {
            return best;
        }
    }
    judge(followed)
}

/// The row of the turn before, or the first other that repeats more, and so on until none does.
fn followed(rows: &[Row], open: &[usize], prompt: &[i64]) -> usize {
    let matched = |row: usize| alike(&rows[row].ids, prompt);
    let mut row = open.iter().copied().max_by_key(|&row| rows[row].last_turn).expect("an open row");
    while let Some(&other) = open.iter().find(|&&other| matched(other) > matched(row)) {
        row = other;
    }
    row
}

fn alike(held: &[i64], prompt: &[i64]) -> usize {
    held.iter().zip(prompt).take_while(|(held, sent)| held == sent).count()
}
