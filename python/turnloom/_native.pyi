"""The compiled core. Private: `turnloom` re-exports what is public."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_DEPTH",
    "MAX_KEY_BYTES",
    "MAX_LIST_TOKENS",
    "MAX_NUMBER_CHARS",
    "MAX_OPEN_ROWS",
    "Parser",
    "__version__",
    "pack",
    "pad",
    "pad_prompt_completion",
]

__version__: str
MAX_DEPTH: int
MAX_KEY_BYTES: int
MAX_LIST_TOKENS: int
MAX_NUMBER_CHARS: int
MAX_OPEN_ROWS: int

_Ids = NDArray[np.int64]
_LogProbs = NDArray[np.float32]
_Row = tuple[_Ids, _Ids, _LogProbs]
# The same, and for each turn that is trained in the row its number, its first token, and one past its last.
_WovenRow = tuple[_Ids, _Ids, _LogProbs, _Ids]
# (key, start, end): a member of an object, and where its value stands in the residual.
_Member = tuple[str, int, int]
# (item_index, prompt_tokens, output_tokens, transition, matched_tokens, drift_tokens, row, start, end,
#  routed_experts_bytes): start and end are where the generated tokens stand in the row, as far as they are still there.
_Turn = tuple[int, int, int, str | None, int, int, int | None, int, int, int]
# (item_index, field, code, detail)
_Defect = tuple[int, str | None, str, str]

@final
class Parser:
    """One body: a resumable JSON machine, and the training rows woven from its turns while it runs."""

    def __new__(
        cls, *, fork_threshold_tokens: int, best_branch: bool = False, max_body_bytes: int | None = None
    ) -> Parser: ...
    def feed(self, chunk: bytes, /) -> None:
        """Parse the next bytes. Raises MalformedBody as soon as no continuation is JSON, and ever after."""

    def finish(
        self,
    ) -> tuple[
        bytes,
        list[_Member],
        list[_Member],
        list[_WovenRow],
        list[_Turn],
        list[_Defect],
        dict[str, int],
        list[tuple[int, _Ids]],
    ]:
        """(residual, members, members of `response`, rows, turns, defects, drift, lost).

        The residual is the document without the token arrays, perhaps not valid UTF-8: decode it with "replace".
        Lost are the generated ids that are in no row, by the turn's number.
        Raises MalformedBody when the document has not ended, ValueError when called twice.
        """

# (max_length, on_overflow, vocab_size)
_Limits = tuple[int | None, str, int | None]

# Each layout begins with kept_rows [B], dropped_rows, truncated_rows, truncated_tokens.

def pad(
    rows: Sequence[_Row],
    values: Sequence[_LogProbs] | None,
    limits: _Limits,
    /,
    *,
    pad_token_id: int,
    left: bool,
    multiple_of: int,
) -> tuple[_Ids, int, int, int, _Ids, _Ids, _Ids, _LogProbs, _LogProbs | None]:
    """(…, input_ids, attention_mask, completion_mask, old_log_probs, values), each [B, L]."""

def pad_prompt_completion(
    rows: Sequence[_Row], values: Sequence[_LogProbs] | None, limits: _Limits, /, *, pad_token_id: int
) -> tuple[_Ids, int, int, int, _Ids, _Ids, _Ids, _Ids, _Ids, _LogProbs, _LogProbs | None]:
    """(…, prompt_ids, prompt_mask, completion_ids, completion_mask, loss_mask, old_log_probs, values), [B, P] twice and
    then [B, C]."""

def pack(
    rows: Sequence[_Row], values: Sequence[_LogProbs] | None, limits: _Limits, /
) -> tuple[_Ids, int, int, int, _Ids, _Ids, _Ids, _LogProbs, _Ids, NDArray[np.int32], int, _LogProbs | None]:
    """(…, input_ids, position_ids, completion_mask, old_log_probs, row_index, cu_seqlens, max_seqlen, values), [T] but
    for cu_seqlens [B+1]."""
