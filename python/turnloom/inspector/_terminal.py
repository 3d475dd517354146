"""An inspection in the terminal, with rich."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text

from turnloom.inspector._causes import DRIFT_CAUSES
from turnloom.inspector._inspection import Divergence, Excerpt, InspectedRow, InspectedTurn, Inspection, Kind, Segment
from turnloom.inspector._words import call_text, counted, elided, headline, visible

_MESSAGE_CHARACTERS: Final = 600
_SEGMENT_TOKENS: Final = 96
_DIVERGENCE_TOKENS: Final = 48
_LABEL_COLUMNS: Final = 9
_SIDE_BY_SIDE_FROM: Final = 110
"""Columns from which messages stand beside the tokens."""

_STYLES: Final[dict[Kind, Style]] = {
    "prompt": Style(dim=True),
    "trained": Style(color="black", bgcolor="#cfe6ff"),
    "discarded": Style(color="red", strike=True),
    "unusable": Style(color="magenta", underline=True),
}
_SURPRISE: Final = ((0.1, "#cfe6ff"), (0.7, "#a9d1ff"), (2.3, "#7db8ff"), (4.6, "#4d9bff"))
"""A trained token is darker the less likely it was: up to this negative logprob, this background; then the last."""
_MOST_SURPRISING: Final = "#1f7bff"
_TRANSITION_STYLES: Final = {None: "bold", "clean": "bold green", "realign": "bold yellow", "fork": "bold red"}
_FIRST_DIFFERENT: Final = Style(color="black", bgcolor="yellow", bold=True)
_CHANGED: Final = Style(color="yellow")


def show(inspection: Inspection, console: Console) -> None:
    """Print the inspection, a page at a time where the console is a terminal."""
    if not console.is_terminal:
        console.print(_view(inspection, console.width))
        return
    os.environ.setdefault("LESS", "FRX")  # colours through, and no pager for what fits the terminal
    with console.pager(styles=True):
        console.print(_view(inspection, console.width))


def _view(inspection: Inspection, width: int) -> Group:
    parts: list[RenderableType] = [_head(inspection), Text(), _messages(inspection.input)]
    for number in range(len(inspection.turns)):
        parts += _turn(inspection, number, width)
    if inspection.messages_after:
        if inspection.turns:
            parts += [Text(), Rule("after the last turn", align="left", style="dim")]
        parts.append(_messages(inspection.messages_after))
    return Group(*parts)


# What stands above


def _head(inspection: Inspection) -> RenderableType:
    drift = inspection.drift
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("rollout", Text(visible(f"{inspection.name}  {headline(inspection)}"), style="bold"))
    if inspection.reason:
        table.add_row("reason", Text(visible(inspection.reason), style="bold red"))
    table.add_row("tokens", _legend(inspection))
    settings = f"fork_threshold_tokens {inspection.fork_threshold_tokens}, {inspection.branches}"
    kinds = f"clean {drift.clean:,} · realign {drift.realign:,} · fork {drift.fork:,}"
    table.add_row("drift", f"{kinds} · {counted(drift.drift_tokens, 'token')} not repeated ({settings})")
    if inspection.metrics:
        metrics = " · ".join(f"{name} {value:g}" for name, value in inspection.metrics.items())
        table.add_row("metrics", Text(visible(metrics)))
    for defect in inspection.defects:
        table.add_row("defect", Text(visible(f"item {defect.item_index}: {defect.code}: {defect.detail}"), style="red"))
    if inspection.unknown_ids:
        told = f"its vocabulary lacks {counted(inspection.unknown_ids, 'token')}: is it the tokenizer of this model?"
        table.add_row("tokenizer", Text(told, style="bold red"))
    return table


def _legend(inspection: Inspection) -> Text:
    legend = Text()
    for kind, style in _STYLES.items():
        legend.append(f" {kind} {inspection.count(kind):,} ", style).append("  ")
    return legend


# One turn


def _turn(inspection: Inspection, number: int, width: int) -> Iterator[RenderableType]:
    turn = inspection.turns[number]
    yield Text()
    yield Rule(_turn_title(number, turn), align="left", style="dim")
    if turn.divergence:
        yield from _divergence(turn, turn.divergence)
    messages = _messages(turn.messages)
    tokens = _tokens(inspection.rows[turn.row], number)
    if width < _SIDE_BY_SIDE_FROM:
        yield from (messages, tokens)
        return
    beside = Table.grid(padding=(0, 2), expand=True)
    beside.add_column(ratio=2)
    beside.add_column(ratio=3)
    beside.add_row(messages, tokens)
    yield beside


def _turn_title(number: int, turn: InspectedTurn) -> Text:
    facts = turn.facts
    row = "no row" if facts.row is None else f"row {facts.row}"
    title = Text(f"turn {number}", style="bold")
    if facts.transition:
        title.append(f" · {facts.transition}", _TRANSITION_STYLES[facts.transition])
    added = facts.prompt_tokens - facts.matched_tokens
    told = f" · item {facts.item_index} · {row} · +{added:,} prompt · +{facts.output_tokens:,} generated"
    return title.append(told, "dim")


def _messages(messages: Iterable[dict[str, Any]]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, min_width=_LABEL_COLUMNS)
    table.add_column(overflow="fold")
    for message in messages:
        role = message["role"]
        for label, text in (
            ("thinking", message.get("reasoning_content")),
            (role, message["content"]),
            *(("call", call_text(call)) for call in message.get("tool_calls", ())),
        ):
            if text:
                table.add_row(Text(visible(label)), Text(elided(visible(text), limit=_MESSAGE_CHARACTERS)))
    return table


def _tokens(row: InspectedRow, number: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, min_width=_LABEL_COLUMNS)
    table.add_column(overflow="fold")
    if row.repeats and row.segments[0].turn == number:
        other, repeated = row.repeats
        table.add_row(f"prompt {repeated:,}", Text(f"as in row {other}", "italic dim"))
    for segment in row.segments:
        if segment.turn == number:
            table.add_row(f"{segment.kind} {len(segment.ids):,}", _segment(segment))
    return table


def _segment(segment: Segment) -> Text:
    text = Text()
    count, half = len(segment.ids), _SEGMENT_TOKENS // 2
    for place in range(count) if count <= _SEGMENT_TOKENS else (*range(half), *range(count - half, count)):
        if place == count - half and count > _SEGMENT_TOKENS:
            text.append(f" … {count - 2 * half:,} tokens … ", "italic dim")
        text.append(_token(segment.ids, segment.texts, place), _style(segment, place))
        if segment.texts is None:
            text.append(" ")
    return text


def _token(ids: Sequence[int], texts: Sequence[str] | None, place: int) -> str:
    return str(ids[place]) if texts is None else visible(texts[place]).replace("\n", "↵")


def _style(segment: Segment, place: int) -> Style:
    style = _STYLES[segment.kind]
    if segment.kind != "trained" or segment.log_probs is None:
        return style
    surprise = -segment.log_probs[place]
    return style + Style(bgcolor=next((color for limit, color in _SURPRISE if surprise <= limit), _MOST_SURPRISING))


# Drift


def _divergence(turn: InspectedTurn, divergence: Divergence) -> Iterator[RenderableType]:
    facts = turn.facts
    what = f"The prompt repeats {counted(facts.matched_tokens, 'token')} of row {divergence.held_row} and leaves "
    yield Text(f"{what}{facts.drift_tokens:,} of it.", "yellow")
    for cause in map(DRIFT_CAUSES.__getitem__, divergence.causes):
        yield Text.assemble((cause.name, "bold yellow"), f": {cause.meaning}. {cause.advice}")
    table = Table(expand=True, show_edge=False, pad_edge=False)
    table.add_column(f"held: {counted(divergence.held.tokens, 'token')} from there", ratio=1, overflow="fold")
    table.add_column(f"prompt: {counted(divergence.prompt.tokens, 'token')} from there", ratio=1, overflow="fold")
    table.add_row(_excerpt(divergence.held), _excerpt(divergence.prompt))
    yield Padding(table, (0, 0, 1, 2))


def _excerpt(excerpt: Excerpt) -> Text:
    changed = {place for start, end in excerpt.changed for place in range(start, end)}
    text = Text()
    tokens = [(excerpt.before, excerpt.before_texts, place, Style(dim=True)) for place in range(len(excerpt.before))]
    shown = min(len(excerpt.ids), _DIVERGENCE_TOKENS)
    for place in range(shown):
        style = _FIRST_DIFFERENT if place == 0 else _CHANGED if place in changed else Style()
        tokens.append((excerpt.ids, excerpt.texts, place, style))
    for ids, texts, place, style in tokens:
        text.append(str(ids[place]) if texts is None else visible(texts[place], white_space=True) or "∅", style)
        if texts is None:
            text.append(" ")
    if not excerpt.ids:
        text.append("the end", _FIRST_DIFFERENT)
    if excerpt.tokens > shown:
        text.append(f" … {counted(excerpt.tokens - shown, 'more token')}", "italic dim")
    return text
