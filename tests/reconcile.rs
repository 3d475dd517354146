//! Turns → rows: the table of TRL's reconciler, and what must hold for every conversation.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails
// Small numbers, all of them.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod support;

use _native::weave::{self, Row, Transition, Woven};
use proptest::prelude::*;
use support::{Call, body, parse, woven};

type Turn = (&'static [i64], &'static [i64]);

/// name, fork threshold, turns; transitions, rows as (ids, mask).
type Case = (&'static str, i64, &'static [Turn], &'static [Transition], &'static [Turn]);

use Transition::{Clean, Fork, Realign};

const CASES: &[Case] = &[
    ("one turn", 1024, &[(&[1, 2], &[3, 4])], &[], &[(&[1, 2, 3, 4], &[0, 0, 1, 1])]),
    (
        "clean",
        1024,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 3, 4, 5], &[6])],
        &[Clean],
        &[(&[1, 2, 3, 4, 5, 6], &[0, 0, 1, 1, 0, 1])],
    ),
    (
        "prompt equals what is held",
        1024,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 3, 4], &[6])],
        &[Clean],
        &[(&[1, 2, 3, 4, 6], &[0, 0, 1, 1, 1])],
    ),
    (
        "realign",
        2,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 3, 9, 5], &[6])],
        &[Realign],
        &[(&[1, 2, 3, 9, 5, 6], &[0, 0, 1, 0, 0, 1])],
    ),
    (
        "drift equals the threshold",
        2,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 8, 9, 5], &[6])],
        &[Fork],
        &[(&[1, 2, 3, 4], &[0, 0, 1, 1]), (&[1, 2, 8, 9, 5, 6], &[0, 0, 0, 0, 0, 1])],
    ),
    (
        "drift below the threshold",
        3,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 8, 9, 5], &[6])],
        &[Realign],
        &[(&[1, 2, 8, 9, 5, 6], &[0, 0, 0, 0, 0, 1])],
    ),
    (
        "the old response vanishes",
        1024,
        &[(&[1, 2], &[3, 4]), (&[1, 2], &[6])],
        &[Realign],
        &[(&[1, 2, 6], &[0, 0, 1])],
    ),
    (
        "prompt ends inside the response",
        1024,
        &[(&[1, 2], &[3, 4, 5]), (&[1, 2, 3], &[6])],
        &[Realign],
        &[(&[1, 2, 3, 6], &[0, 0, 1, 1])],
    ),
    (
        "prompt ends before the response",
        1024,
        &[(&[1, 2, 3], &[4]), (&[1, 2], &[6])],
        &[Fork],
        &[(&[1, 2, 3, 4], &[0, 0, 0, 1]), (&[1, 2, 6], &[0, 0, 1])],
    ),
    (
        "drift before the response",
        1024,
        &[(&[1, 2], &[3, 4]), (&[1, 7, 3, 4, 5], &[6])],
        &[Fork],
        &[(&[1, 2, 3, 4], &[0, 0, 1, 1]), (&[1, 7, 3, 4, 5, 6], &[0, 0, 0, 0, 0, 1])],
    ),
    (
        "drift in an earlier response",
        1024,
        &[(&[1], &[2, 3]), (&[1, 2, 3, 4], &[5, 6]), (&[1, 2, 9, 4, 5, 6], &[8])],
        &[Clean, Fork],
        &[(&[1, 2, 3, 4, 5, 6], &[0, 1, 1, 0, 1, 1]), (&[1, 2, 9, 4, 5, 6, 8], &[0, 0, 0, 0, 0, 0, 1])],
    ),
    (
        "threshold zero never discards",
        0,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 3], &[6])],
        &[Fork],
        &[(&[1, 2, 3, 4], &[0, 0, 1, 1]), (&[1, 2, 3, 6], &[0, 0, 0, 1])],
    ),
    (
        "sub-agents in turn",
        1024,
        &[(&[1], &[2]), (&[9], &[8]), (&[1, 2], &[3]), (&[9, 8], &[7])],
        &[Fork, Fork, Fork],
        &[(&[1, 2], &[0, 1]), (&[9, 8], &[0, 1]), (&[1, 2, 3], &[0, 0, 1]), (&[9, 8, 7], &[0, 0, 1])],
    ),
    (
        "siblings",
        1,
        &[(&[1, 2], &[3, 4]), (&[1, 2, 3], &[5])],
        &[Fork],
        &[(&[1, 2, 3, 4], &[0, 0, 1, 1]), (&[1, 2, 3, 5], &[0, 0, 0, 1])],
    ),
    (
        "numbers that begin alike",
        1024,
        &[(&[1, 2], &[3, 45]), (&[1, 2, 3, 4], &[6]), (&[1, 2, 3, 46], &[7])],
        &[Realign, Fork],
        &[(&[1, 2, 3, 4, 6], &[0, 0, 1, 0, 1]), (&[1, 2, 3, 46, 7], &[0, 0, 0, 0, 1])],
    ),
];

fn calls<'a>(turns: &'a [Turn], log_probs: &'a [&'a str]) -> Vec<Call<'a>> {
    turns.iter().map(|(prompt, generation)| Call(prompt, generation, &log_probs[..generation.len()])).collect()
}

/// The trained turns of a row, as the turns tell it.
fn spans_of(woven: &Woven, row: usize) -> Vec<[i64; 3]> {
    let inside = |turn: &&(usize, &weave::Turn)| turn.1.row == Some(row) && !turn.1.span.is_empty();
    let turns: Vec<_> = woven.turns.iter().enumerate().collect();
    turns
        .iter()
        .filter(inside)
        .map(|(number, turn)| [*number as i64, turn.span.start as i64, turn.span.end as i64])
        .collect()
}

#[test]
fn a_row_tells_which_turn_its_trained_tokens_are_of() {
    // The second turn is realigned to nothing, the third in part; the fourth has no usable logprob, the fifth one.
    let turns: &[(&[i64], &[i64], &[&str])] = &[
        (&[1], &[2, 3], &["-1", "-1"]),
        (&[1, 2, 3, 4], &[5], &["-1"]),
        (&[1, 2, 3, 4, 6], &[7, 8], &["-1", "-1"]),
        (&[1, 2, 3, 4, 6, 7, 9], &[10], &["null"]),
        (&[1, 2, 3, 4, 6, 7, 9, 10], &[11, 12], &["null", "-1"]),
        (&[2], &[3], &["-1"]),
    ];
    let calls: Vec<_> = turns.iter().map(|(prompt, generation, probs)| Call(prompt, generation, probs)).collect();
    let woven = woven(&body(&calls, ","), 1024);
    assert_eq!(woven.rows[0].turn_spans, [[0, 1, 3], [2, 5, 6], [4, 8, 10]]);
    assert_eq!(woven.rows[0].completion_mask, [0, 1, 1, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(woven.rows[1].turn_spans, [[5, 1, 2]]);
}

#[test]
fn table() {
    for (name, threshold, turns, transitions, rows) in CASES {
        for separator in [",", ", ", " ,", ",\n  "] {
            let woven = woven(&body(&calls(turns, &["-0.5"; 8]), separator), *threshold);
            let found: Vec<_> = woven.turns.iter().filter_map(|turn| turn.transition).collect();
            assert_eq!(found, *transitions, "{name}");
            let expected: Vec<Row> = rows
                .iter()
                .enumerate()
                .map(|(number, (ids, mask))| Row {
                    input_ids: ids.to_vec(),
                    completion_mask: mask.to_vec(),
                    old_log_probs: mask.iter().map(|&mask| if mask == 1 { -0.5 } else { 0.0 }).collect(),
                    turn_spans: spans_of(&woven, number),
                })
                .collect();
            assert_eq!(woven.rows, expected, "{name}, separator {separator:?}");
        }
    }
}

#[test]
fn drift_is_counted_forks_included() {
    let turns: &[Turn] = &[(&[1], &[2]), (&[9], &[8]), (&[1, 2], &[3]), (&[9, 8], &[7])];
    let drift = woven(&body(&calls(turns, &["-1"; 4]), ","), 1024).drift;
    assert_eq!((drift.fork, drift.drift_tokens, drift.drift_max), (3, 7, 3));
}

#[test]
fn a_call_told_twice_is_one_turn() {
    let turns: &[Turn] = &[(&[1, 2], &[3]), (&[1, 2], &[3]), (&[1, 2, 3], &[4]), (&[1, 2, 3], &[4])];
    let found = woven(&body(&calls(turns, &["-1"; 4]), ","), 1024);
    assert_eq!(found.turns.len(), 2);
    assert_eq!(
        found.defects.iter().map(|it| (it.item_index, it.code)).collect::<Vec<_>>(),
        [(1, "duplicate_turn"), (3, "duplicate_turn")]
    );
    // The same ids with another logprob are another call.
    let other = [Call(&[1, 2], &[3], &["-1"]), Call(&[1, 2], &[3], &["-2"])];
    assert_eq!(woven(&body(&other, ","), 1024).turns.len(), 2);
}

#[test]
fn equal_ids_may_be_written_otherwise() {
    let text = body(&calls(&[(&[10, 20], &[30, 40])], &["-1"; 2]), ",");
    let again = r#"{"prompt_token_ids":[ "token_id:10" ,20 , "30",40,  50],"generation_token_ids":[6],"generation_log_probs":[-1]}"#;
    let text = text.replace(r#""type":"message"}"#, &format!(r#""type":"message"}},{again}"#));
    let found = woven(&text, 1024);
    assert_eq!(found.rows[0].input_ids, [10, 20, 30, 40, 50, 6]);
    assert_eq!(found.turns[1].transition, Some(Clean));
}

#[test]
fn a_realign_moves_what_is_left_of_a_turn() {
    let turns: &[Turn] = &[(&[1, 2], &[3, 4, 5]), (&[1, 2, 3, 9], &[6])];
    let found = woven(&body(&calls(turns, &["-1"; 4]), ","), 1024);
    assert_eq!(found.turns.iter().map(|turn| turn.span.clone()).collect::<Vec<_>>(), [2..3, 4..5]);
    assert_eq!(found.drift.discarded_tokens, 2);
}

/// The reconciler once more, the plain way: token by token, on whole lists.
fn reference(turns: &[(Vec<i64>, Vec<i64>)], threshold: i64) -> Vec<(Vec<i64>, Vec<i64>)> {
    let mut rows: Vec<(Vec<i64>, Vec<i64>, usize)> = Vec::new();
    for (prompt, generation) in turns {
        let matched =
            rows.last().map_or(0, |(ids, _, _)| ids.iter().zip(prompt).take_while(|(held, sent)| held == sent).count());
        let drift = rows.last().map_or(0, |(ids, _, _)| ids.len() - matched);
        let realigns = rows.last().is_some_and(|(_, _, start)| matched >= *start && (drift as i64) < threshold);
        if rows.is_empty() || (drift > 0 && !realigns) {
            rows.push((prompt.clone(), vec![0; prompt.len()], 0));
        }
        if let Some((ids, mask, start)) = rows.last_mut() {
            let keep = ids.iter().zip(prompt).take_while(|(held, sent)| held == sent).count();
            ids.truncate(keep);
            mask.truncate(keep);
            ids.extend(&prompt[keep..]);
            mask.resize(ids.len(), 0);
            *start = ids.len();
            ids.extend(generation);
            mask.resize(ids.len(), 1);
        }
    }
    rows.into_iter().filter(|(_, mask, _)| mask.contains(&1)).map(|(ids, mask, _)| (ids, mask)).collect()
}

/// A conversation: each prompt is the row so far, perhaps cut, perhaps changed, with something new behind it.
fn conversation() -> impl Strategy<Value = Vec<(Vec<i64>, Vec<i64>)>> {
    let ids = |least| prop::collection::vec(prop_oneof![0..12_i64, 0..200_000_i64], least..6);
    let turn = (ids(0), ids(1), 0.0..1.0_f64, prop::option::of((0.0..1.0_f64, 0..12_i64)));
    (ids(1), ids(1), prop::collection::vec(turn, 0..7)).prop_map(|(prompt, generation, turns)| {
        let mut all = vec![(prompt, generation)];
        for (new, generation, keep, change) in turns {
            let (prompt, said) = &all[all.len() - 1];
            let mut prompt: Vec<i64> = prompt.iter().chain(said).copied().collect();
            let at = |share: f64, length: usize| (share * length as f64) as usize;
            if keep < 0.3 {
                prompt.truncate(at(keep / 0.3, prompt.len()).max(1));
            }
            if let Some((share, id)) = change {
                let index = at(share, prompt.len()).min(prompt.len() - 1);
                prompt[index] = id;
            }
            prompt.extend(new);
            all.push((prompt, generation));
        }
        all
    })
}

proptest! {
    #[test]
    fn rows_are_those_of_the_plain_way(
        turns in conversation(),
        threshold in prop::sample::select(vec![-1, 0, 1, 2, 3, 1024]),
        separator in prop::sample::select(vec![",", ", ", ",\n   "]),
        size in 1..40_usize,
    ) {
        let log_probs = ["-0.25"; 8];
        let calls: Vec<_> =
            turns.iter().map(|(prompt, said)| Call(prompt, said, &log_probs[..said.len()])).collect();
        let text = body(&calls, separator);
        let (_, found) = parse(text.as_bytes().chunks(size), threshold).expect("a sound body");
        if found.defects.is_empty() {
            let rows: Vec<_> = found.rows.iter().map(|row| (row.input_ids.clone(), row.completion_mask.clone())).collect();
            prop_assert_eq!(rows, reference(&turns, threshold));
        }
        let (residual, whole) = parse([text.as_bytes()], threshold).expect("a sound body");
        prop_assert_eq!(&whole.rows, &found.rows);
        prop_assert_eq!(&whole.turns, &found.turns);
        prop_assert!(!residual.contains("token_ids"));
        let trained: usize = whole.rows.iter().flat_map(|row| &row.completion_mask).filter(|&&mask| mask == 1).count();
        let generated: usize = whole.turns.iter().map(|turn| turn.output_tokens).sum();
        prop_assert_eq!(trained + whole.drift.discarded_tokens as usize, generated);
    }
}
