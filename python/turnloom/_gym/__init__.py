"""What NeMo Gym means by its JSON: `_request` and `_sampling` are what a row sends, `_jsonl` a file of rows,
`_messages` and `_turns` what an answer says.

Knows no HTTP, no trainer, and needs nothing but the standard library.
"""

from turnloom._gym._items import item_type, items_of
from turnloom._gym._jsonl import read_rows
from turnloom._gym._messages import messages_from_agent_output, skipped_item_types
from turnloom._gym._request import ROW_COLUMN, agent_of, agent_request, check_row, gym_row, prompt_of
from turnloom._gym._sampling import checked_sampling
from turnloom._gym._turns import TurnRecord, turn_of, turns_from_agent_output

__all__ = [
    "ROW_COLUMN",
    "TurnRecord",
    "agent_of",
    "agent_request",
    "check_row",
    "checked_sampling",
    "gym_row",
    "item_type",
    "items_of",
    "messages_from_agent_output",
    "prompt_of",
    "read_rows",
    "skipped_item_types",
    "turn_of",
    "turns_from_agent_output",
]
