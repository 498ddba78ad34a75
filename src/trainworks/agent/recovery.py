"""What a supervisor does when nodes are lost, unfit or slow: restart, leave them out, take them back, or give up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from trainworks.agent.node_agents import Hosts, Nodes, SomeHosts
from trainworks.agent.node_checks import check_nodes, failure_of_agent
from trainworks.agent.observers import running_observers
from trainworks.agent.straggler_watch import StragglerWatch
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.jobs.state import Cause
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import (
    Action,
    NodeStanding,
    Options,
    RecoveryDecision,
    Verdict,
    command_verdict,
    decide,
    standing_of_lost,
)
from trainworks.recover.elasticity import MissingNode, going_on_pays
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import AGENT_RESTART, RestartLimit, backoff_s, may_restart
from trainworks.recover.stragglers import Straggler

_END_GRACE_S = 5.0
_LOOK_S = 0.05
_FIRST_PROBE_S = 10.0
_LONGEST_PROBE_S = 600.0
"""Times between two looks at nodes that are missing; each is twice as long as the one before."""
_USUAL_RESTART_S = 60.0
"""Time of a restart before the record shows one: an assumption."""


class Recovery:
    """Acts on the decisions of `recover.decisions` about the nodes of one job.

    Args:
        run_dir: of the run.
        resolved: the run on all of its nodes.
        nodes: its agents.
        hosts: where the nodes stand.
        clock: of this machine.
        is_stopping: whether a signal asks for the end of the job.
    """

    def __init__(
        self,
        run_dir: RunDir,
        resolved: ResolvedRun,
        nodes: Nodes,
        hosts: Hosts,
        clock: Clock,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._run_dir = run_dir
        self._whole = self._now = resolved
        self._nodes = nodes
        self._hosts = hosts
        self._clock = clock
        self._is_stopping = is_stopping
        self._limit = RestartLimit.of(resolved.run_file)
        self._places = list(range(resolved.processes.nodes))
        """Number in the whole job of every node that runs."""
        self._probe_s = _FIRST_PROBE_S
        self._next_probe: float | None = None
        """Time of the next look at missing nodes; None until the ranks train again."""
        self._once_stopped: Callable[[], bool] | None = None
        self._stragglers = StragglerWatch(run_dir, resolved.processes.processes_per_node, clock)
        self.unfit: Event | None = None
        """The failure of a job whose nodes cannot run it."""

    def find_unfit(self, nodes: Sequence[int] | None = None) -> bool:
        """Check nodes, all when None, before ranks start there."""
        self.unfit = check_nodes(
            self._run_dir,
            self._now,
            SomeHosts(self._hosts, self._places),
            self._clock,
            self._is_stopping,
            nodes,
            self._places,
        )
        return self.unfit is not None

    @property
    def is_pausing(self) -> bool:
        """True while the ranks save and stop because the job changes its nodes, and not because it ends."""
        return self._once_stopped is not None

    def after_loss(self, node: int, exit_code: int) -> bool:
        """Act on a lost agent; False if the job cannot continue."""
        self._once_stopped = None  # what it was stopping for is decided anew
        self._run_dir.stop_file.unlink(missing_ok=True)
        unfit = bool(self._now.node_check) and exit_code == ExitCode.NODE_UNHEALTHY
        self.unfit = failure_of_agent(self._run_dir, node, self._places) if unfit else None
        if not unfit and not self._nodes.restartable(exit_code):
            return False  # its agent has judged the ranks, and recorded why
        if not unfit and not self._now.is_workload and self._is_final():
            return False
        standing = NodeStanding.UNFIT if unfit else standing_of_lost(node, self._events())
        decision = self._decide(standing, node)
        if decision.action is Action.IN_PLACE:
            return self._restart(node)
        return decision.action is Action.SMALLER and self._resize(self._without(node), decision.reason)

    def _is_final(self) -> bool:
        """Whether another start of a command cannot help, which is recorded if a restart would be left for it."""
        failure = first_failure(self._events())
        verdict = command_verdict(failure) if failure is not None else Verdict.RESTART
        if failure is not None and verdict is not Verdict.RESTART and self._limit.most:
            about = {key: failure.get(key) for key in ("node", "rank", "cause", "rendezvous")}
            append_event(self._run_dir.events_file, "restart_refused", **about, message=str(verdict))
        return verdict is not Verdict.RESTART

    def _restart(self, node: int) -> bool:
        """Start the agent of a node again where it was, after its back-off."""
        place = node if self._now.is_workload else None
        self._wait(backoff_s(self._events(), self._limit))
        if self.find_unfit(None if place is None else [place]):
            decision = self._decide(NodeStanding.UNFIT, node)
            if decision.action is not Action.SMALLER:
                return False
            self.unfit = None
            return self._resize(self._without(node), decision.reason)
        if self._is_stopping():
            return True
        append_event(self._run_dir.events_file, **(AGENT_RESTART | {"node": place}))
        self._nodes.restart(node)
        return True

    def look(self) -> None:
        """Follow a job whose ranks train: name slow nodes, and take missing ones back."""
        if self.is_pausing or not self._now.is_workload:
            return
        if (slow := self._stragglers.look()) is not None:
            self._answer_straggler(slow)
        elif len(self._places) < self._whole.processes.nodes:
            self._take_back()

    def go_on(self) -> bool:
        """Start the ranks on other nodes once all have stopped for it; False if they stopped for another reason."""
        change, self._once_stopped = self._once_stopped, None
        if change is None or self._is_stopping():
            return False
        self._run_dir.stop_file.unlink(missing_ok=True)
        return change()

    def _answer_straggler(self, slow: Straggler) -> None:
        if not self._whole.run_file.recover.replace_stragglers:
            return
        decision = self._decide(NodeStanding.SLOW, slow.node, slow_step_s=slow.step_s)
        if decision.action is Action.SMALLER:
            self._pause(lambda: self._resize(self._without(slow.node), decision.reason))
        elif decision.action is Action.ELSEWHERE:
            self._pause(lambda: self._leave(slow))

    def _leave(self, slow: Straggler) -> bool:
        """End this allocation; its backend requeues the job without the node."""
        message = f"node {slow.node} is slower than its peers: {slow.message}"
        append_event(self._run_dir.events_file, "nodes_unhealthy", nodes=[self._places[slow.node]], message=message)
        self.unfit = {
            "cause": Cause.NODE_UNHEALTHY,
            "message": message,
            "hint": "look for its cause: trainworks health",
        }
        return False

    def _take_back(self) -> None:
        """Go back to all nodes if the missing ones pass their check and a restart is left for it."""
        now = self._clock.now()
        if self._next_probe is None:
            self._next_probe = now + self._probe_s
        if now < self._next_probe:
            return
        self._next_probe = now + 2 * self._probe_s
        self._probe_s = min(_LONGEST_PROBE_S, 2 * self._probe_s)
        missing = [node for node in range(self._whole.processes.nodes) if node not in self._places]
        if not self._may(AGENT_RESTART):
            return
        check = check_nodes(self._run_dir, self._whole, self._hosts, self._clock, self._is_stopping, missing)
        if check is None and not self._is_stopping():
            self._pause(lambda: self._resize(list(range(self._whole.processes.nodes)), "the missing nodes are back"))

    def _pause(self, change: Callable[[], bool]) -> None:
        """Let the ranks save and stop, for a change that follows."""
        self._once_stopped = change
        self._run_dir.stop_file.touch()

    def _resize(self, places: list[int], reason: str) -> bool:
        """End all agents, and start the job on these nodes with the layout that is planned for their number."""
        process.end_descendants(_END_GRACE_S, spare=running_observers())
        self._places, self._next_probe = places, None
        self._now = self._whole.on_nodes(len(places))
        assert self._now.plan is not None
        append_event(
            self._run_dir.events_file,
            "resized",
            nodes=len(places),
            places=places,
            layout=self._now.plan.layout.describe(),
            step_s=self._now.plan.step_time.total_s,
            message=reason,
        )
        self._nodes.resize(self._now, places)
        return True

    def _without(self, node: int) -> list[int]:
        return [place for number, place in enumerate(self._places) if number != node]

    def _decide(self, standing: NodeStanding, node: int, *, slow_step_s: float | None = None) -> RecoveryDecision:
        options = Options(
            has_restart=self._may(AGENT_RESTART | {"node": node if self._now.is_workload else None}),
            other_nodes=self._hosts.can_be_replaced,
            fewer_nodes=self._fewer_pay(node, slow_step_s),
        )
        decision = decide(Verdict.RESTART, standing, options)
        append_event(self._run_dir.events_file, "decision", node=node, action=decision.action, message=decision.reason)
        return decision

    def _fewer_pay(self, node: int, slow_step_s: float | None) -> bool:
        """Whether a plan for the other nodes exists, and training on them beats waiting, or the slow node."""
        fewer = self._whole.fewer_nodes(len(self._places) - 1)
        holds_supervisor = node == 0 and not self._hosts.are_here
        if fewer is None or holds_supervisor or self._now.plan is None:
            return False
        if slow_step_s is not None:
            return fewer.plan.step_time.total_s < slow_step_s
        events = self._events()
        saved = max((event["step"] for event in events if event["kind"] == "checkpoint"), default=0)
        missing = MissingNode(
            nodes=self._whole.processes.nodes,
            fewer=len(self._places) - 1,
            step_s=self._whole.plan.step_time.total_s if self._whole.plan else 0.0,
            fewer_step_s=fewer.plan.step_time.total_s,
            steps_left=self._now.plan.num_steps - saved,
            repair_s=self._whole.run_file.recover.repair,
            restart_s=_restart_s(events),
        )
        return going_on_pays(missing)

    def _wait(self, seconds: float) -> None:
        deadline = self._clock.now() + seconds
        while not self._is_stopping() and self._clock.now() < deadline:
            self._clock.sleep(_LOOK_S)

    def _may(self, restart: Event) -> bool:
        return may_restart(self._events(), self._limit, restart)

    def _events(self) -> list[Event]:
        return read_events(self._run_dir.events_file)


def note_lost(run_dir: RunDir, node: int, exit_code: int) -> None:
    """Record the loss of an agent; one that was killed cannot have written why."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        append_event(
            run_dir.events_file,
            "failure",
            rank=None,
            node=node,
            cause="node_lost",
            exit_code=exit_code,
            signal=name,
            message=f"the node agent was killed by {name}",
        )
    append_event(run_dir.events_file, "agent_lost", node=node, exit_code=exit_code)


def _restart_s(events: Sequence[Event]) -> float:
    """Longest time from the start of an agent until all ranks met, in this run."""
    started = [event["t"] for event in events if event["kind"] == "agent_started"]
    met = [event["t"] for event in events if event["kind"] == "attempt"]
    return met[0] - started[0] if started and met else _USUAL_RESTART_S
