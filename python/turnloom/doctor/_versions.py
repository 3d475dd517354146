"""Whether what is installed fits what turnloom's extras ask for."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Final

from packaging.requirements import Requirement

from turnloom.doctor._findings import Finding

VLLM_RANGE: Final = ">=0.22,<=0.31"
"""What TRL 1.16 has been written for; with another it warns."""


def versions() -> Iterator[Finding]:
    """One finding for each package of the extra `trl`, and for vLLM."""
    yield Finding("Python", "good", f"{platform.python_implementation()} {platform.python_version()}")
    yield Finding("turnloom", "good", importlib.metadata.version("turnloom"))
    for text in importlib.metadata.requires("turnloom") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and wanted.marker.evaluate({"extra": "trl"}):
            yield _version(wanted, "turnloom[trl]")
    yield _version(Requirement(f"vllm{VLLM_RANGE}"), "trl[vllm]")


def _version(wanted: Requirement, install: str) -> Finding:
    bounds = ",".join(sorted(map(str, wanted.specifier), reverse=True))  # the lower one first
    needed, advice = f"{wanted.name}{bounds} is needed to train with TRL", f"pip install '{install}'"
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(wanted.name, "doubtful", f"missing; {needed}", advice)
    if wanted.specifier.contains(found, prereleases=True):
        return Finding(wanted.name, "good", found)
    return Finding(wanted.name, "bad", f"{found}; {needed}", advice)
