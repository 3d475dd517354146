"""Measures what memory parsing takes: the peak while `big` is fed in chunks, what stays, and whether it grows.

    python benches/bench_memory.py [--fast] [--json FILE]

Each measurement has a process of its own. The resident peak is the kernel's own high-water mark, set back just before
the first chunk; what the allocator had handed out is read after each chunk.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).resolve().parent
BYTES_PER_TOKEN = 64
"""What parsing may take for each unique token, beside the residual document."""
ROW_BYTES_PER_TOKEN = 8 + 8 + 4
"""input_ids, completion_mask, old_log_probs."""

MEMORY = """
import ctypes, json, sys
import make_corpus, turnloom

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo

def allocated():
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

def set_peak_back():
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
"""

PEAK = """
def chunks():
    with open(make_corpus.BODIES / "big.json", "rb", buffering=0) as file:
        while chunk := file.read(65_536):
            yield chunk

turnloom.parse_run(make_corpus.body("small"))
make_corpus.committed_sha256()
parser = turnloom.RunParser()
set_peak_back()
resident_before, allocated_before = status("VmRSS"), allocated()
allocated_peak = 0
for chunk in chunks():
    parser.feed(chunk)
    allocated_peak = max(allocated_peak, allocated())
resident_peak = status("VmHWM")
rollout = parser.finish()
del parser, chunk
(row,) = rollout.rows
print(json.dumps({
    "tokens": len(row.input_ids),
    "residual": len(json.dumps(rollout.document, separators=(",", ":"), ensure_ascii=False).encode()),
    "resident_peak": resident_peak - resident_before,
    "allocated_peak": allocated_peak - allocated_before,
}))
"""

KEPT = """
body = make_corpus.body("big")
turnloom.parse_run(body)
set_peak_back()
before, resident_before = allocated(), status("VmRSS")
rows = turnloom.parse_run(body).rows
libc.malloc_trim(0)
print(json.dumps({
    "arrays": sum(array.nbytes for row in rows for array in (row.input_ids, row.completion_mask, row.old_log_probs)),
    "allocated": allocated() - before,
    "resident": status("VmRSS") - resident_before,
}))
"""

AGAIN = """
body = make_corpus.body("mid")
rounds = int(sys.argv[1])
resident = []
for number in range(rounds):
    parser = turnloom.RunParser()
    for start in range(0, len(body), 65_536):
        parser.feed(body[start : start + 65_536])
    rollout = parser.finish()
    resident.append(status("VmRSS"))
print(json.dumps({"rounds": rounds, "early": resident[rounds // 10], "late": resident[-1], "most": max(resident)}))
"""


def run(script: str, *arguments: str) -> dict[str, Any]:
    """What a fresh interpreter says."""
    paths = os.pathsep.join(filter(None, [str(BENCHES), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", MEMORY + script, *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="50 rollouts in place of 500")
    parser.add_argument("--json", type=Path, help="write the figures, in bytes, to this file too")
    arguments = parser.parse_args()
    import make_corpus

    for name in ("small", "mid", "big"):
        make_corpus.body(name)
    peak, kept, again = run(PEAK), run(KEPT), run(AGAIN, "50" if arguments.fast else "500")
    bound = BYTES_PER_TOKEN * peak["tokens"] + peak["residual"]
    print(f"big in chunks of 64 KiB: {peak['tokens']} unique tokens, a residual of {peak['residual'] / 1e6:.2f} MB")
    for what in ("resident", "allocated"):
        most = peak[f"{what}_peak"]
        per_token = (most - peak["residual"]) / peak["tokens"]
        word = "within" if most <= bound else "BEYOND"
        print(f"  {what} peak {most / 1e6:.2f} MB, {word} the bound of {bound / 1e6:.2f} MB:")
        print(f"    {per_token:.1f} bytes a token beside the residual, of {BYTES_PER_TOKEN}")
    print(
        f"after finish(): arrays of {kept['arrays'] / 1e6:.2f} MB ({ROW_BYTES_PER_TOKEN} bytes a token) hold "
        f"{kept['allocated'] / 1e6:.2f} MB allocated, {kept['resident'] / 1e6:.2f} MB resident"
    )
    grown = (again["late"] - again["early"]) / 1e6
    print(f"{again['rounds']} rollouts of mid: {grown:+.2f} MB resident between the first tenth and the last")
    if arguments.json:
        arguments.json.write_text(json.dumps({"peak": peak, "kept": kept, "again": again}, indent=1) + "\n")


if __name__ == "__main__":
    main()
