"""Draws what `bench_parse.py --json` measured.

python benches/plot.py FILE.json docs/speed.svg
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

WAYS = {
    "json": ("json", "#b8b8b8"),
    "simdjson": ("pysimdjson", "#9aa9b8"),
    "orjson": ("orjson", "#7f95ab"),
    "msgspec": ("msgspec, typed", "#647f9d"),
    "in_chunks": ("turnloom, in chunks of 64 KiB", "#f2b26b"),
    "turnloom": ("turnloom, one call", "#d9731a"),
}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Bars of milliseconds for each body and way, on a logarithmic axis, with how many times faster than `json`."""
    figure = Figure(figsize=(9, 0.55 + 1.05 * len(results)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(WAYS)
    for number, (way, (label, color)) in enumerate(WAYS.items()):
        places = [body - 0.4 + (number + 0.5) * height for body in range(len(results))]
        bars = axes.barh(places, [1e3 * result["seconds"][way] for result in results], height, label=label, color=color)
        faster = [result["seconds"]["json"] / result["seconds"][way] for result in results]
        axes.bar_label(bars, [f"{_times(ratio)} ×" for ratio in faster], padding=2, fontsize=7)
    axes.set_yticks(range(len(results)), [f"{it['body']}\n{it['bytes'] / 1e6:.2f} MB" for it in results])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.08, y=0.01)
    axes.set_xlabel(
        "milliseconds from the body to training rows (less is better); beside the bars: times faster than json"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": "turnloom", "svg.fonttype": "none"}):  # the same figures give the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio > 10 else f"{ratio:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="what bench_parse.py --json wrote")
    parser.add_argument("image", type=Path, help="an .svg or .png file")
    arguments = parser.parse_args()
    draw(json.loads(arguments.figures.read_text()), arguments.image)


if __name__ == "__main__":
    main()
