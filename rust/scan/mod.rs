//! Bytes → token arrays and a residual document.
//!
//! A resumable machine over JSON as Python's `json` reads it. It knows where in the document it is, stages the token
//! arrays of one item of `response.output` at a time, hands the item over at its closing brace, and copies everything
//! else to the residual.

mod item;
mod machine;
pub mod number;
mod residual;
mod scalars;
mod state;
mod structure;
mod tokens;

pub use item::{BadElement, IdList, Item, LogProbList, Shape};
pub use machine::Scanner;
pub use residual::{Member, Residual};

/// What a prompt is compared with: the open row as far as it goes.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Its ids.
    pub ids: &'a [i64],
    /// Their text as it was sent: the ids with a comma, and perhaps white space, between each two.
    pub text: &'a [u8],
    /// There is no other row to follow.
    pub is_alone: bool,
}

/// Who takes the items.
pub trait Weave {
    /// The open row that the prompt at hand follows.
    fn held(&self) -> Held<'_>;
    /// A prompt begins.
    fn prompt_begins(&mut self);
    /// The prompt repeats so many ids of the row that it follows, and then says `id`: follow another row that does, too.
    /// Gives how much text the repeated ids take there; None if there is no such row.
    fn follow(&mut self, matched: usize, id: i64) -> Option<usize>;
    /// An item is complete.
    fn item(&mut self, item: &mut Item);
    /// What was handed over so far doesn't count: its key came again.
    fn restart(&mut self);
}
