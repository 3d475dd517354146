"""The task: look up what an item costs, then say it. Two model calls with a tool between them, and one reward.

A row asks for the `price of tea`. A perfect rollout calls `lookup tea`, is told `4`, and says `answer 4`. Each row has
its own prices, so that nothing can be learned by heart.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

AGENT: Final = "prices"

ITEMS: Final = ("tea", "apple", "bread", "milk")
PRICES: Final = ("2", "3", "5", "8")
END: Final = "<end>"
ERROR: Final = "error"
WORDS: Final = ("price", "of", "lookup", "answer", ERROR, *ITEMS, *PRICES)

TOOL: Final = {
    "type": "function",
    "name": "lookup",
    "description": "The price of an item.",
    "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
}


def question(item: str) -> str:
    """What the user asks."""
    return f"price of {item}"


def gym_rows(seed: int) -> list[dict[str, Any]]:
    """Every item under every order of the prices, shuffled: the rows that go to `/run`."""
    rows = [
        {
            "agent_ref": {"type": "responses_api_agents", "name": AGENT},
            "responses_create_params": {"input": [{"role": "user", "content": question(item)}], "tools": [TOOL]},
            "item": item,
            "prices": dict(zip(ITEMS, prices, strict=True)),
        }
        for prices in itertools.permutations(PRICES)
        for item in ITEMS
    ]
    random.Random(seed).shuffle(rows)
    return rows


def dataset_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of a dataset of these rows. A row is a JSON string, so that Arrow cannot unify its structs."""
    return {
        "prompt": [row["responses_create_params"]["input"] for row in rows],
        "nemo_gym_row": [json.dumps(row) for row in rows],
    }


def looked_up(words: Sequence[str]) -> str | None:
    """The item that a first generation asks the tool for; None when it is no call.

    One word too many is forgiven, and forgotten: `lookup tea apple` is written down as `lookup tea`, so that the next
    prompt does not repeat what was generated, as happens with tool calls in earnest.
    """
    said = words[: words.index(END)] if END in words else words
    return said[1] if len(said) in (2, 3) and said[0] == "lookup" else None


def tool_result(item: str | None, prices: Mapping[str, str]) -> str:
    """What the tool answers."""
    return prices.get(item, ERROR) if item is not None else ERROR


def reward_components(
    row: Mapping[str, Any], first: Sequence[str], tool: str, second: Sequence[str]
) -> dict[str, float]:
    """What each part of a rollout earns; a perfect one earns 1 in all.

    Args:
        row: with its `item` and `prices`.
        first: words of the first generation, the end among them if there is one.
        tool: what the tool answered.
        second: words of the second generation.
    """
    lookup, item, lookup_end = _first_three(first)
    answer, price, answer_end = _first_three(second)
    right_price = 0.4 if price == row["prices"][row["item"]] else 0.1 if price == tool else 0.0
    return {
        "lookup": 0.1 * (lookup == "lookup"),
        "item": 0.3 * (item == row["item"]),
        "lookup_end": 0.05 * (lookup_end == END),
        "answer": 0.1 * (answer == "answer"),
        "price": right_price,
        "answer_end": 0.05 * (answer_end == END),
    }


def total_reward(components: Mapping[str, float]) -> float:
    """The rollout's reward, between 0 and 1."""
    return round(sum(components.values()), 6)


def _first_three(words: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    padded = [*words[:3], None, None, None]
    return padded[0], padded[1], padded[2]
