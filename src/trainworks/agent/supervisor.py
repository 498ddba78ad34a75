"""The supervisor of one job: `python -m trainworks.agent.supervisor RUN_DIR PARENT_PID [LOCK CLAIM]` here.

It starts one agent per node, watches them, restarts what can be restarted, ends everything in the end, and writes
status.json. PARENT_PID is the process to die with; 0 for a job that survives its shell. LOCK is the open file with the
run's lock, where the caller has taken it; CLAIM the one by which the job holds its share of this machine. The variable
`TRAINWORKS_HELD`, which no other process gets, has the accelerators of that share as JSON of a `MachineShare`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from trainworks.agent.accelerators import HELD, MachineShare
from trainworks.agent.command_nodes import nodes_of
from trainworks.agent.enter import end_entered
from trainworks.agent.node_agents import NODE_LEAVES, Hosts, Nodes, ThisMachine, note_lost
from trainworks.agent.observers import running_observers, start_observers
from trainworks.agent.recovery import Recovery
from trainworks.agent.watches import IdleWatch
from trainworks.errors import NodeLostError, SupersededError, TrainworksError
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.folders import FINISHED_RUNS, data_folder
from trainworks.host.forking import Spare
from trainworks.jobs.state import TRANSITIONS, Cause, JobState, parse_state
from trainworks.record.events.job import (
    FailureEvent,
    FailureReason,
    NoticeEvent,
    StopRequestedEvent,
    SubmittedEvent,
)
from trainworks.record.events.log import Event, of_kind, read_events, read_events_from
from trainworks.record.exit_code import End, ExitCode, as_exit_code
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.decisions import Verdict, answer_notice, command_verdict
from trainworks.recover.failures import first_failure, is_consequence, lacks_gpus, lost_agents
from trainworks.recover.memory_checkpoints import forget_memory
from trainworks.system import LinuxSignal

_POLL_S = 0.05
_RUNNING_POLL_S = 0.2
"""The same while ranks train, whose cores the supervisor shares; an agent that ends is seen at once."""
_END_GRACE_S = 5.0
_LOST_PEER_S = 10.0
"""Time for the agent of a lost node to end, after a rank elsewhere has lost its peer."""
SIGNALS: Mapping[int, int] = {each: each for each in (signal.SIGTERM, signal.SIGINT, LinuxSignal.SIGHUP, NODE_LEAVES)}
"""Signals that ask a job for its end, as themselves."""


class Supervisor:
    """Runs one job from its start to a final state; `hosts` are its nodes, this machine when None."""

    def __init__(
        self, run_dir: RunDir, resolved: ResolvedRun, nodes: Nodes, clock: Clock, hosts: Hosts | None = None
    ) -> None:
        self._run_dir = run_dir
        self._resolved = resolved
        self._nodes = nodes
        self._clock = clock
        self._state = JobState.CREATED
        self._stop_signals = 0
        self._stop_deadline: float | None = None
        self._events_read = 0
        self._done = False  # the ranks have said so: how their agents end after that does not matter
        self._idle = IdleWatch(
            run_dir,
            resolved.run_file.job.idle,
            nodes=resolved.processes.nodes,
            on_accelerators=resolved.processes.device == "cuda",
            clock=clock,
        )
        self._ended_idle: str | None = None
        self._parent = os.getppid()
        self._ended_by: str | None = None
        """What the first signal stands for, where the user did not ask for the end."""
        self._reclaimed: FailureReason | None = None
        self._recovery = Recovery(
            run_dir,
            resolved,
            nodes,
            hosts or ThisMachine(resolved.processes.nodes),
            clock,
            is_stopping=lambda: self._stop_signals > 0,
        )
        self._lost_a_peer = False
        """Ranks have lost a peer, and neither an agent nor a rank has recorded how that one ended."""

    def ask_to_stop(self, number: int, frame: object) -> None:
        """Signal handler: the first signal asks for a clean end, the second ends at once.

        A hang-up means the terminal is gone: it asks for a clean end, and never shortens one that has begun. Neither
        does a node that leaves, nor the SIGTERM with which a cluster leaves a node that its cloud takes back.
        """
        if number in (signal.SIGHUP, NODE_LEAVES) and not self._stop_signals:
            # a parent of several threads is still named while the last of them end
            gone = os.getppid() != self._parent or process.state(self._parent) in "ZX"
            self._ended_by = "the process that started it was killed" if gone else "its terminal was closed"
            if number == NODE_LEAVES:
                self._ended_by = "its cluster has ended one of its nodes"
        once = number in (signal.SIGHUP, NODE_LEAVES) or (number == signal.SIGTERM and self._reclaimed is not None)
        self._stop_signals = max(self._stop_signals, 1) if once else self._stop_signals + 1

    def run(self) -> JobState:
        """Start the nodes, watch them to the end, and write the final state."""
        self._enter(End(JobState.STARTING))
        start_observers(self._run_dir, self._resolved)
        if not self._recovery.may_begin():
            return self._conclude([])
        _, self._events_read = read_events_from(self._run_dir.events_file, 0)
        self._nodes.start_all()
        while self._nodes.any_running() or self._recovery.resume_ranks():
            self._nodes.advance(self._clock.now())
            self._follow_events()
            self._follow_use()
            self._follow_stop()
            if self._state is JobState.RUNNING and not self._stop_signals and not self._done:
                self._recovery.look()  # names slow nodes, and takes lost ones back
            if not self._restart_or_end():
                break
            self._nodes.wait(_RUNNING_POLL_S if self._state is JobState.RUNNING else _POLL_S)
        codes = self._nodes.exit_codes()  # before the nodes that are left are ended, too
        process.end_descendants(_END_GRACE_S, spare=running_observers())
        self._nodes.end_containers()
        self._follow_events()
        self._recovery.anchor(is_last=True)
        forget_memory(self._run_dir)
        return self._conclude(codes)

    def _follow_events(self) -> None:
        """RUNNING once all ranks have met; RECOVERING from a failure until they have met again."""
        for event in self._new_events():
            if event["kind"] == "attempt" and self._state is not JobState.RUNNING:
                self._lost_a_peer = False
                self._enter(End(JobState.RUNNING))
            elif event["kind"] in ("finished", "stopped") and not self._resolved.processes.roles:
                self._done = not self._recovery.is_pausing or event["kind"] == "finished"
                self._end_command(event)
            elif event["kind"] == "notice" and not self._stop_signals and not self._done:
                self._answer(event)
            elif event["kind"] == "resized" and self._state is JobState.RUNNING:
                message = f"{event['message']}: on {event['nodes']} nodes from now on"
                self._enter(End(JobState.RECOVERING, message=message))
            elif event["kind"] == "failure":
                self._recover_from(event)
            elif event["kind"] == "agent_lost":
                message = f"the agent of node {event['node']} ended with code {event['exit_code']}"
                self._recover_from({"cause": Cause.AGENT_LOST, "message": message})

    def _end_command(self, event: Event) -> None:
        """End a command whose metrics say that it is done; a workload ends by itself."""
        if event["kind"] == "finished" and not self._resolved.is_workload:
            self._nodes.ask_to_stop()

    def _new_events(self) -> list[Event]:
        """The events since the last look; raises SupersededError if another supervisor has launched the job again."""
        events, self._events_read = read_events_from(self._run_dir.events_file, self._events_read)
        if of_kind(events, SubmittedEvent):
            raise SupersededError(f"another supervisor has taken run {self._run_dir.run_id} over")
        return events

    def _answer(self, notice: NoticeEvent) -> None:
        """End the job on a node that its cloud takes back, with a checkpoint if the time is enough for one.

        After mere advice it saves and continues.
        """
        if not notice["ends"]:
            self._run_dir.save_request_file.touch()
            return
        answer = answer_notice(
            notice,
            read_events(self._run_dir.events_file),
            now=self._clock.now(),
            logging_interval_s=self._resolved.longest_pause_s,
            grace_s=self._resolved.run_file.job.grace,
        )
        self._run_dir.note(answer)
        hint = "trainworks resume, on another machine"
        self._reclaimed = {"cause": Cause.NODE_RECLAIMED, "message": answer["message"], "hint": hint}
        self._stop_signals = 1
        self._stop_deadline = self._clock.now() + (answer["left_s"] if answer["saves"] else 0.0)
        self._nodes.ask_to_stop()

    def _recover_from(self, failure: FailureReason) -> None:
        """RECOVERING; ranks often write that they lost a peer before the agent writes how that peer ended."""
        if self._state is JobState.RUNNING:
            self._enter(End.of_failure(JobState.RECOVERING, failure))
            self._lost_a_peer = is_consequence(failure)
        elif self._state is JobState.RECOVERING and self._lost_a_peer and not is_consequence(failure):
            self._lost_a_peer = False
            self._note_state(End.of_failure(self._state, failure))

    def _follow_use(self) -> None:
        """Stop a job that has been idle for `job.idle.stop_after`, as `trainworks stop` would."""
        if self._state is not JobState.RUNNING or self._stop_signals or self._done:
            self._idle.forget()
        elif (why := self._idle.look()) is not None:
            self._ended_idle = why
            self._stop_signals = 1
            self._run_dir.note(StopRequestedEvent(kind="stop_requested", reason=why))

    def _follow_stop(self) -> None:
        if self._stop_signals == 0:
            return
        if self._stop_deadline is None:
            grace_s = self._resolved.run_file.job.grace + 2 * self._resolved.longest_pause_s
            if self._resolved.is_workload and self._state is not JobState.RUNNING:  # it has nothing to save
                has_peers = self._lost_a_peer and self._resolved.processes.nodes > 1
                grace_s = _LOST_PEER_S if has_peers else 0.0  # an agent that is killed now cannot say that it was lost
            self._stop_deadline = self._clock.now() + grace_s
            self._nodes.ask_to_stop()
        if self._stop_signals > 1 or self._clock.now() > self._stop_deadline:
            self._nodes.kill_all()

    def _restart_or_end(self) -> bool:
        """Restart nodes that failed; False if the job cannot continue."""
        for node, exit_code in self._nodes.lost():
            if self._stop_deadline is not None or self._done:
                if self._lost_a_peer and self._stop_deadline is not None:  # that was the peer: no rank can save now
                    self._stop_deadline = self._clock.now()
                continue
            part, role = self._nodes.lost_part(node, exit_code), self._resolved.processes.group_of(node).role
            note_lost(self._run_dir, node, exit_code, part, role)
            if not self._recovery.handle_loss(node, exit_code):
                return False
        return True

    def _conclude(self, codes: list[int]) -> JobState:
        """The final state, from how the nodes ended and from what they wrote."""
        events = read_events(self._run_dir.events_file)
        last = next((e["kind"] for e in reversed(events) if e["kind"] in ("finished", "stopped", "submitted")), None)
        if last == "finished" and not self._resolved.processes.roles:  # whose ends decide
            self._remember()
            return self._enter(End(JobState.SUCCEEDED, exit_code=0))
        if self._reclaimed is not None:
            return self._enter(End.of_failure(JobState.FAILED, self._reclaimed, exit_code=ExitCode.PEER_LOST))
        if (unfit := self._recovery.unfit) is not None:
            waiting = End(JobState.QUEUED, unfit["cause"], f"{unfit['message']}; the job waits for another")
            failed = End.of_failure(JobState.FAILED, unfit, exit_code=ExitCode.ENVIRONMENT)
            return self._enter(waiting if self._recovery.waits_for_others else failed)
        if not self._resolved.is_workload and self._stop_signals == 0 and all(code == 0 for code in codes):
            if self._resolved.plan is not None:
                self._remember()
            return self._enter(End(JobState.SUCCEEDED, exit_code=0))
        if self._stop_signals or last == "stopped":
            return self._enter(self._stopped(events, last))
        code = next((code for code in codes if code), 1)
        failure = first_failure(events) or lost_agents(codes, code)
        return self._enter(End.of_failure(JobState.FAILED, self._with_hint(failure), exit_code=as_exit_code(code)))

    def _with_hint(self, failure: FailureEvent) -> FailureReason:
        """The failure of a command with what helps: without GPUs a start without `RANK`, else restarts, if it has none.

        Many programs take `RANK` for the sign of ranks on GPUs, and begin without it as they do on a laptop.
        """
        if self._resolved.is_workload or failure.get("hint"):
            return failure
        if lacks_gpus(failure) and self._resolved.processes.world_size == 1:
            hint = "if the program takes `RANK` for GPUs: `env -u RANK` before the command unsets it"
            return failure | {"hint": hint}
        if self._resolved.run_file.max_restarts:
            return failure
        if command_verdict(failure) is not Verdict.RESTART:
            return failure
        key = f"roles.{failure['role']}.restarts: 3" if "role" in failure else "recover: {max_restarts: 3}"
        return failure | {"hint": f"set `{key}` in a run file to start it again after a failure"}

    def _remember(self) -> None:
        """Keep the measurement for the next plan; a run that has finished does not fail for it."""
        with suppress(OSError, TrainworksError):
            # it needs numpy, and a supervisor stays small
            record = import_module("trainworks.record.measured.finished_run")
            finished = record.finished_run(self._run_dir, self._clock.now())
            if finished is not None:
                record.remember_finished(data_folder(FINISHED_RUNS), finished)

    def _stopped(self, events: list[Event], last: str | None) -> End:
        """The end of a stopped job: the reason if the user did not ask for it, and the work lost by it."""
        lost: FailureReason | None = None
        if self._resolved.is_workload and last != "stopped":  # no checkpoint of its last step
            lost = first_failure(events) or {
                "cause": Cause.KILLED,
                "message": "ended before it could save a checkpoint",
            }
        end = End.of_failure(JobState.STOPPED, lost, exit_code=0) if lost else End(JobState.STOPPED, exit_code=0)
        cause, why = (Cause.IDLE, self._ended_idle) if self._ended_idle else (Cause.KILLED, self._ended_by)
        if why is None:
            return end
        return replace(end, cause=cause, message=why + (f"; {end.message}" if lost else ""))

    def _enter(self, end: End) -> JobState:
        state = parse_state(end.state)
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state
        self._note_state(end)
        return state

    def _note_state(self, end: End) -> None:
        """Write the state and how the job came to it to status.json, and as an event."""
        if end.cause == "disk_full":
            self._run_dir.release_reserve()
        self._run_dir.enter(own_status(end, self._clock.now()))


def own_status(end: End, now: float) -> RunStatus:
    """The status of a job that this process supervises."""
    pid, started_at = process.identity()
    by = {"supervisor_pid": pid, "supervisor_started_at": started_at, "supervisor_host": socket.gethostname()}
    return RunStatus.of(end, updated_at=now).model_copy(update=by)


def supervise(
    run_dir: RunDir,
    build: Callable[[int], Supervisor],
    *,
    parent_pid: int = 0,
    lock: int | None = None,
    heard: Callable[[int], None] = lambda number: None,
    signals: Mapping[int, int] = SIGNALS,
) -> int:
    """Run the job in a run directory to its end, or write down why that cannot be.

    `build` makes the supervisor, given the run's lock, which every agent keeps open; `lock` is that lock if the caller
    has taken it. This process dies with `parent_pid` unless that is 0. `signals` maps numbers that ask for an end to
    the signal that each of them stands for, with which `heard` is called.

    Returns:
        Exit code: 0 if the job has succeeded; 78 if another supervisor has taken the run over, whose record it is.
    """
    if lock is None and (lock := take_lock(run_dir.lock_file)) is None:
        return ExitCode.ENVIRONMENT  # another supervisor has this run; status.json is that one's
    try:
        supervisor = build(lock)

        def ask_to_stop(number: int, frame: object) -> None:
            heard(signals[number])
            supervisor.ask_to_stop(signals[number], frame)

        for number in signals:
            signal.signal(number, ask_to_stop)
        if parent_pid:
            process.die_with_parent(signal.SIGHUP, parent_pid)
        return 0 if supervisor.run() is JobState.SUCCEEDED else 1
    except SupersededError:
        process.end_descendants(_END_GRACE_S, spare=running_observers())
        return ExitCode.SUPERSEDED  # status.json is the other one's
    except Exception as error:
        process.end_descendants(_END_GRACE_S, spare=running_observers())
        run_dir.release_reserve()
        _note_failure(run_dir, error)
        if isinstance(error, TrainworksError):
            return error.exit_code
        raise


def _note_failure(run_dir: RunDir, error: Exception) -> None:
    """Write the end of a job whose supervisor failed, and start the observers that report it if none runs yet."""
    foreseen = Cause.NODE_LOST if isinstance(error, NodeLostError) else Cause.ENVIRONMENT
    end = End(
        JobState.FAILED,
        foreseen if isinstance(error, TrainworksError) else Cause.CONTROLLER_ERROR,
        str(error),
        hint=error.hint if isinstance(error, TrainworksError) else f"see {run_dir.supervisor_log}",
        exit_code=getattr(error, "exit_code", 1),
    )
    run_dir.write_status(own_status(end, SystemClock().now()))
    if not running_observers():
        with suppress(TrainworksError):
            start_observers(run_dir, run_dir.read_resolved())


def main(
    run_folder: str,
    parent_pid: str,
    lock: int | None = None,
    agent: Spare | None = None,
    claims: Sequence[int] = (),
    share: MachineShare | None = None,
) -> int:
    """Run a local job to its end.

    It dies with `parent_pid` unless that is 0. `lock` is the run's, if the caller has taken it; `agent` a copy of this
    process for the first agent of a command; `claims` are open files by which the job holds its `share` of this
    machine.
    """
    process.adopt_orphans()
    run_dir = RunDir(Path(run_folder))

    def build(lock: int) -> Supervisor:
        resolved = run_dir.read_resolved()
        held = share.held_by(resolved.processes) if share and share.accelerators else None
        hosts = ThisMachine(resolved.processes.nodes, held)
        nodes = nodes_of(run_dir, resolved, (lock, *claims), hosts, spare=agent)
        return Supervisor(run_dir, resolved, nodes, SystemClock(), hosts)

    code = supervise(run_dir, build, parent_pid=int(parent_pid), lock=lock)
    if int(parent_pid):  # a queue ends what its job has left over
        end_entered(run_dir)
    return code


if __name__ == "__main__":
    handles = [int(handle) for handle in sys.argv[3:]]
    held = os.environ.pop(HELD, None)
    share = MachineShare.model_validate_json(held) if held else None
    sys.exit(main(sys.argv[1], sys.argv[2], handles[0] if handles else None, claims=handles[1:], share=share))
