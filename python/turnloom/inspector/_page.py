"""An inspection as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from typing import Final

from turnloom.inspector._causes import DRIFT_CAUSES
from turnloom.inspector._inspection import KINDS, Inspection

_SCRIPTS: Final = (
    "virtual_list.js", "draw.js", "blocks.js", "search.js", "overview.js", "main.js", "header.js", "controls.js"
)  # fmt: skip


def page(inspection: Inspection) -> str:
    """The inspection as an HTML document: no network, no other file, every text in it as data."""
    data = {
        "inspection": inspection.to_json(),
        "kinds": KINDS,
        "causes": {code: cause._asdict() for code, cause in DRIFT_CAUSES.items()},
    }
    parts = {
        "title": html.escape(f"{inspection.name or 'rollout'} · turnloom"),
        "style": _file("page.css"),
        "script": "\n".join(map(_file, _SCRIPTS)),
        # A script of data ends at `</script>`, and a comment in it could hide that.
        "data": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    document = re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _file("page.html"))
    return document.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _file(name: str) -> str:
    return (files("turnloom.inspector") / "page" / name).read_text("utf-8")
