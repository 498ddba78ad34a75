"""Exits of the ranks of one node: their own failure events, those the agent adds, and whether a restart can help."""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainworks.errors import TrainworksError
from trainworks.host import memory, process
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.fence import agent_is_superseded
from trainworks.record.memory import MemoryAtFailure
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import NodeStanding, Options, RecoveryDecision, Verdict, decide, restart_verdict
from trainworks.recover.restarts import RANK_RESTART, RestartLimit, may_restart
from trainworks.worker.health.hang_monitor import Watched

_NO_REPORT = 255


@dataclass(frozen=True, slots=True)
class RankExit:
    """A rank that ended, and did not succeed."""

    rank: int
    pid: int
    code: int
    """Negative signal number if a signal ended it."""


class RankExits:
    """Judges the failed ranks of one node.

    Args:
        run_dir: of the run.
        node: index of this node.
        last_seen: last observation of a rank.
        limit: restarts that the job has.
    """

    def __init__(self, run_dir: RunDir, node: int, last_seen: Callable[[int], Watched], limit: RestartLimit) -> None:
        self._run_dir = run_dir
        self._node = node
        self._last_seen = last_seen
        self._limit = limit
        self._verdict = Verdict.RESTART
        self._rendezvous = ""
        self._before: list[Event] = []
        self._oom_kills = 0
        self.first_bad_code: int = ExitCode.PEER_LOST
        """Exit code of the rank that failed first, not of those that lost their peer to it."""

    def begin(self, rendezvous: str) -> None:
        """Start a new attempt: earlier events of the record do not concern it."""
        self._rendezvous = rendezvous
        self._verdict = Verdict.RESTART
        self._before = read_events(self._run_dir.events_file)
        self._oom_kills = memory.oom_kills()

    def decide(self) -> RecoveryDecision:
        """What follows the failures of this attempt; the record of all agents has the restarts that are left."""
        has_restart = may_restart(read_events(self._run_dir.events_file), self._limit, RANK_RESTART)
        return decide(self._verdict, NodeStanding.FIT, Options(has_restart))

    def judge(self, exits: Sequence[RankExit]) -> Verdict:
        """Note the ranks that could not say why they ended; returns whether a restart can help all of them."""
        told = {event["pid"]: event for event in self._failures_of_this_node()}
        failures = [told.get(each.pid) or self._note_exit(each) for each in exits]
        own = [each.code for each in exits if each.code != ExitCode.PEER_LOST]
        self.first_bad_code = own[0] if own else ExitCode.PEER_LOST
        since = self._since()
        for failure in failures:
            verdict = restart_verdict(failure, self._before, since)
            if verdict is not Verdict.RESTART:
                self._note_refusal(failure, verdict)
                self._verdict = verdict
                break
        return self._verdict

    def note_lost_fork_server(self, pids: Sequence[int]) -> None:
        """End all ranks of the node: they live on without the process that would report how they end."""
        for pid in pids:
            process.kill(pid)
        self.first_bad_code = -signal.SIGKILL
        self.note(
            rank=None,
            cause="node_lost",
            exit_code=self.first_bad_code,
            signal=signal.SIGKILL.name,
            message="the fork server of the node's ranks was killed",
        )

    def note(self, **fields: Any) -> Event:
        """Write a failure of this node; one that cannot be written, or must not be, is judged all the same."""
        event = {"node": self._node, "host": socket.gethostname(), "rendezvous": self._rendezvous, **fields}
        if self.is_superseded:
            return {"kind": "failure", **event}
        with contextlib.suppress(TrainworksError, OSError):
            append_event(self._run_dir.events_file, "failure", **event)
        return {"kind": "failure", **event}

    @property
    def is_superseded(self) -> bool:
        """True if another launch, or another agent of this node, has started since: this one writes nothing more."""
        return agent_is_superseded(self._since(), self._node, os.getpid())

    def _since(self) -> list[Event]:
        return read_events(self._run_dir.events_file)[len(self._before) :]

    def _failures_of_this_node(self) -> list[Event]:
        return [event for event in self._since() if event["kind"] == "failure" and event.get("node") == self._node]

    def _note_refusal(self, failure: Event, verdict: Verdict) -> None:
        """Write why a failure is final, where its cause alone does not say so."""
        if verdict is Verdict.FINAL_CAUSE or self.is_superseded:
            return
        about = {key: failure.get(key) for key in ("node", "rank", "cause", "rendezvous")}
        with contextlib.suppress(TrainworksError, OSError):
            append_event(self._run_dir.events_file, "restart_refused", **about, message=str(verdict))

    def _note_exit(self, ended: RankExit) -> Event:
        """Failure of a rank that could not report it itself; the kernel counts its out-of-memory kills."""
        seen = self._last_seen(ended.rank)
        return self.note(
            rank=ended.rank,
            pid=ended.pid,
            exit_code=ended.code,
            step=seen.beat.step,
            phase=seen.beat.phase.text,
            **(self._of_signal(-ended.code, seen) if ended.code < 0 else _of_exit_code(ended.code)),
        )

    def _of_signal(self, number: int, seen: Watched) -> dict[str, Any]:
        name = signal.Signals(number).name
        if number != signal.SIGKILL or memory.oom_kills() <= self._oom_kills:
            return {"cause": "killed", "signal": name, "message": f"killed by {name}"}
        limited_by, _ = memory.memory_left_bytes()
        held = MemoryAtFailure(limited_by=limited_by, peak_bytes=seen.peak_bytes).model_dump()
        return {
            "cause": "oom",
            "signal": name,
            "message": f"out of memory: killed by the kernel ({name})",
            "memory": held,
        }


def _of_exit_code(code: int) -> dict[str, Any]:
    return {
        "cause": "unknown",
        "signal": None,
        "fingerprint": f"exit code {code}",
        "message": f"exited with code {code} without an error message",
    }


def fork_server_is_lost(exits: Sequence[RankExit]) -> bool:
    """True if the fork server, which reports the exit codes of the ranks, has ended.

    Without it, multiprocessing reports exit code 255 for ranks that still run.
    """
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    is_gone = server is not None and not _is_alive(server)
    return is_gone or any(each.code == _NO_REPORT and _is_alive(each.pid) for each in exits)


def _is_alive(pid: int) -> bool:
    return process.state(pid) not in ("Z", "X")
