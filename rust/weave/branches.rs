//! Which open row a prompt continues.

use std::ops::Range;

use super::Transition;
use super::row::OpenRow;
use crate::error::MAX_OPEN_ROWS;
use crate::scan::{Held, Item};

/// Which rows stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// The last one, as in TRL: what leaves it closes it.
    Linear,
    /// All of them, up to [`MAX_OPEN_ROWS`]: a prompt continues the one that it fits best.
    Best,
}

/// Where a turn goes, and how it gets there.
#[derive(Debug)]
pub(super) struct Place {
    /// Index of the row among the open ones; the row to begin from for a fork.
    pub(super) row: usize,
    /// None for the first turn of all.
    pub(super) transition: Option<Transition>,
    /// Ids of that row that the prompt repeats.
    pub(super) matched: usize,
    /// Those that it doesn't.
    pub(super) drift: usize,
}

/// The open rows. There is always one; before the first turn it is empty.
#[derive(Debug)]
pub(super) struct OpenRows {
    branches: Branches,
    rows: Vec<OpenRow>,
    /// For each two rows, how many ids they begin with alike.
    shared: Vec<Vec<usize>>,
    /// When each row was last continued.
    used: Vec<usize>,
    begun: usize,
    turns: usize,
    /// The row of the turn before.
    last: usize,
    /// The row that the prompt at hand follows: no other repeats more of it.
    guide: usize,
}

impl OpenRows {
    pub(super) fn new(branches: Branches) -> Self {
        Self {
            branches,
            rows: vec![OpenRow::default()],
            shared: vec![vec![0]],
            used: vec![0],
            begun: 1,
            turns: 0,
            last: 0,
            guide: 0,
        }
    }

    pub(super) fn held(&self) -> Held<'_> {
        let OpenRow { ids, text, .. } = &self.rows[self.guide];
        Held { ids, text, is_alone: self.rows.len() == 1 }
    }

    pub(super) fn row(&self, row: usize) -> &OpenRow {
        &self.rows[row]
    }

    pub(super) fn last(&self) -> &OpenRow {
        &self.rows[self.last]
    }

    pub(super) fn pop(&mut self) -> Option<OpenRow> {
        self.rows.pop()
    }

    /// A prompt begins: most often it continues the row of the turn before.
    pub(super) fn follow_last(&mut self) {
        self.guide = self.last;
    }

    /// The prompt repeats `matched` ids of the row that it follows, and then says `id`: follow another that does, too.
    /// Gives how much text the repeated ids take there.
    pub(super) fn follow(&mut self, matched: usize, id: i64) -> Option<usize> {
        let shared = &self.shared[self.guide];
        let other = (0..self.rows.len()).find(|&other| {
            other != self.guide && shared[other] >= matched && self.rows[other].ids.get(matched) == Some(&id)
        })?;
        self.guide = other;
        Some(self.rows[other].text_of(matched))
    }

    /// How many ids of a row a prompt repeats that repeats `matched` of the one it follows.
    fn matched_by(&self, row: usize, matched: usize) -> usize {
        if row == self.guide { matched } else { matched.min(self.shared[self.guide][row]) }
    }

    /// Where a turn goes: clean to the longest row, else by realigning to the one it repeats most of, else to a new one.
    pub(super) fn place(&self, matched: usize, fork_threshold_tokens: i64) -> Place {
        if self.turns == 0 {
            return Place { row: 0, transition: None, matched: 0, drift: 0 };
        }
        let places = self.rows.iter().enumerate().map(|(row, open)| {
            let matched = self.matched_by(row, matched);
            let drift = open.ids.len() - matched;
            let transition = if drift == 0 {
                Transition::Clean
            } else if matched >= open.last_response_start
                && i64::try_from(drift).is_ok_and(|drift| drift < fork_threshold_tokens)
            {
                Transition::Realign
            } else {
                Transition::Fork
            };
            Place { row, transition: Some(transition), matched, drift }
        });
        let preference = |place: &Place| {
            let kind = match place.transition {
                Some(Transition::Fork) => (0, place.row == self.guide),
                Some(Transition::Realign) => (1, false),
                Some(Transition::Clean) | None => (2, false),
            };
            (kind, place.matched, self.rows[place.row].begun)
        };
        places.max_by_key(preference).unwrap_or(Place { row: 0, transition: None, matched: 0, drift: 0 })
    }

    /// Begin a new row from what the prompt repeats of the one it follows. Gives the row that this completes.
    pub(super) fn fork(&mut self, matched: usize, matched_text: usize) -> Option<OpenRow> {
        let begun = self.begun;
        self.begun += 1;
        if self.branches == Branches::Linear {
            return Some(self.rows[0].turn_over(begun, matched, matched_text));
        }
        let complete = (self.rows.len() == MAX_OPEN_ROWS).then(|| self.close_longest_unused());
        let row = self.rows[self.guide].branch(begun, matched, matched_text);
        let mut shared: Vec<_> = (0..self.rows.len()).map(|other| self.matched_by(other, matched)).collect();
        for (other, &both) in shared.iter().enumerate() {
            self.shared[other].push(both);
        }
        shared.push(matched);
        self.shared.push(shared);
        self.used.push(self.turns);
        self.rows.push(row);
        complete
    }

    fn close_longest_unused(&mut self) -> OpenRow {
        let unused = |&row: &usize| if row == self.guide { usize::MAX } else { self.used[row] };
        let row = (0..self.rows.len()).min_by_key(unused).unwrap_or(0);
        self.shared.remove(row);
        for shared in &mut self.shared {
            shared.remove(row);
        }
        self.used.remove(row);
        self.guide -= usize::from(self.guide > row);
        self.rows.remove(row)
    }

    /// Take a realigned row back to what the prompt repeats of it. Gives how many trained tokens that removed.
    pub(super) fn cut(&mut self, row: usize, tokens: usize) -> usize {
        for other in 0..self.rows.len() {
            let both = self.shared[row][other].min(tokens);
            self.shared[row][other] = both;
            self.shared[other][row] = both;
        }
        let text = self.rows[row].text_of(tokens);
        self.rows[row].cut(tokens, text)
    }

    /// Append a turn to its row. Gives where its generated ids stand.
    pub(super) fn append(&mut self, place: &Place, item: &mut Item, separator: &[u8], turn: usize) -> Range<usize> {
        let row = if place.transition == Some(Transition::Fork) { self.rows.len() - 1 } else { place.row };
        let from = self.rows[row].ids.len();
        self.repeat_from_guide(row, item.prompt.matched, separator);
        self.rows[row].append_list(&mut item.prompt, separator);
        let span = self.rows[row].respond(item, separator, turn);
        self.share(row, from);
        self.turns += 1;
        self.used[row] = self.turns;
        self.last = row;
        self.guide = row;
        span
    }

    /// The prompt repeats more of the row that it follows than of the one it continues: that part is new there.
    fn repeat_from_guide(&mut self, row: usize, matched: usize, separator: &[u8]) {
        let from = self.rows[row].ids.len();
        if from >= matched {
            return;
        }
        let guide = &self.rows[self.guide];
        let (start, end) = (guide.text_of(from), guide.text_of(matched));
        let ids = guide.ids[from..matched].to_vec();
        let text = guide.text[start..end].to_vec();
        // Between two ids stands one comma, which the text begins with unless it begins the row.
        let begin = memchr::memchr(b',', &text).filter(|_| from > 0).map_or(0, |comma| comma + 1);
        let space = text[begin..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.rows[row].append(&ids, &text[begin + space..], separator);
    }

    /// A row has grown from `from` ids on: see with which others it has become more alike.
    fn share(&mut self, row: usize, from: usize) {
        for other in 0..self.rows.len() {
            if other == row || self.shared[row][other] < from {
                continue;
            }
            let (mine, theirs) = (&self.rows[row].ids, &self.rows[other].ids);
            let both = from + mine[from..].iter().zip(&theirs[from..]).take_while(|(a, b)| a == b).count();
            self.shared[row][other] = both;
            self.shared[other][row] = both;
        }
    }

    /// Whether the item tells the turn before it once more.
    pub(super) fn ends_with(&self, item: &Item) -> bool {
        let last = self.last();
        item.prompt.ids.is_empty()
            && item.prompt.matched == last.last_response_start
            && self.matched_by(self.last, item.prompt.matched) == item.prompt.matched
            && last.ends_with(&item.generation.ids, &item.log_probs)
    }
}
