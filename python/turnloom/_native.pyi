"""The compiled core. Private: `turnloom` re-exports what is public."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_DEPTH",
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
MAX_NUMBER_CHARS: int
MAX_OPEN_ROWS: int

_Ids = NDArray[np.int64]
_LogProbs = NDArray[np.float32]
_Row = tuple[_Ids, _Ids, _LogProbs]
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

    def __new__(cls, *, fork_threshold_tokens: int, best_branch: bool = False) -> Parser: ...
    def feed(self, chunk: bytes, /) -> None:
        """Parse the next bytes. Raises MalformedBody as soon as no continuation is JSON, and ever after."""

    def finish(
        self,
    ) -> tuple[
        bytes,
        list[_Member],
        list[_Member],
        list[_Row],
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

def pad(
    rows: Sequence[_Row], /, *, pad_token_id: int, left: bool, multiple_of: int
) -> tuple[_Ids, _Ids, _Ids, _LogProbs]:
    """(input_ids, attention_mask, completion_mask, old_log_probs), each [B, L]."""

def pad_prompt_completion(
    rows: Sequence[_Row], /, *, pad_token_id: int
) -> tuple[_Ids, _Ids, _Ids, _Ids, _Ids, _LogProbs]:
    """(prompt_ids, prompt_mask) [B, P], (completion_ids, completion_mask, loss_mask, old_log_probs) [B, C]."""

def pack(rows: Sequence[_Row], /) -> tuple[_Ids, _Ids, _Ids, _LogProbs, _Ids, NDArray[np.int32], int]:
    """(input_ids, position_ids, completion_mask, old_log_probs, row_index) [T], cu_seqlens [B+1], max_seqlen."""
