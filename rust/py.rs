//! The border to Python and numpy: buffers in, arrays out, the interpreter detached in between.

// Arguments come owned from Python, and results are the tuples that the stub names.
#![allow(clippy::needless_pass_by_value, clippy::type_complexity)]

mod batch;

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{Error, ErrorKind, MAX_DEPTH, MAX_KEY_BYTES, MAX_LIST_TOKENS, MAX_NUMBER_CHARS, MAX_OPEN_ROWS};
use crate::run::{RunParser, Settings};
use crate::scan::Member;
use crate::weave::{Branches, Drift, Row, Transition};

import_exception!(turnloom._exceptions, MalformedBody);

type Ids<'py> = Bound<'py, PyArray1<i64>>;
type Ids2<'py> = Bound<'py, PyArray2<i64>>;
type LogProbs<'py> = Bound<'py, PyArray1<f32>>;
type LogProbs2<'py> = Bound<'py, PyArray2<f32>>;
type PyRow<'py> = (Ids<'py>, Ids<'py>, LogProbs<'py>, Ids2<'py>);
type PyMember = (String, usize, usize);
type PyTurn = (u64, usize, usize, Option<&'static str>, usize, usize, Option<usize>, usize, usize, u64);
type PyDefect = (u64, Option<&'static str>, &'static str, String);
type Parsed<'py> = (
    Bound<'py, PyBytes>,
    Vec<PyMember>,
    Vec<PyMember>,
    Vec<PyRow<'py>>,
    Vec<PyTurn>,
    Vec<PyDefect>,
    Bound<'py, PyDict>,
    Vec<(usize, Ids<'py>)>,
);

fn malformed(py: Python<'_>, error: &Error) -> PyErr {
    // Every kind by name, so that a new one has to say what it is in Python.
    let raised = match error.kind {
        ErrorKind::Unexpected(_)
        | ErrorKind::ControlCharacter
        | ErrorKind::EndsEarly
        | ErrorKind::TrailingBytes
        | ErrorKind::TooDeep
        | ErrorKind::NumberTooLong
        | ErrorKind::KeyTooLong
        | ErrorKind::ListTooLong
        | ErrorKind::BodyTooLarge(_) => MalformedBody::new_err(error.to_string()),
    };
    let value = raised.value(py);
    let fields = value
        .setattr("offset", error.offset)
        .and_then(|()| value.setattr("line", error.line))
        .and_then(|()| value.setattr("column", error.column))
        .and_then(|()| value.setattr("path", error.path_text()))
        .and_then(|()| value.setattr("excerpt", error.excerpt_text()));
    fields.err().unwrap_or(raised)
}

/// One body: a resumable JSON machine, and the training rows woven from its turns while it runs.
#[pyclass(module = "turnloom._native")]
struct Parser {
    run: Option<RunParser>,
}

#[pymethods]
impl Parser {
    #[new]
    #[pyo3(signature = (*, fork_threshold_tokens, best_branch=false, max_body_bytes=None))]
    fn new(fork_threshold_tokens: i64, best_branch: bool, max_body_bytes: Option<u64>) -> Self {
        let branches = if best_branch { Branches::Best } else { Branches::Linear };
        Self { run: Some(RunParser::new(Settings { fork_threshold_tokens, branches, max_body_bytes })) }
    }

    #[pyo3(signature = (chunk, /))]
    fn feed(&mut self, py: Python<'_>, chunk: &Bound<'_, PyBytes>) -> PyResult<()> {
        let run = self.run.as_mut().ok_or_else(|| PyValueError::new_err("the parser has finished"))?;
        let bytes = chunk.as_bytes();
        py.detach(|| run.feed(bytes)).map_err(|error| malformed(py, &error))
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Parsed<'py>> {
        let run = self.run.as_mut().ok_or_else(|| PyValueError::new_err("the parser has finished"))?;
        let (residual, woven) = py.detach(|| run.finish()).map_err(|error| malformed(py, &error))?;
        self.run = None;
        let (residual, members, response) = residual.into_parts();
        let mut lost = Vec::new();
        let turns = woven.turns.into_iter().enumerate().map(|(number, turn)| {
            if !turn.lost.is_empty() {
                lost.push((number, turn.lost.into_pyarray(py)));
            }
            (
                turn.item_index,
                turn.prompt_tokens,
                turn.output_tokens,
                turn.transition.map(Transition::name),
                turn.matched_tokens,
                turn.drift_tokens,
                turn.row,
                turn.span.start,
                turn.span.end,
                turn.routed_experts_bytes,
            )
        });
        let defects = woven.defects.into_iter().map(|it| (it.item_index, it.field, it.code, it.detail));
        let turns = turns.collect();
        Ok((
            PyBytes::new(py, &residual),
            members.into_iter().map(member).collect(),
            response.into_iter().map(member).collect(),
            woven.rows.into_iter().map(|row| row_out(py, row)).collect(),
            turns,
            defects.collect(),
            drift(py, &woven.drift)?,
            lost,
        ))
    }
}

fn member(member: Member) -> PyMember {
    (member.key, member.start, member.end)
}

fn row_out(py: Python<'_>, row: Row) -> PyRow<'_> {
    let Row { input_ids, completion_mask, old_log_probs, turn_spans } = row;
    (
        input_ids.into_pyarray(py),
        completion_mask.into_pyarray(py),
        old_log_probs.into_pyarray(py),
        Array2::from(turn_spans).into_pyarray(py),
    )
}

fn drift<'py>(py: Python<'py>, drift: &Drift) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    counts.set_item("clean", drift.clean)?;
    counts.set_item("realign", drift.realign)?;
    counts.set_item("fork", drift.fork)?;
    counts.set_item("transitions", drift.clean + drift.realign + drift.fork)?;
    counts.set_item("drift_tokens", drift.drift_tokens)?;
    counts.set_item("drift_max", drift.drift_max)?;
    counts.set_item("discarded_tokens", drift.discarded_tokens)?;
    counts.set_item("unusable_tokens", drift.unusable_tokens)?;
    counts.set_item("positive_logprobs", drift.positive_logprobs)?;
    Ok(counts)
}

/// The compiled core.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::Parser;
    #[pymodule_export]
    use super::batch::{pack, pad, pad_prompt_completion};
    use super::{
        Bound, MAX_DEPTH, MAX_KEY_BYTES, MAX_LIST_TOKENS, MAX_NUMBER_CHARS, MAX_OPEN_ROWS, PyModule, PyModuleMethods,
        PyResult,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("MAX_DEPTH", MAX_DEPTH)?;
        module.add("MAX_KEY_BYTES", MAX_KEY_BYTES)?;
        module.add("MAX_LIST_TOKENS", MAX_LIST_TOKENS)?;
        module.add("MAX_NUMBER_CHARS", MAX_NUMBER_CHARS)?;
        module.add("MAX_OPEN_ROWS", MAX_OPEN_ROWS)
    }
}
