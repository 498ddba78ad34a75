"""A few steps of the real model before the run: tried once per file, layout and machine, then remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.measure.cache import remembered
from trainworks.record.environment import HostFacts
from trainworks.record.trial import Trial, TrialRequest

_TIMEOUT_S = 900


class TrialOutOfMemoryError(EnvironmentProblem):
    """The layout that was tried needs more memory than there is."""


def try_out(
    request: TrialRequest,
    host: HostFacts,
    cache: Path,
    *,
    environment: Mapping[str, str],
    again: bool = False,
    python: str | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> Trial:
    """Measured memory and time of a few steps.

    Args:
        request: the model and its layout.
        host: this machine; another one, or another torch, is measured anew.
        cache: folder of earlier trials. Imports of a module's file, and variables, do not invalidate it.
        environment: variables of the ranks.
        again: try even if there was a trial.
        python: interpreter of the ranks; Trainworks' own when None.
        announce: receives a line before something is measured.

    Raises:
        UsageError: the model, or the user's file, is at fault; with `file:line`.
        TrialOutOfMemoryError: this layout needs too much.
        EnvironmentProblem: the trial did not finish.
    """

    def measure() -> Trial:
        announce(f"training a few steps with {request.layout.describe()}, to measure them; later plans use the result")
        return _run(request, environment, python)

    return remembered(cache / f"{_key(request, host)}.json", Trial, measure, again=again)


def _run(request: TrialRequest, environment: Mapping[str, str], python: str | None) -> Trial:
    env = os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"}
    arguments = (request.model_dump_json(), str(os.getpid()))
    command = process.python_module("trainworks.worker.trial", *arguments, python=python)
    output = process.run(command, timeout_s=_TIMEOUT_S, env=env)
    last = (output.stdout.strip().splitlines() or [""])[-1]
    try:
        answer = json.loads(last)
    except ValueError:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(f"the trial of this model failed: {reason}") from None
    if "error" not in answer:
        return Trial.model_validate(answer)
    if answer.get("cause") == "oom":
        raise TrialOutOfMemoryError(answer["error"])
    kind = EnvironmentProblem if answer.get("cause") in ("environment", "disk_full") else UsageError
    raise kind(answer["error"], place=answer.get("place"), hint=answer.get("hint"))


def _key(request: TrialRequest, host: HostFacts) -> str:
    """Cache key of everything that affects the trial; the length of the run does not."""
    module = request.workload.model.module
    fields = request.model_dump(mode="json")
    fields["workload"] |= {"train_for": None, "eval": request.workload.eval is not None}
    file = Path(module).read_bytes().decode(errors="replace") if module else None
    accelerators = [accelerator.name for accelerator in host.accelerators]
    facts = [1, fields, file, host.hostname, host.processor, host.num_cores, accelerators, host.packages]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
