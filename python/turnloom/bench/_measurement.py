"""One body, timed on every way from its bytes to training rows."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from turnloom._parse import RunParser, parse_run
from turnloom._rollout import Rollout
from turnloom.bench._decoders import decoders

if TYPE_CHECKING:
    from turnloom.bench._baseline import Row

    Way = Callable[[], list[Row]]

CHUNK: Final = 65_536
SECONDS_PER_BODY: Final = 10.0
MIN_ROUNDS: Final = 5
MAX_REPEATS: Final = 20
"""How often in a row a small body is parsed."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one body takes on each way."""

    body: str
    """Its name."""
    bytes: int
    turns: int
    rows: int
    tokens: int
    """Of all rows."""
    rounds: int
    """How often each way was timed."""
    seconds: Mapping[str, float]
    """Median seconds of the thread's processor time, by way: `turnloom` (one call of `parse_run`), `in_chunks`
    (`RunParser`, fed 64 KiB at a time), a decoder's name (that decoder, TRL's reconciler and numpy), and `memcmp` (the
    body compared with a copy of it: faster it cannot be read)."""
    not_timed: Mapping[str, str]
    """Why a way was not timed, though its decoder is installed: it failed, or gave other rows than turnloom."""

    def to_json(self) -> dict[str, Any]:
        """The fields, as `json` takes them."""
        return asdict(self)


def measure(
    body: bytes,
    *,
    name: str = "body",
    seconds: float = SECONDS_PER_BODY,
    on_progress: Callable[[float], None] | None = None,
) -> Measurement:
    """Time turnloom on an answer of `/run`, beside the ways without it. Needs the extra `trl`, for TRL's reconciler.

    A way is timed only if it gives the rows of turnloom, bit for bit, which is looked at first. Then each way runs once
    a round, in another order each time, so that whatever else the machine does, and what the way before left in caches
    and allocators, falls on all of them alike. The clock is that of the thread: what other programs do counts as little
    as possible.

    Args:
        body: the answer. It should be sound: over what turnloom has rules for (an id as a string, a turn told twice, a
            logprob that is none) the other ways stumble, and then they are not timed.
        name: what to call it.
        seconds: how long to time; at least five rounds are timed, however long they take.
        on_progress: called after each round with the share of them that is done, up to 1.

    Raises:
        MalformedBody: it is no JSON.
        UnscorableRollout: there are no rows in it.
        ConfigError: TRL is missing, or is none that turnloom has run with.
    """
    from turnloom.bench._baseline import training_rows  # which takes seconds, and needs TRL

    rollout = parse_run(body)
    rows = _rows_of(rollout) or _rows_of(rollout.raise_for_outcome())
    chunks = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    ways: dict[str, Way] = {
        **{decoder: partial(training_rows, body, turns=turns) for decoder, turns in decoders().items()},
        "turnloom": lambda: _rows_of(parse_run(body)),
        "in_chunks": lambda: _rows_of(_fed(chunks)),
    }
    not_timed = {way: why for way, run in ways.items() if (why := _difference(run, rows, rollout)) is not None}
    timed: dict[str, Callable[[], object]] = {way: run for way, run in ways.items() if way not in not_timed}
    copy = bytes(bytearray(body))
    timed["memcmp"] = lambda: body == copy
    times = _times(timed, seconds, min(MAX_REPEATS, 1 + 1_000_000 // len(body)), on_progress)
    return Measurement(
        body=name,
        bytes=len(body),
        turns=len(rollout.turns),
        rows=len(rows),
        tokens=_tokens(rows),
        rounds=len(times["memcmp"]),
        seconds={way: statistics.median(each) for way, each in times.items()},
        not_timed=not_timed,
    )


def _fed(chunks: Iterable[bytes]) -> Rollout:
    parser = RunParser()
    for chunk in chunks:
        parser.feed(chunk)
    return parser.finish()


def _rows_of(rollout: Rollout) -> list[Row]:
    rows = rollout.rows or rollout.unscored_rows
    return [(row.input_ids, row.completion_mask, row.old_log_probs) for row in rows]


def _tokens(rows: list[Row]) -> int:
    return sum(len(ids) for ids, _, _ in rows)


def _told(rows: list[Row]) -> str:
    return f"{len(rows)} with {_tokens(rows):,} tokens in all"


def _difference(run: Way, rows: list[Row], rollout: Rollout) -> str | None:
    """Why the rows of this way are not those of turnloom; None if they are, bit for bit."""
    try:
        with np.errstate(over="ignore"):  # a logprob beyond float32 makes it inf, and the rows unequal
            others = run()
    except Exception as error:  # whatever a decoder or the reconciler makes of a body that is not sound
        what = f"it fails with {type(error).__name__}: {str(error)[:200]}"
    else:
        if len(rows) == len(others) and all(map(_same_bits, rows, others)):
            return None
        what = f"it gives other rows: {_told(others)}, turnloom {_told(rows)}"
    return "; ".join([what, *_set_apart(rollout)])


def _same_bits(row: Row, other: Row) -> bool:
    pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(row, other, strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def _set_apart(rollout: Rollout) -> Iterable[str]:
    """What turnloom found wrong with the body, and went on without."""
    if rollout.defects:
        codes = Counter(defect.code for defect in rollout.defects).most_common()
        kinds = ", ".join(f"{code} {count}" for code, count in codes)
        yield f"turnloom leaves items out ({kinds}; the first is item {rollout.defects[0].item_index})"
    if unusable := rollout.drift.unusable_tokens:
        yield f"turnloom does not train tokens whose logprob cannot be used ({unusable})"


def _times(
    ways: Mapping[str, Callable[[], object]],
    seconds: float,
    repeats: int,
    on_progress: Callable[[float], None] | None,
) -> dict[str, list[float]]:
    """The seconds of each way in each round."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    shuffled = random.Random(0)
    start = time.perf_counter()
    done = 0.0
    while done < 1.0:
        for way, run in shuffled.sample(list(ways.items()), len(ways)):
            begin = time.thread_time()
            for _ in range(repeats):
                run()
            times[way].append((time.thread_time() - begin) / repeats)
        elapsed = (time.perf_counter() - start) / seconds if seconds > 0 else 1.0
        done = min(1.0, elapsed, len(times["memcmp"]) / MIN_ROUNDS)
        if on_progress is not None:
            on_progress(done)
    return times
