"""Rollouts on the disk: what was asked, what came of it, and the answer byte for byte.

`_format` is a record on the disk, `_facts` what is told in it beside the answer, `_body` the answer while it arrives,
`_zstd` what makes both small. `_writer` puts records there off the event loop, into the files that `_files` keeps;
`_reader` gets them back, and `_replay` makes rollouts of them once more.
"""

from turnloom._records._files import writable_folder
from turnloom._records._reader import Record, Records
from turnloom._records._replay import Totals, replay, totals_of
from turnloom._records._writer import DEFAULT_RECORD_MAX_BYTES, RecordCounts, Recording, RecordWriter

__all__ = [
    "DEFAULT_RECORD_MAX_BYTES",
    "Record",
    "RecordCounts",
    "RecordWriter",
    "Recording",
    "Records",
    "Totals",
    "replay",
    "totals_of",
    "writable_folder",
]
