//! Rows in, batches out: memory is numpy's own, and written into while the interpreter is detached.

use numpy::ndarray::Dimension;
use numpy::{
    AsSliceError, Element, IntoPyArray, PyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray,
};
use pyo3::import_exception;
use pyo3::prelude::*;

use super::{Ids, Ids2, LogProbs, LogProbs2};
use crate::collate::{
    CollateError, Fitted, Limits, Overflow, Packed, PackedArrays, Padded, PaddedArrays, PromptCompletion,
    PromptCompletionArrays, RowView, fit,
};

import_exception!(turnloom._exceptions, ConfigError);

type Row<'py> = (PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, f32>);
type Values<'py> = Option<Vec<PyReadonlyArray1<'py, f32>>>;
/// `max_length`, `on_overflow`, `vocab_size`
type PyLimits = (Option<usize>, String, Option<i64>);
// Each begins with `kept_rows`, `dropped_rows`, `truncated_rows`, `truncated_tokens`.
type PyPadded<'py> =
    (Ids<'py>, usize, usize, usize, Ids2<'py>, Ids2<'py>, Ids2<'py>, LogProbs2<'py>, Option<LogProbs2<'py>>);
type PyPromptCompletion<'py> = (
    Ids<'py>,
    usize,
    usize,
    usize,
    Ids2<'py>,
    Ids2<'py>,
    Ids2<'py>,
    Ids2<'py>,
    Ids2<'py>,
    LogProbs2<'py>,
    Option<LogProbs2<'py>>,
);
type PyPacked<'py> = (
    Ids<'py>,
    usize,
    usize,
    usize,
    Ids<'py>,
    Ids<'py>,
    Ids<'py>,
    LogProbs<'py>,
    Ids<'py>,
    Bound<'py, PyArray1<i32>>,
    usize,
    Option<LogProbs<'py>>,
);

impl From<CollateError> for PyErr {
    fn from(error: CollateError) -> Self {
        match error {
            CollateError::Ragged { .. }
            | CollateError::Values { .. }
            | CollateError::TooLong { .. }
            | CollateError::NotInVocabulary { .. }
            | CollateError::NoMultiple
            | CollateError::TooLarge => ConfigError::new_err(error.to_string()),
        }
    }
}

fn views<'a>(rows: &'a [Row<'_>], values: &'a Values<'_>) -> PyResult<Vec<RowView<'a>>> {
    let view = |(at, (input_ids, completion_mask, old_log_probs)): (usize, &'a Row<'_>)| {
        let values = values.as_ref().and_then(|values| values.get(at));
        Ok(RowView {
            input_ids: input_ids.as_slice()?,
            completion_mask: completion_mask.as_slice()?,
            old_log_probs: old_log_probs.as_slice()?,
            values: values.map(|values| values.as_slice()).transpose()?,
        })
    };
    rows.iter().enumerate().map(view).collect()
}

fn limits((max_length, on_overflow, vocab_size): &PyLimits) -> Limits {
    let on_overflow = match on_overflow.as_str() {
        "drop" => Overflow::Drop,
        "truncate" => Overflow::Truncate,
        _ => Overflow::Error,
    };
    Limits { max_length: *max_length, on_overflow, vocab_size: *vocab_size }
}

/// An array whose elements are still to be written. Numpy asks the system for huge pages, as Rust's allocator does not:
/// without them most of the time goes into page faults.
fn empty<'py, T: Element, D: Dimension>(
    py: Python<'py>,
    shape: impl IntoPyObject<'py>,
) -> PyResult<PyReadwriteArray<'py, T, D>> {
    let array = py.import("numpy")?.call_method1("empty", (shape, T::get_dtype(py)))?;
    Ok(array.cast_into::<PyArray<T, D>>()?.try_readwrite()?)
}

fn slice<'a, D: Dimension>(
    array: &'a mut Option<PyReadwriteArray<'_, f32, D>>,
) -> Result<Option<&'a mut [f32]>, AsSliceError> {
    array.as_mut().map(PyReadwriteArray::as_slice_mut).transpose()
}

fn array<'py, T: Element, D: Dimension>(written: &PyReadwriteArray<'py, T, D>) -> Bound<'py, PyArray<T, D>> {
    let array: &Bound<'py, PyArray<T, D>> = written;
    array.clone()
}

#[pyfunction]
#[pyo3(signature = (rows, values, limits, /, *, pad_token_id, left, multiple_of))]
pub(super) fn pad<'py>(
    py: Python<'py>,
    rows: Vec<Row<'py>>,
    values: Values<'py>,
    limits: PyLimits,
    pad_token_id: i64,
    left: bool,
    multiple_of: usize,
) -> PyResult<PyPadded<'py>> {
    let views = views(&rows, &values)?;
    let fitted = fit(&views, self::limits(&limits))?;
    let batch = Padded::new(&fitted, pad_token_id, left, multiple_of)?;
    let shape = (fitted.rows.len(), batch.length);
    let (mut input_ids, mut attention_mask) = (empty(py, shape)?, empty(py, shape)?);
    let (mut completion_mask, mut old_log_probs) = (empty(py, shape)?, empty(py, shape)?);
    let mut values = values.as_ref().map(|_| empty(py, shape)).transpose()?;
    let to = PaddedArrays {
        input_ids: input_ids.as_slice_mut()?,
        attention_mask: attention_mask.as_slice_mut()?,
        completion_mask: completion_mask.as_slice_mut()?,
        old_log_probs: old_log_probs.as_slice_mut()?,
        values: slice(&mut values)?,
    };
    py.detach(|| batch.write(to))?;
    let Fitted { kept_rows, dropped_rows, truncated_rows, truncated_tokens, .. } = fitted;
    Ok((
        kept_rows.into_pyarray(py),
        dropped_rows,
        truncated_rows,
        truncated_tokens,
        array(&input_ids),
        array(&attention_mask),
        array(&completion_mask),
        array(&old_log_probs),
        values.as_ref().map(array),
    ))
}

#[pyfunction]
#[pyo3(signature = (rows, values, limits, /, *, pad_token_id))]
pub(super) fn pad_prompt_completion<'py>(
    py: Python<'py>,
    rows: Vec<Row<'py>>,
    values: Values<'py>,
    limits: PyLimits,
    pad_token_id: i64,
) -> PyResult<PyPromptCompletion<'py>> {
    let views = views(&rows, &values)?;
    let fitted = fit(&views, self::limits(&limits))?;
    let batch = py.detach(|| PromptCompletion::new(&fitted, pad_token_id))?;
    let prompts = (fitted.rows.len(), batch.prompt_length);
    let completions = (fitted.rows.len(), batch.completion_length);
    let (mut prompt_ids, mut prompt_mask) = (empty(py, prompts)?, empty(py, prompts)?);
    let (mut completion_ids, mut completion_mask) = (empty(py, completions)?, empty(py, completions)?);
    let (mut loss_mask, mut old_log_probs) = (empty(py, completions)?, empty(py, completions)?);
    let mut values = values.as_ref().map(|_| empty(py, completions)).transpose()?;
    let to = PromptCompletionArrays {
        prompt_ids: prompt_ids.as_slice_mut()?,
        prompt_mask: prompt_mask.as_slice_mut()?,
        completion_ids: completion_ids.as_slice_mut()?,
        completion_mask: completion_mask.as_slice_mut()?,
        loss_mask: loss_mask.as_slice_mut()?,
        old_log_probs: old_log_probs.as_slice_mut()?,
        values: slice(&mut values)?,
    };
    py.detach(|| batch.write(to))?;
    let Fitted { kept_rows, dropped_rows, truncated_rows, truncated_tokens, .. } = fitted;
    Ok((
        kept_rows.into_pyarray(py),
        dropped_rows,
        truncated_rows,
        truncated_tokens,
        array(&prompt_ids),
        array(&prompt_mask),
        array(&completion_ids),
        array(&completion_mask),
        array(&loss_mask),
        array(&old_log_probs),
        values.as_ref().map(array),
    ))
}

#[pyfunction]
#[pyo3(signature = (rows, values, limits, /))]
pub(super) fn pack<'py>(
    py: Python<'py>,
    rows: Vec<Row<'py>>,
    values: Values<'py>,
    limits: PyLimits,
) -> PyResult<PyPacked<'py>> {
    let views = views(&rows, &values)?;
    let fitted = fit(&views, self::limits(&limits))?;
    let batch = Packed::new(&fitted)?;
    let (mut input_ids, mut position_ids) = (empty(py, batch.tokens)?, empty(py, batch.tokens)?);
    let (mut completion_mask, mut old_log_probs) = (empty(py, batch.tokens)?, empty(py, batch.tokens)?);
    let mut row_index = empty(py, batch.tokens)?;
    let mut values = values.as_ref().map(|_| empty(py, batch.tokens)).transpose()?;
    let to = PackedArrays {
        input_ids: input_ids.as_slice_mut()?,
        position_ids: position_ids.as_slice_mut()?,
        completion_mask: completion_mask.as_slice_mut()?,
        old_log_probs: old_log_probs.as_slice_mut()?,
        row_index: row_index.as_slice_mut()?,
        values: slice(&mut values)?,
    };
    py.detach(|| batch.write(to))?;
    let Packed { cu_seqlens, max_seqlen, .. } = batch;
    let Fitted { kept_rows, dropped_rows, truncated_rows, truncated_tokens, .. } = fitted;
    Ok((
        kept_rows.into_pyarray(py),
        dropped_rows,
        truncated_rows,
        truncated_tokens,
        array(&input_ids),
        array(&position_ids),
        array(&completion_mask),
        array(&old_log_probs),
        array(&row_index),
        cu_seqlens.into_pyarray(py),
        max_seqlen,
        values.as_ref().map(array),
    ))
}
