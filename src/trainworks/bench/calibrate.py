"""The two-second calibration: measured once per machine and shape, then remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from trainworks.bench.remembered import remembered
from trainworks.errors import EnvironmentProblem, MissingExtraError
from trainworks.host import process
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.environment import HostFacts

__all__ = ["calibrate"]

_TIMEOUT_S = 300
_METHOD = 3
"""Counts the changes of what is measured: an answer of another method is none."""


def calibrate(
    request: CalibrationRequest,
    host: HostFacts,
    cache: Path,
    *,
    environment: Mapping[str, str],
    again: bool = False,
) -> Calibration:
    """What this machine reaches in the shapes of `request`.

    Args:
        request: what to measure.
        host: this machine; another one, or another torch, is measured anew.
        cache: folder of earlier calibrations.
        environment: variables that the ranks will have.
        again: measure even if there is an earlier one.

    Raises:
        MissingExtraError: torch is not installed.
        EnvironmentProblem: the measurement failed; the message ends with its last line.
    """
    if "torch" not in host.packages:
        raise MissingExtraError("torch", "train")
    known = cache / f"{_key(request, host)}.json"
    return remembered(known, Calibration, lambda: _run(request, environment), again=again)


def _run(request: CalibrationRequest, environment: Mapping[str, str]) -> Calibration:
    env = os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"}
    command = process.python_module("trainworks.worker.calibrate", request.model_dump_json())
    output = process.run(command, timeout_s=_TIMEOUT_S, env=env)
    if output.exit_code != 0:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(f"the calibration of this machine failed: {reason}")
    return Calibration.model_validate_json(output.stdout.splitlines()[-1])


def _key(request: CalibrationRequest, host: HostFacts) -> str:
    accelerators = [accelerator.name for accelerator in host.accelerators]
    facts = [_METHOD, request.model_dump(), host.hostname, host.processor, host.num_cores, accelerators, host.packages]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
