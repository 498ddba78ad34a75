"""`python -m trainworks.backends.ssh.node facts|watch|keep|run`: what ssh starts on a host.

`keep` holds the share of a job on this host, and `run` runs one command of the job: an agent, a check, the planner. The
first line of their input is an order, and further lines are signs of life. When these stop, or the connection ends,
`keep` kills what the job has left here and gives the share back, and `run` kills what it started. What a killed `run`
leaves behind, a process kills that waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel

from trainworks import __version__
from trainworks.agent.launch import take_environment
from trainworks.backends.local.quotas import machine_ledger
from trainworks.errors import TrainworksError
from trainworks.files import closing_handle
from trainworks.host import forking, process
from trainworks.host.ledger import Claim, Share
from trainworks.host.network import free_ports
from trainworks.host.probe import cuda_names, num_cores, probe_host
from trainworks.record.environment import HostFacts
from trainworks.record.run_dir import RunDir

PROGRAM = "trainworks.backends.ssh.node"
BEAT_S = 2.0
"""Time between two signs of life."""
SILENCE_S = 12.0
"""Silence after which a connection is lost; the client of ssh gives it up after 15 s, so that what runs here has ended
before it is started again elsewhere."""
ENDED = "\x1e"
"""Begins the last line of `run`, before the exit code of the command; negative for a signal."""
TURN, HOST = "TRAINWORKS_SSH_TURN", "TRAINWORKS_SSH_HOST"
_SESSION = "TRAINWORKS_SSH_SESSION"
"""Variables of all processes of one turn of a job, of one host, and of one command."""
NODES = "TRAINWORKS_SSH_NODES"
"""Variable with the number of nodes of a job, and the cores and accelerators of each."""
_WATCH_SILENCE_S = 60.0
"""The same for `watch`, to which a dispatcher is silent while it waits for the keepers of a job."""
_LOST = 255
_LOOK_S = 1.0
_FACTS_LOOKS = 30
"""Looks after which a host is probed again."""


class HeldShare(BaseModel):
    """A claim in the ledger of a host."""

    uid: int
    share: Share


class HostAnswer(BaseModel):
    """What a host has, and what jobs hold of it."""

    version: str
    address: str
    """Address to which ssh has connected."""
    host: HostFacts
    claims: list[HeldShare]


class KeepOrder(BaseModel):
    """A share of a host to hold, and the run that it is for."""

    run_dir: str
    created_at: float
    """Time of the resolved run: a host that reads another one does not see the run directory."""
    marks: dict[str, str]
    """Variables of all processes of the turn on this host."""
    share: Share


class KeepAnswer(BaseModel):
    """What a host answers to a `KeepOrder`; a link adds the host, and says that the connection has ended."""

    host: str = ""
    keeper: tuple[int, float] | None = None
    """Process that holds the share, and its start; None if the host does not hold it."""
    refused: str | None = None
    """Why the job can never run on this host."""


class RunOrder(BaseModel):
    """A command to run on a host, or ports to find there."""

    run_dir: str
    keeper: tuple[int, float]
    marks: dict[str, str]
    env: dict[str, str]
    command: list[str] = []
    address: str = ""
    ports: list[int] = []


class PortsAnswer(BaseModel):
    """Ports of a host that are free."""

    ports: list[int]


@final
class Lines:
    """Reads whole lines of an open file as they come."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._rest = b""

    def fileno(self) -> int:
        """The open file, for `select`."""
        return self._handle

    def read(self) -> list[str] | None:
        """Lines that have come; None at the end of the file."""
        try:
            data = os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _say(message: BaseModel) -> None:
    sys.stdout.write(message.model_dump_json() + "\n")
    sys.stdout.flush()


def _order(lines: Lines) -> tuple[str, list[str]]:
    """The first line, and those that came with it; raises ConnectionError if none comes."""
    while select.select([lines], [], [], SILENCE_S)[0] and (said := lines.read()) is not None:
        if said:
            return said[0], said[1:]
    raise ConnectionError("no order came")


def facts(host: HostFacts | None = None) -> HostAnswer:
    """What this host has, and what jobs hold of it; `host` is what is known of it already."""
    claims = [HeldShare(uid=claim.uid, share=claim.share) for claim in machine_ledger().claims()]
    address = (os.environ.get("SSH_CONNECTION", "").split() or [""] * 3)[2]
    return HostAnswer(version=__version__, address=address, host=host or probe_host(Path.home()), claims=claims)


def watch(lines: Lines) -> None:
    """Say every second what this host has, while the other side gives signs of life."""
    said, looks, silent_s = facts(), 0, 0.0
    while silent_s < _WATCH_SILENCE_S:
        _say(said)
        looks, silent_s = looks + 1, silent_s + _LOOK_S
        if select.select([lines], [], [], _LOOK_S)[0]:
            silent_s = 0.0
            if lines.read() is None:
                return
        said = facts(said.host if looks % _FACTS_LOOKS else None)


def keep(lines: Lines) -> None:
    """Hold a share of this host until the other side ends or is silent; then nothing of the job is left here."""
    order = KeepOrder.model_validate_json(_order(lines)[0])
    created_at = 0.0
    with contextlib.suppress(TrainworksError, OSError):
        created_at = RunDir(Path(order.run_dir)).read_resolved().created_at
    if created_at != order.created_at:
        _say(KeepAnswer(refused=f"it does not see the run directory `{order.run_dir}`"))
        return
    of_any_turn = {name: value for name, value in order.marks.items() if name != TURN}
    process.sweep(of_any_turn)  # also of one whose end was not seen
    claim = machine_ledger().claim(_choice(order.share))
    if claim is None:  # other jobs hold it
        _say(KeepAnswer())
        return
    with closing_handle(claim):
        _say(KeepAnswer(keeper=process.identity()))
        while select.select([lines], [], [], SILENCE_S)[0] and lines.read() is not None:
            pass
        process.sweep(order.marks)


def _choice(share: Share) -> Callable[[Sequence[Claim]], Share | None]:
    """Selects the share if no other job holds a part of it."""

    def choose(held: Sequence[Claim]) -> Share | None:
        others = [claim.share for claim in held if (claim.uid, claim.share.key) != (os.getuid(), share.key)]
        cores = sum(other.cores for other in others)
        is_free = cores + share.cores <= num_cores() + 1e-6
        return share if is_free and not any(set(other.devices) & set(share.devices) for other in others) else None

    return choose


def run(lines: Lines) -> int:
    """Run a command to its end, or to that of the connection or of the keeper; or find ports that are free.

    Returns:
        The exit code of this process; that of the command is the last line.
    """
    text, said = _order(lines)
    order = RunOrder.model_validate_json(text)
    if not process.is_running(*order.keeper):
        return _LOST
    if order.ports:
        sys.stdout.write(f"{ENDED}{_find_ports(order)}\n")
        return 0
    marks = order.marks | {_SESSION: f"{os.getpid()}"}
    env = order.env
    if devices := env.get("CUDA_VISIBLE_DEVICES"):
        env = env | {"CUDA_VISIBLE_DEVICES": cuda_names([int(device) for device in devices.split(",")])}
    take_environment(RunDir(Path(order.run_dir)), env | marks)
    forking.leave_sweeper(marks)
    process.adopt_orphans()
    agent = process.spawn(order.command, log=None)
    with (
        closing_handle(os.pidfd_open(agent.pid)) as ended,
        closing_handle(os.pidfd_open(order.keeper[0])) as keeper_ended,
    ):
        while (code := agent.exit_code()) is None:
            for number in filter(None, said):
                agent.signal_group(signal.Signals(int(number)))
            watched: list[Any] = [lines, ended, keeper_ended]
            ready, _, _ = select.select(watched, [], [], SILENCE_S)
            heard = lines.read() if lines in ready else []
            if not ready or heard is None or keeper_ended in ready:
                process.end_descendants(0)
                return _LOST
            said = heard
    sys.stdout.write(f"\n{ENDED}{code}\n")
    return 0


def _find_ports(order: RunOrder) -> int:
    """Say which ports are free; returns the exit code."""
    try:
        _say(PortsAnswer(ports=free_ports(order.address, order.ports)))
    except TrainworksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def main(what: str) -> int:
    """Do what ssh was asked for; returns the exit code."""
    lines = Lines(0)
    try:
        match what:
            case "facts":
                _say(facts())
            case "watch":
                watch(lines)
            case "keep":
                keep(lines)
            case "run":
                return run(lines)
    except TrainworksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (ConnectionError, ProcessLookupError):  # nobody listens, or holds the share, any more
        return _LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
