//! Turns → rows when a prompt may continue any open row.

#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails
// Small numbers, all of them.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod support;

use _native::error::MAX_OPEN_ROWS;
use _native::weave::{Branches, Transition, Woven};
use proptest::prelude::*;
use support::{Call, body, parse_branches};

use Transition::{Clean, Fork, Realign};

type Turn = (Vec<i64>, Vec<i64>);

fn text_of(turns: &[Turn], separator: &str) -> String {
    let log_probs = ["-0.25"; 8];
    let calls: Vec<_> = turns.iter().map(|(prompt, said)| Call(prompt, said, &log_probs[..said.len()])).collect();
    body(&calls, separator)
}

fn best(turns: &[Turn], threshold: i64) -> Woven {
    parse_branches([text_of(turns, ",").as_bytes()], threshold, Branches::Best).expect("a sound body").1
}

fn turns(turns: &[(&[i64], &[i64])]) -> Vec<Turn> {
    turns.iter().map(|(prompt, said)| (prompt.to_vec(), said.to_vec())).collect()
}

fn kinds(woven: &Woven) -> Vec<Transition> {
    woven.turns.iter().filter_map(|turn| turn.transition).collect()
}

fn ids(woven: &Woven) -> Vec<Vec<i64>> {
    woven.rows.iter().map(|row| row.input_ids.clone()).collect()
}

#[test]
fn two_sub_agents_in_turn_are_two_rows() {
    let found = best(&turns(&[(&[1], &[2]), (&[9], &[8]), (&[1, 2, 5], &[3]), (&[9, 8, 5], &[7])]), 1024);
    assert_eq!(kinds(&found), [Fork, Clean, Clean]);
    assert_eq!(ids(&found), [vec![1, 2, 5, 3], vec![9, 8, 5, 7]]);
    assert_eq!(found.turns.iter().map(|turn| turn.row).collect::<Vec<_>>(), [Some(0), Some(1), Some(0), Some(1)]);
}

#[test]
fn sub_agents_may_share_a_long_beginning() {
    let told = turns(&[
        (&[1, 2, 3], &[4]),
        (&[1, 2, 3, 9], &[8]),
        (&[1, 2, 7], &[6]),
        (&[1, 2, 3, 4, 5], &[5]),
        (&[1, 2, 7, 6, 5], &[5]),
        (&[1, 2, 3, 9, 8, 5], &[5]),
    ]);
    let found = best(&told, 0);
    assert_eq!(kinds(&found), [Fork, Fork, Clean, Clean, Clean]);
    assert_eq!(ids(&found), [vec![1, 2, 3, 4, 5, 5], vec![1, 2, 3, 9, 8, 5, 5], vec![1, 2, 7, 6, 5, 5]]);
}

#[test]
fn a_compaction_begins_its_own_row() {
    let found = best(&turns(&[(&[1, 2, 3], &[4, 5]), (&[1, 9], &[6]), (&[1, 9, 6, 7], &[8])]), 0);
    assert_eq!(kinds(&found), [Fork, Clean]);
    assert_eq!(ids(&found), [vec![1, 2, 3, 4, 5], vec![1, 9, 6, 7, 8]]);
}

#[test]
fn a_rollback_forks_unless_it_ends_where_a_row_does() {
    // Back to where the first turn ended: no open row ends there any more.
    let told = turns(&[(&[1], &[2]), (&[1, 2, 3], &[4]), (&[1, 2, 9], &[5])]);
    assert_eq!(kinds(&best(&told, 1024)), [Clean, Fork]);
}

#[test]
fn clean_goes_before_realign_and_the_longest_before_the_newest() {
    // [1 2] and [1 2 3 4] are both open; the prompt repeats all of both.
    let told = turns(&[(&[1], &[2]), (&[1, 2], &[3, 4]), (&[7], &[7]), (&[1, 2, 3, 4, 5], &[6])]);
    let found = best(&told, 0);
    assert_eq!(ids(&found), [vec![1, 2, 3, 4, 5, 6], vec![7, 7]]);
    // It leaves the longer one in its response: the shorter one is clean.
    let told = turns(&[(&[1], &[2]), (&[1], &[2, 3, 4]), (&[1, 2, 5], &[6])]);
    let found = best(&told, 1);
    assert_eq!(kinds(&found), [Fork, Clean]);
    assert_eq!(ids(&found), [vec![1, 2, 5, 6], vec![1, 2, 3, 4]]);
}

#[test]
fn a_row_that_is_not_the_last_can_be_realigned() {
    let told = turns(&[(&[1, 2], &[3, 4]), (&[9], &[8]), (&[1, 2, 3, 7], &[6])]);
    let found = best(&told, 1024);
    assert_eq!(kinds(&found), [Fork, Realign]);
    assert_eq!(ids(&found), [vec![1, 2, 3, 7, 6], vec![9, 8]]);
    assert_eq!((found.turns[0].span.clone(), &found.turns[0].lost[..]), (2..3, &[4][..]));
    assert_eq!(found.drift.discarded_tokens, 1);
}

#[test]
fn one_row_more_than_may_stay_open_closes_the_longest_unused() {
    let mut told: Vec<Turn> = (0..=MAX_OPEN_ROWS as i64).map(|row| (vec![row], vec![1000 + row])).collect();
    told.push((vec![1, 1001, 7], vec![8])); // still open
    told.push((vec![0, 1000, 7], vec![8])); // closed by the last of them
    let found = best(&told, 0);
    assert_eq!(kinds(&found)[MAX_OPEN_ROWS..], [Clean, Fork]);
    assert_eq!(found.rows.len(), MAX_OPEN_ROWS + 2);
    assert_eq!(found.rows[1].input_ids, [1, 1001, 7, 8]);
}

/// The same choice, the plain way: every row compared in full with every prompt.
fn reference(turns: &[Turn], threshold: i64) -> Vec<(Vec<i64>, Vec<i64>)> {
    let mut rows: Vec<(Vec<i64>, Vec<i64>, usize)> = Vec::new();
    for (prompt, said) in turns {
        let alike = |ids: &[i64]| ids.iter().zip(prompt).take_while(|(held, sent)| held == sent).count();
        let fits = rows.iter().enumerate().filter_map(|(number, (ids, _, start))| {
            let (matched, drift) = (alike(ids), ids.len() - alike(ids));
            let kind = if drift == 0 { 2 } else { 1 };
            (drift == 0 || (matched >= *start && (drift as i64) < threshold)).then_some((kind, matched, number))
        });
        let row = fits.max().map_or_else(
            || {
                rows.push((Vec::new(), Vec::new(), 0));
                rows.len() - 1
            },
            |(_, _, number)| number,
        );
        let (ids, mask, start) = &mut rows[row];
        let matched = alike(ids);
        ids.truncate(matched);
        mask.truncate(matched);
        ids.extend(&prompt[matched..]);
        mask.resize(ids.len(), 0);
        *start = ids.len();
        ids.extend(said);
        mask.resize(ids.len(), 1);
    }
    rows.into_iter().filter(|(_, mask, _)| mask.contains(&1)).map(|(ids, mask, _)| (ids, mask)).collect()
}

/// Conversations over few ids, so that prompts often begin alike: each continues an earlier turn, perhaps cut or changed.
fn conversation() -> impl Strategy<Value = Vec<Turn>> {
    let ids = |least| prop::collection::vec(0..4_i64, least..5);
    let turn = (ids(0), ids(1), any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4_u8);
    (ids(1), ids(1), prop::collection::vec(turn, 0..10)).prop_map(|(prompt, said, turns)| {
        let mut all = vec![(prompt, said)];
        for (new, said, base, keep, change) in turns {
            let (prompt, before) = &all[base.index(all.len())];
            let mut prompt: Vec<i64> = prompt.iter().chain(before).copied().collect();
            if change == 0 {
                prompt.truncate(1 + keep.index(prompt.len()));
            }
            if change == 1 {
                let at = keep.index(prompt.len());
                prompt[at] = (prompt[at] + 1) % 4;
            }
            prompt.extend(new);
            all.push((prompt, said));
        }
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn rows_are_those_of_the_plain_way(
        turns in conversation(),
        threshold in prop::sample::select(vec![0, 1, 2, 3, 1024]),
        separator in prop::sample::select(vec![",", ", ", " ,\n "]),
        size in 1..40_usize,
    ) {
        let text = text_of(&turns, separator);
        let (_, found) =
            parse_branches(text.as_bytes().chunks(size), threshold, Branches::Best).expect("a sound body");
        if found.defects.is_empty() {
            let rows: Vec<_> =
                found.rows.iter().map(|row| (row.input_ids.clone(), row.completion_mask.clone())).collect();
            prop_assert_eq!(rows, reference(&turns, threshold));
        }
        let trained: usize = found.rows.iter().flat_map(|row| &row.completion_mask).filter(|&&mask| mask == 1).count();
        let generated: usize = found.turns.iter().map(|turn| turn.output_tokens).sum();
        prop_assert_eq!(trained + found.drift.discarded_tokens as usize, generated);
        for turn in &found.turns {
            let row = &found.rows[turn.row.expect("something is trained")];
            prop_assert!(row.completion_mask[turn.span.clone()].iter().all(|&mask| mask == 1));
            prop_assert_eq!(turn.span.len() + turn.lost.len(), turn.output_tokens);
        }
    }
}
