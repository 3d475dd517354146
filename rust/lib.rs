//! The core of turnloom: an answer of NeMo Gym's `/run`, fed as it arrives, becomes training rows.
//!
//! | module | job |
//! |---|---|
//! | [`error`] | what can be wrong with a body, and where; every limit |
//! | [`scan`] | bytes → token arrays and a residual document: a resumable JSON machine |
//! | [`weave`] | turns → rows: clean, realign or fork |
//! | [`run`] | one body: the two above, together |
//! | [`collate`] | rows → padded or packed arrays |
//! | `py` | the border to Python and numpy, with the feature `python` |

pub mod collate;
pub mod error;
#[cfg(feature = "python")]
mod py;
pub mod run;
pub mod scan;
pub mod weave;
