//! The border to Python and numpy: buffers in, arrays out, the interpreter detached in between.

// Arguments come owned from Python, and results are the tuples that the stub names.
#![allow(clippy::needless_pass_by_value, clippy::type_complexity)]

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::collate::{self, CollateError, RowView};
use crate::error::{Error, ErrorKind, MAX_DEPTH, MAX_NUMBER_CHARS, MAX_OPEN_ROWS};
use crate::run::RunParser;
use crate::scan::Member;
use crate::weave::{Branches, Drift, Row, Transition};

import_exception!(turnloom._exceptions, MalformedBody);

type Ids<'py> = Bound<'py, PyArray1<i64>>;
type Ids2<'py> = Bound<'py, PyArray2<i64>>;
type LogProbs<'py> = Bound<'py, PyArray1<f32>>;
type LogProbs2<'py> = Bound<'py, PyArray2<f32>>;
type PyRow<'py> = (Ids<'py>, Ids<'py>, LogProbs<'py>);
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
type RowIn<'py> = (PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, f32>);

fn malformed(py: Python<'_>, error: &Error) -> PyErr {
    // Every kind by name, so that a new one has to say what it is in Python.
    let raised = match error.kind {
        ErrorKind::Unexpected(_)
        | ErrorKind::ControlCharacter
        | ErrorKind::EndsEarly
        | ErrorKind::TrailingBytes
        | ErrorKind::TooDeep
        | ErrorKind::NumberTooLong => MalformedBody::new_err(error.to_string()),
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

impl From<CollateError> for PyErr {
    fn from(error: CollateError) -> Self {
        match error {
            CollateError::Ragged { .. } | CollateError::NoMultiple | CollateError::TooLarge => {
                PyValueError::new_err(error.to_string())
            }
        }
    }
}

/// One body: a resumable JSON machine, and the training rows woven from its turns while it runs.
#[pyclass(module = "turnloom._native")]
struct Parser {
    run: Option<RunParser>,
}

#[pymethods]
impl Parser {
    #[new]
    #[pyo3(signature = (*, fork_threshold_tokens, best_branch=false))]
    fn new(fork_threshold_tokens: i64, best_branch: bool) -> Self {
        let branches = if best_branch { Branches::Best } else { Branches::Linear };
        Self { run: Some(RunParser::new(fork_threshold_tokens, branches)) }
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
    (row.input_ids.into_pyarray(py), row.completion_mask.into_pyarray(py), row.old_log_probs.into_pyarray(py))
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

fn views<'a>(rows: &'a [RowIn<'_>]) -> PyResult<Vec<RowView<'a>>> {
    rows.iter()
        .map(|(input_ids, completion_mask, old_log_probs)| {
            Ok(RowView {
                input_ids: input_ids.as_slice()?,
                completion_mask: completion_mask.as_slice()?,
                old_log_probs: old_log_probs.as_slice()?,
            })
        })
        .collect()
}

#[pyfunction]
#[pyo3(signature = (rows, /, *, pad_token_id, left, multiple_of))]
fn pad<'py>(
    py: Python<'py>,
    rows: Vec<RowIn<'py>>,
    pad_token_id: i64,
    left: bool,
    multiple_of: usize,
) -> PyResult<(Ids2<'py>, Ids2<'py>, Ids2<'py>, LogProbs2<'py>)> {
    let views = views(&rows)?;
    let batch = py.detach(|| collate::pad(&views, pad_token_id, left, multiple_of))?;
    let shape = [rows.len(), batch.length];
    Ok((
        batch.input_ids.into_pyarray(py).reshape(shape)?,
        batch.attention_mask.into_pyarray(py).reshape(shape)?,
        batch.completion_mask.into_pyarray(py).reshape(shape)?,
        batch.old_log_probs.into_pyarray(py).reshape(shape)?,
    ))
}

#[pyfunction]
#[pyo3(signature = (rows, /, *, pad_token_id))]
fn pad_prompt_completion<'py>(
    py: Python<'py>,
    rows: Vec<RowIn<'py>>,
    pad_token_id: i64,
) -> PyResult<(Ids2<'py>, Ids2<'py>, Ids2<'py>, Ids2<'py>, Ids2<'py>, LogProbs2<'py>)> {
    let views = views(&rows)?;
    let batch = py.detach(|| collate::pad_prompt_completion(&views, pad_token_id))?;
    let (prompts, completions) = ([rows.len(), batch.prompt_length], [rows.len(), batch.completion_length]);
    Ok((
        batch.prompt_ids.into_pyarray(py).reshape(prompts)?,
        batch.prompt_mask.into_pyarray(py).reshape(prompts)?,
        batch.completion_ids.into_pyarray(py).reshape(completions)?,
        batch.completion_mask.into_pyarray(py).reshape(completions)?,
        batch.loss_mask.into_pyarray(py).reshape(completions)?,
        batch.old_log_probs.into_pyarray(py).reshape(completions)?,
    ))
}

#[pyfunction]
#[pyo3(signature = (rows, /))]
fn pack<'py>(
    py: Python<'py>,
    rows: Vec<RowIn<'py>>,
) -> PyResult<(Ids<'py>, Ids<'py>, Ids<'py>, LogProbs<'py>, Ids<'py>, Bound<'py, PyArray1<i32>>, usize)> {
    let views = views(&rows)?;
    let batch = py.detach(|| collate::pack(&views))?;
    Ok((
        batch.input_ids.into_pyarray(py),
        batch.position_ids.into_pyarray(py),
        batch.completion_mask.into_pyarray(py),
        batch.old_log_probs.into_pyarray(py),
        batch.row_index.into_pyarray(py),
        batch.cu_seqlens.into_pyarray(py),
        batch.max_seqlen,
    ))
}

/// The compiled core.
#[pymodule(gil_used = false)]
mod _native {
    use super::{Bound, MAX_DEPTH, MAX_NUMBER_CHARS, MAX_OPEN_ROWS, PyModule, PyModuleMethods, PyResult};
    #[pymodule_export]
    use super::{Parser, pack, pad, pad_prompt_completion};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("MAX_DEPTH", MAX_DEPTH)?;
        module.add("MAX_NUMBER_CHARS", MAX_NUMBER_CHARS)?;
        module.add("MAX_OPEN_ROWS", MAX_OPEN_ROWS)
    }
}
