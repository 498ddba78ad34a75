"""What is measured once before a plan, and then remembered: rates of this machine, and steps of the real model."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem, MissingExtraError, UsageError
from trainworks.files import held_lock, temporary_folder, write_atomic
from trainworks.host import process
from trainworks.host.network import Machines, is_loopback, listen
from trainworks.host.other_load import OtherLoad
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.environment import HostFacts
from trainworks.record.trial import Trial, TrialRequest
from trainworks.record.usage import QUIET_SHARE
from trainworks.system import check_linux

_Answer = TypeVar("_Answer", bound=Spec)


def remembered(
    path: Path,
    kind: type[_Answer],
    measure: Callable[[], _Answer],
    *,
    again: bool,
    holds: Callable[[_Answer, float], bool] = lambda answer, age_s: True,
) -> _Answer:
    """The answer in a file, or a new one, which is written there.

    A file that cannot be read counts as none, and so does an answer that at its age no longer `holds`. While another
    process measures the same, this one waits for its answer: two at once would slow each other down, and plan by
    different answers.
    """
    if not again and (known := _known(path, kind, holds)) is not None:
        return known
    path.parent.mkdir(parents=True, exist_ok=True)
    with held_lock(path.with_suffix(".lock")):
        if not again and (known := _known(path, kind, holds)) is not None:
            return known
        answer = measure()
        write_atomic(path, answer.model_dump_json(indent=2) + "\n")
        return answer


def _known(path: Path, kind: type[_Answer], holds: Callable[[_Answer, float], bool]) -> _Answer | None:
    try:
        age_s = time.time() - path.stat().st_mtime
        answer = kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return answer if holds(answer, age_s) else None


_MODULE = "trainworks.worker.calibrate"
_TIMEOUT_S = 300
_ENDS_S = 10.0
"""Time the other machines may take to end after the first."""
_HOLDS_S = 8 * 3600.0
"""Age up to which rates count: cores throttle, hosts of virtual machines fill up, and some seconds measure anew."""
_SHARED_HOLDS_S = 600.0
"""Age up to which rates count that were measured beside other programs, while those run on."""
_METHOD = 4
"""Counts the changes of what is measured: an answer of another method is none."""


def calibrate(
    request: CalibrationRequest,
    host: HostFacts,
    cache: Path,
    *,
    environment: Mapping[str, str],
    again: bool = False,
    machines: Machines | None = None,
    python: str | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measured rates of this machine, or several, in the shapes of `request`.

    Rates hold for eight hours. Those that were measured beside other programs are measured anew once the programs have
    ended, and after ten minutes: the same load average is another share of the cores then.

    Args:
        request: what to measure.
        host: this machine; another one, or another torch, is measured anew.
        cache: folder of earlier calibrations.
        environment: variables of the ranks.
        again: measure even if there is an earlier one.
        machines: nodes of the request; by default this machine.
        python: interpreter of the ranks on this machine; Trainworks' own when None.
        announce: receives a line before something is measured.

    Raises:
        MissingExtraError: torch is not installed.
        EnvironmentProblem: the measurement failed; the message ends with its last line. Or this is not Linux.
    """
    check_linux("measuring this machine for a plan", otherwise="plan for a cluster with `--on`")
    if "torch" not in host.packages:
        raise MissingExtraError("torch", "train")

    def measure() -> Calibration:
        announce("measuring the rates of this machine, which takes some seconds; later plans use them again")
        text, load = request.model_dump_json(), OtherLoad()
        if machines is None:
            env = os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"}
            output = process.run(process.python_module(_MODULE, text, python=python), timeout_s=_TIMEOUT_S, env=env)
        else:
            output = _run_on_all(machines, request.nodes, text, dict(os.environ) | dict(environment))
        if output.exit_code != 0:
            reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
            raise EnvironmentProblem(f"the calibration of this machine failed: {reason}")
        calibration = Calibration.model_validate_json(output.stdout.splitlines()[-1])
        return calibration.model_copy(update={"others_share": load.share() if machines is None else None})

    accelerators = [accelerator.name for accelerator in host.accelerators]
    facts = [_METHOD, request.model_dump(), host.hostname, host.processor, host.num_cores, accelerators, host.packages]

    def holds(known: Calibration, age_s: float) -> bool:
        share = known.others_share or 0.0
        if share <= QUIET_SHARE:
            return age_s <= _HOLDS_S
        return age_s <= _SHARED_HOLDS_S and os.getloadavg()[0] / (os.cpu_count() or 1) >= share / 2

    return remembered(cache / f"{_digest(facts)}.json", Calibration, measure, again=again, holds=holds)


def _run_on_all(machines: Machines, nodes: int, request: str, env: dict[str, str]) -> process.Output:
    """The output of the first of several machines."""
    address = machines.addresses[0]
    env = env | ({"GLOO_SOCKET_IFNAME": "lo"} if is_loopback(address) else {})
    with listen(address=address) as free:
        port = str(free.getsockname()[1])
    commands = [
        machines.command(node, process.python_module(_MODULE, request, str(node), address, port))
        for node in range(nodes)
    ]
    with temporary_folder("trainworks-calibrate-") as folder:
        others = [
            process.spawn(command, log=folder / f"node-{node}.log", env=env)
            for node, command in enumerate(commands[1:], 1)
        ]
        try:
            return process.run(commands[0], timeout_s=_TIMEOUT_S, env=env)
        finally:
            for other in others:
                other.wait(_ENDS_S)
                other.signal_group(signal.SIGKILL)
                other.wait()


_TRIAL_TIMEOUT_S = 900


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

    The arguments are those of `calibrate`, and `cache` is the folder of earlier trials. Imports of a module's file, and
    variables, do not invalidate them.

    Raises:
        UsageError: the model, or the user's file, is at fault; with `file:line`.
        TrialOutOfMemoryError: this layout needs too much.
        EnvironmentProblem: the trial did not finish.
    """

    def measure() -> Trial:
        announce(f"training a few steps with {request.layout.describe()}, to measure them; later plans use the result")
        return _train_steps(request, environment, python)

    # everything that affects the trial; the length of the run does not
    fields = request.model_dump(mode="json")
    fields["workload"] |= {"train_for": None, "eval": request.workload.eval is not None}
    module = request.workload.model.module
    file = Path(module).read_bytes().decode(errors="replace") if module else None
    accelerators = [accelerator.name for accelerator in host.accelerators]
    facts = [2, fields, file, host.hostname, host.processor, host.num_cores, accelerators, host.packages]
    return remembered(cache / f"{_digest(facts)}.json", Trial, measure, again=again)


def _train_steps(request: TrialRequest, environment: Mapping[str, str], python: str | None) -> Trial:
    env = os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"}
    arguments = (request.model_dump_json(), str(os.getpid()))
    command = process.python_module("trainworks.worker.trial", *arguments, python=python)
    output = process.run(command, timeout_s=_TRIAL_TIMEOUT_S, env=env)
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


def _digest(facts: list[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
