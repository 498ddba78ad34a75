"""`python -m trainworks.backends.ssh.node facts|watch|keep|run`: what ssh starts on a host.

`keep` holds the share of a job on this host, and `run` runs one command of the job: an agent, a check, the planner. The
first line of their input is an order, and further lines are signs of life. When these stop, or the connection ends,
`keep` kills what the job has left here and gives the share back, and `run` kills what it started. What a killed `run`
leaves behind, a process kills that waits for its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from trainworks import __version__
from trainworks.agent.launch import take_environment
from trainworks.errors import TrainworksError
from trainworks.files import closing_handle
from trainworks.host import forking, process
from trainworks.host.ledger import Claim, Share, machine_ledger
from trainworks.host.network import listen
from trainworks.host.probe import num_cores, probe_host
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
_LOST = 255
_LOOK_S = 1.0
_FACTS_S = 30.0
"""Time after which a host is probed again."""

Message = dict[str, Any]


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


def _say(message: Message) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _order(lines: Lines) -> tuple[Message, list[str]]:
    """The first line, and those that came with it; raises ConnectionError if none comes."""
    while select.select([lines], [], [], SILENCE_S)[0] and (said := lines.read()) is not None:
        if said:
            return json.loads(said[0]), said[1:]
    raise ConnectionError("no order came")


def facts() -> Message:
    """What this host has, and what jobs hold of it."""
    return {
        "version": __version__,
        "address": (os.environ.get("SSH_CONNECTION", "").split() or [""] * 3)[2],
        "host": probe_host(Path.home()).model_dump(mode="json"),
        "claims": claims(),
    }


def claims() -> list[Message]:
    """Claims in the ledger of this host."""
    return [{"uid": claim.uid, "share": claim.share.model_dump()} for claim in machine_ledger().claims()]


def watch(lines: Lines) -> None:
    """Say what this host has as soon as it changes, and that it is alive, while somebody listens."""
    said: Message = {}
    looks, silent = 0, 0.0
    while silent < SILENCE_S:
        now = facts() if looks % int(_FACTS_S / _LOOK_S) == 0 else said | {"claims": claims()}
        _say(now if now != said else {})
        said, looks = now, looks + 1
        silent += _LOOK_S
        if select.select([lines], [], [], _LOOK_S)[0]:
            silent = 0.0
            if lines.read() is None:
                return


def keep(lines: Lines) -> None:
    """Hold a share of this host until the other side ends or is silent; then nothing of the job is left here."""
    order, _ = _order(lines)
    if (refusal := _unseen(order)) is not None:
        _say({"seen": refusal})
        return
    marks: dict[str, str] = order["marks"]
    process.sweep({name: value for name, value in marks.items() if name != TURN})  # of a turn whose end was not seen
    claim = machine_ledger().claim(_choice(Share.model_validate(order["share"])))
    if claim is None:
        _say({"refused": "other jobs hold it"})
        return
    with closing_handle(claim):
        pid, started_at = process.identity()
        _say({"keeper": [pid, started_at]})
        while select.select([lines], [], [], SILENCE_S)[0] and lines.read() is not None:
            pass
        process.sweep(marks)


def _unseen(order: Message) -> str | None:
    """Why this host cannot run the job of a run directory."""
    run_dir = RunDir(Path(order["run_dir"]))
    with contextlib.suppress(TrainworksError, OSError):
        if run_dir.read_resolved().created_at == order["created_at"]:
            return None
    return f"it does not see the run directory `{run_dir.path}`"


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
    order, said = _order(lines)
    keeper, started_at = order["keeper"]
    pid, marks = os.getpid(), order["marks"] | {_SESSION: f"{os.getpid()}"}
    if not process.is_running(keeper, started_at):
        return _LOST
    if "ports" in order:
        _say({"ports": _free_ports(order["address"], order["ports"])})
        sys.stdout.write(f"{ENDED}0\n")
        return 0
    take_environment(RunDir(Path(order["run_dir"])), order["env"] | marks)
    forking.leave_behind(lambda: _wait_and_sweep(pid, marks))
    process.adopt_orphans()
    agent = process.spawn(order["command"], log=None)
    with closing_handle(os.pidfd_open(agent.pid)) as ended, closing_handle(os.pidfd_open(keeper)) as keeper_ended:
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


def _wait_and_sweep(pid: int, marks: Mapping[str, str]) -> None:
    process.wait_for_end(pid)
    process.sweep(marks)


def _free_ports(address: str, wanted: Sequence[int]) -> list[int]:
    with contextlib.ExitStack() as listeners:
        return [listeners.enter_context(listen(port, address)).getsockname()[1] for port in wanted]


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
