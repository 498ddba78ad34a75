"""A machine with GPUs that a test breaks, for its own process and for all that it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.gpus.gpu_answers import answers

_HERE = Path(__file__).parent


class GpuMachine:
    """GPUs of this machine, and the kernel's log."""

    def __init__(self, folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.describe(*({} for _ in range(count)))
        self.log = folder / "kernel.log"
        self.log.touch()
        dmesg = folder / "bin" / "dmesg"
        dmesg.write_text(f"#!/bin/sh\nexec cat '{self.log}'\n")
        dmesg.chmod(0o755)
        monkeypatch.setenv("TRAINWORKS_TEST_GPUS", str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
        monkeypatch.setenv("PATH", os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, answer in answers(pynvml).items():
            monkeypatch.setattr(pynvml, name, answer)

    def describe(self, *gpus: dict[str, Any], host: str = "gpus") -> None:
        """What each GPU is like from now on, on this machine or a host that stands for another."""
        (self.folder / f"{host}.json").write_text(json.dumps(gpus))

    def breaking(self, number: int, count: int, host: str = "gpus") -> str:
        """Shell line after which a GPU of `count` has uncorrected errors of memory."""
        gpus = [{"uncorrected": 3} if index == number else {} for index in range(count)]
        return f"echo '{json.dumps(gpus)}' > {self.folder}/{host}.json"
