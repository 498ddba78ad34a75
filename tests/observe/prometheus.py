"""Prometheus' own programs, from Debian's packages, as judges of what we write for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")


def program(name: str) -> str:
    """Path of a program of Prometheus; without it a test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: no {name}: apt-get install {' '.join(_PACKAGES)}")
    return found


def judge(*command: str | Path, text: str | None = None) -> None:
    """Run one of the programs; it must have no complaint."""
    done = subprocess.run(
        [program(str(command[0])), *map(str, command[1:])], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def values(text: str) -> dict[str, float]:
    """Value by series of an exposition."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}
