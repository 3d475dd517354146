"""Counts the instructions that parsing takes for each unique token, with valgrind, so that noise does not matter.

    python benches/instructions.py             # beside what was committed
    python benches/instructions.py --update    # writes instructions.json anew

The bodies are those of `turnloom.bench`, with fewer turns. What starting the program takes is subtracted. The counts
belong to one version of the compiler: a new one may need `--update`.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from turnloom.bench import SHAPES as LARGE
from turnloom.bench import made_body

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ROOT / "benches" / "instructions.json"
TOLERANCE = 0.05

_TURNS = {"small": 4, "mid": 15, "big": 40, "single": 1, "forked": 15, "spaced": 15, "indented": 8}
SHAPES = {name: replace(LARGE[name], turns=turns) for name, turns in _TURNS.items()} | {
    "single": replace(LARGE["single"], generated=20_000)
}


def is_countable() -> bool:
    return shutil.which("valgrind") is not None


def per_token() -> dict[str, float]:
    """Instructions for each unique token of each body."""
    build = ["cargo", "build", "--quiet", "--locked", "--release", "--example", "parse", "--message-format", "json"]
    messages = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (program,) = (found for line in messages.splitlines() if (found := json.loads(line).get("executable")))
    with tempfile.TemporaryDirectory() as folder:
        start, _ = _count(program, b"{}", Path(folder))
        counts = {}
        for name, shape in SHAPES.items():
            instructions, tokens = _count(program, made_body(name, shape), Path(folder))
            counts[name] = round((instructions - start) / tokens, 1)
    return counts


def _count(program: str, body: bytes, folder: Path) -> tuple[int, int]:
    """Instructions of the program on this body, and the tokens that come out."""
    file = folder / "body.json"
    file.write_bytes(body)
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'out'}", program, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (instructions,) = re.findall(r"Collected : (\d+)", done.stderr)
    (tokens,) = re.findall(r"(\d+) tokens", done.stdout)
    return int(instructions), int(tokens)


def committed() -> dict[str, float]:
    counts: dict[str, float] = json.loads(COMMITTED.read_text())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write instructions.json anew")
    arguments = parser.parse_args()
    if not is_countable():
        raise SystemExit("valgrind is not installed")
    counts = per_token()
    before = committed() if COMMITTED.exists() else {}
    print("| body | instructions a token | committed |\n| --- | --: | --: |")
    for name, count in counts.items():
        print(f"| {name} | {count} | {before.get(name, '')} |")
    if arguments.update:
        COMMITTED.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
