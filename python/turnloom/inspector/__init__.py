"""One rollout as a person reads it, and why prompts leave what was held.

`_inspect` makes an `Inspection` of an answer, `_terminal` and `_page` show it, `_causes` explains its drift.
"""

from turnloom.inspector._causes import DRIFT_CAUSES, CauseTotal, DriftCause, drift_causes
from turnloom.inspector._inspect import inspect_run
from turnloom.inspector._inspection import (
    KINDS,
    Divergence,
    Excerpt,
    InspectedRow,
    InspectedTurn,
    Inspection,
    Segment,
)
from turnloom.inspector._tokenizer import load_tokenizer

__all__ = [
    "DRIFT_CAUSES",
    "KINDS",
    "CauseTotal",
    "Divergence",
    "DriftCause",
    "Excerpt",
    "InspectedRow",
    "InspectedTurn",
    "Inspection",
    "Segment",
    "drift_causes",
    "inspect_run",
    "load_tokenizer",
]
