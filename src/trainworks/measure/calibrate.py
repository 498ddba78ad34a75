"""The two-second calibration: measured once per machine and shape, then remembered."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainworks.errors import EnvironmentProblem, MissingExtraError
from trainworks.host import process
from trainworks.host.network import is_loopback, listen
from trainworks.host.other_load import OtherLoad
from trainworks.measure.cache import remembered
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.environment import HostFacts

_MODULE = "trainworks.worker.calibrate"
_TIMEOUT_S = 300
_ENDS_S = 10.0
"""Time the other machines may take to end after the first."""
_METHOD = 4
"""Counts the changes of what is measured: an answer of another method is none."""


class Machines(Protocol):
    """Nodes of a job, and a way to start processes on them."""

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes; the first one is this machine's."""
        ...

    def command(self, node: int, command: list[str]) -> list[str]:
        """An argument vector for this machine that runs `command` on a node, and ends as it does."""
        ...


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
        EnvironmentProblem: the measurement failed; the message ends with its last line.
    """
    if "torch" not in host.packages:
        raise MissingExtraError("torch", "train")

    def measure() -> Calibration:
        announce("measuring the rates of this machine, which takes some seconds; later plans use them again")
        return _run(request, environment, machines, python)

    return remembered(cache / f"{_key(request, host)}.json", Calibration, measure, again=again)


def _run(
    request: CalibrationRequest, environment: Mapping[str, str], machines: Machines | None, python: str | None
) -> Calibration:
    text, load = request.model_dump_json(), OtherLoad()
    if machines is None:
        env = os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"}
        output = process.run(process.python_module(_MODULE, text, python=python), timeout_s=_TIMEOUT_S, env=env)
    else:
        output = _on_all(machines, request.nodes, text, dict(os.environ) | dict(environment))
    if output.exit_code != 0:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(f"the calibration of this machine failed: {reason}")
    calibration = Calibration.model_validate_json(output.stdout.splitlines()[-1])
    return calibration.model_copy(update={"others_share": load.share() if machines is None else None})


def _on_all(machines: Machines, nodes: int, request: str, env: dict[str, str]) -> process.Output:
    """The output of the first of several machines."""
    address = machines.addresses[0]
    env = env | ({"GLOO_SOCKET_IFNAME": "lo"} if is_loopback(address) else {})
    with listen(address=address) as free:
        port = str(free.getsockname()[1])
    commands = [
        machines.command(node, process.python_module(_MODULE, request, str(node), address, port))
        for node in range(nodes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        others = [
            process.spawn(command, log=Path(folder) / f"node-{node}.log", env=env)
            for node, command in enumerate(commands[1:], 1)
        ]
        try:
            return process.run(commands[0], timeout_s=_TIMEOUT_S, env=env)
        finally:
            for other in others:
                other.wait(_ENDS_S)
                other.signal_group(signal.SIGKILL)


def _key(request: CalibrationRequest, host: HostFacts) -> str:
    accelerators = [accelerator.name for accelerator in host.accelerators]
    facts = [_METHOD, request.model_dump(), host.hostname, host.processor, host.num_cores, accelerators, host.packages]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
