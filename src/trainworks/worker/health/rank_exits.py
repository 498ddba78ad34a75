"""Exits of the ranks of one node: their own failure events, those the agent adds, and whether a restart can help."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.forkserver
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainworks.errors import TrainworksError
from trainworks.host import memory, process
from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.fence import agent_is_superseded
from trainworks.record.memory import MemoryAtFailure
from trainworks.record.run_dir import RunDir
from trainworks.recover import decisions
from trainworks.recover.restarts import RANK_RESTART, RestartLimit, may_restart
from trainworks.worker.health.hang import Watched

_LOG = logging.getLogger(__name__)

_NO_REPORT = 255


@dataclass(frozen=True, slots=True)
class RankExit:
    """A rank that ended, and did not succeed."""

    rank: int
    pid: int
    code: int
    """Negative signal number if a signal ended it."""


@dataclass(eq=False)
class RankExits:
    """Judges the failed ranks of one node."""

    run_dir: RunDir
    node: int
    last_seen: Callable[[int], Watched]
    limit: RestartLimit
    _verdict: decisions.Verdict = field(default=decisions.Verdict.RESTART, init=False)
    _rendezvous: str = field(default="", init=False)
    _before: list[Event] = field(default_factory=list, init=False)
    _oom_kills: int = field(default=0, init=False)
    first_bad_code: int = field(default=ExitCode.PEER_LOST, init=False)
    """Exit code of the rank that failed first, not of those that lost their peer to it."""

    def begin(self, rendezvous: str) -> None:
        """Start a new attempt: earlier events of the record do not concern it."""
        self._rendezvous = rendezvous
        self._verdict = decisions.Verdict.RESTART
        self._before = read_events(self.run_dir.events_file)
        self._oom_kills = memory.oom_kills()

    def decide(self) -> decisions.RecoveryDecision:
        """What follows the failures of this attempt; the record of all agents has the restarts that are left."""
        has_restart = may_restart(read_events(self.run_dir.events_file), self.limit, RANK_RESTART)
        decision = decisions.decide(self._verdict, decisions.NodeStanding.FIT, decisions.Options(has_restart))
        _LOG.info("ranks ended with %d first: %s, %s", self.first_bad_code, decision.action, decision.reason)
        return decision

    def judge(self, exits: Sequence[RankExit]) -> decisions.Verdict:
        """Note the ranks that could not say why they ended; returns whether a restart can help all of them."""
        known = of_kind(self._new_events(), FailureEvent)
        told = {event.get("pid"): event for event in known if event.get("node") == self.node}
        failures = [told.get(each.pid) or self._note_exit(each) for each in exits]
        own = [each.code for each in exits if each.code != ExitCode.PEER_LOST]
        self.first_bad_code = own[0] if own else ExitCode.PEER_LOST
        since = self._new_events()
        for failure in failures:
            verdict = decisions.restart_verdict(failure, self._before, since)
            if verdict is not decisions.Verdict.RESTART:
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
            FailureEvent(
                kind="failure",
                rank=None,
                node=self.node,
                cause="agent_lost",
                exit_code=self.first_bad_code,
                signal=signal.SIGKILL.name,
                message="the fork server of the node's ranks was killed",
            )
        )

    def note(self, failure: FailureEvent) -> FailureEvent:
        """Write a failure of this node; one that cannot be written, or must not be, is judged all the same."""
        failure |= {"host": socket.gethostname(), "rendezvous": self._rendezvous}
        if not self.is_superseded:
            with contextlib.suppress(TrainworksError, OSError):
                self.run_dir.note(failure)
        return failure

    @property
    def is_superseded(self) -> bool:
        """True if another launch, or another agent of this node, has started since: this one writes nothing more."""
        return agent_is_superseded(self._new_events(), self.node, os.getpid())

    def _new_events(self) -> list[Event]:
        return read_events(self.run_dir.events_file)[len(self._before) :]

    def _note_refusal(self, failure: FailureEvent, verdict: decisions.Verdict) -> None:
        """Write why a failure is final, where its cause alone does not say so."""
        if verdict is decisions.Verdict.FINAL_CAUSE or self.is_superseded:
            return
        with contextlib.suppress(TrainworksError, OSError):
            self.run_dir.note(decisions.refusal(failure, verdict))

    def _note_exit(self, ended: RankExit) -> FailureEvent:
        """Failure of a rank that could not report it itself; the kernel counts its out-of-memory kills."""
        seen = self.last_seen(ended.rank)
        name = process.signal_name(-ended.code) if ended.code < 0 else None
        failure = FailureEvent(
            kind="failure",
            rank=ended.rank,
            node=self.node,
            pid=ended.pid,
            cause="killed" if name else "unknown",
            exit_code=ended.code,
            signal=name,
            message=f"killed by {name}" if name else f"exited with code {ended.code} without an error message",
            step=seen.beat.step,
            phase=seen.beat.phase.text,
        )
        if name is None:
            failure["fingerprint"] = f"exit code {ended.code}"
        elif -ended.code == signal.SIGKILL and memory.oom_kills() > self._oom_kills:
            limited_by, _ = memory.memory_left_bytes()
            failure["cause"], failure["message"] = "oom", f"out of memory: killed by the kernel ({name})"
            failure["memory"] = MemoryAtFailure(limited_by=limited_by, peak_bytes=seen.peak_bytes).model_dump()
        return self.note(failure)


def fork_server_is_lost(exits: Sequence[RankExit]) -> bool:
    """True if the fork server, which reports the exit codes of the ranks, has ended.

    Without it, multiprocessing reports exit code 255 for ranks that still run.
    """
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    is_gone = server is not None and not _is_alive(server)
    return is_gone or any(each.code == _NO_REPORT and _is_alive(each.pid) for each in exits)


def _is_alive(pid: int) -> bool:
    return process.state(pid) not in ("Z", "X")
