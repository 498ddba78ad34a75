"""What a supervisor does when nodes are lost, unfit or slow: restart, leave them out, take them back, or give up.

It checks nodes before their ranks start, and before they start again: `job.health`.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainworks.agent.node_agents import Hosts, Nodes, SomeHosts
from trainworks.agent.observers import running_observers
from trainworks.agent.watches import AnchorWatch, StragglerWatch
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.node_check import KILL_TAKES_S, LONGEST_S, NO_ANSWER, check_command
from trainworks.jobs.state import Cause
from trainworks.record.events.job import (
    AgentLostEvent,
    AgentStartedEvent,
    DecisionEvent,
    FailureEvent,
    FailureReason,
    NodeCheckEvent,
    NodesUnhealthyEvent,
    ResizedEvent,
    RestartEvent,
)
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.events.training import AttemptEvent, CheckpointEvent
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import (
    Action,
    MissingNode,
    NodeStanding,
    Options,
    RecoveryDecision,
    Verdict,
    command_verdict,
    decide,
    going_on_pays,
    refusal,
    standing_of_lost,
)
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import (
    AGENT_RESTART,
    RestartLimit,
    backoff_s,
    may_restart,
    role_backoff_s,
    role_restarts,
)
from trainworks.recover.stragglers import Straggler

_LOG = logging.getLogger(__name__)

_END_GRACE_S = 5.0
_LOOK_S = 0.05
_POLL_S = 0.1
_FIRST_PROBE_S = 10.0
_LONGEST_PROBE_S = 600.0
"""Times between two looks at nodes that are missing; each is twice as long as the one before."""
_USUAL_RESTART_S = 60.0
"""Time of a restart before the record shows one: an assumption."""


@dataclass(eq=False)
class Recovery:
    """Acts on the decisions of `recover.decisions` about the nodes of one job.

    `resolved` is the run on all of its nodes; `is_stopping` says whether a signal asks for the end of the job.
    """

    run_dir: RunDir
    resolved: ResolvedRun
    nodes: Nodes
    hosts: Hosts
    clock: Clock
    is_stopping: Callable[[], bool]
    unfit: FailureReason | None = field(default=None, init=False)
    """The failure of a job whose nodes cannot run it."""
    _probe_s: float = field(default=_FIRST_PROBE_S, init=False)
    _next_probe: float | None = field(default=None, init=False)
    """Time of the next look at missing nodes; None until the ranks train again."""
    _once_stopped: Callable[[], bool] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._now = self.resolved
        self._limit = RestartLimit.of(self.resolved.run_file)
        self._places = list(range(self.resolved.processes.nodes))
        """Number in the whole job of every node that runs."""
        self._stragglers = StragglerWatch(self.run_dir, self.resolved.processes.processes_per_node, self.clock)
        self._anchors = AnchorWatch(self.run_dir, self.clock)

    def find_unfit(self, nodes: Sequence[int] | None = None) -> bool:
        """Check nodes, all when None, before ranks start there."""
        self.unfit = self._check(self._now, SomeHosts(self.hosts, self._places), nodes, self._places)
        return self.unfit is not None

    @property
    def is_pausing(self) -> bool:
        """True while the ranks save and stop because the job changes its nodes, and not because it ends."""
        return self._once_stopped is not None

    def handle_loss(self, node: int, exit_code: int) -> bool:
        """Act on a lost agent; False if the job cannot continue."""
        self._once_stopped = None  # what it was stopping for is decided anew
        self.run_dir.stop_file.unlink(missing_ok=True)
        unfit = bool(self._now.node_check) and exit_code == ExitCode.NODE_UNHEALTHY
        checks = [event for event in of_kind(self._events(), NodeCheckEvent) if event["node"] == node]
        failed = [event for event in checks[-1:] if event["message"]]
        self.unfit = self._note_unfit(failed, self._places) if unfit else None
        if not unfit and not self.nodes.restartable(exit_code):
            return False  # its agent has judged the ranks, and recorded why
        role = self._now.processes.group_of(node).role
        if not unfit and not self._now.is_workload and self._is_final(role):
            return False
        if role is not None and not unfit and self._restart_role(role, node):
            return True
        standing = NodeStanding.UNFIT if unfit else standing_of_lost(node, self._events())
        decision = self._decide(standing, node)
        if decision.action is Action.IN_PLACE:
            return self._restart(node)
        return decision.action is Action.SMALLER and self._resize(self._remaining_nodes(node), decision.reason)

    def _restart_role(self, role: str, node: int) -> bool:
        """Start the role of a lost node again, if one of its own restarts is left; the others run on."""
        events, most = self._events(), self.resolved.run_file.roles[role].restarts
        used = role_restarts(events, role, self._limit.window_s)
        if used >= most:
            return False
        reason = f"role `{role}` has restarts of its own: {used + 1} of {most}"
        self.run_dir.note(DecisionEvent(kind="decision", node=node, action=Action.IN_PLACE, message=reason))
        self.run_dir.note(RestartEvent(kind="restart", node=None, role=role))
        self.nodes.restart_role(node, at=self.clock.now() + role_backoff_s(used, self._limit))
        return True

    def _is_final(self, role: str | None) -> bool:
        """Whether another start of a command cannot help, which is recorded if a restart would be left for it."""
        failure = first_failure(self._events(), role)
        verdict = command_verdict(failure) if failure is not None else Verdict.RESTART
        if failure is not None and verdict is not Verdict.RESTART and self._limit.most:
            self.run_dir.note(refusal(failure, verdict))
        return verdict is not Verdict.RESTART

    def _restart(self, node: int) -> bool:
        """Start the agent of a node again where it was, after its back-off."""
        place = node if self._now.is_workload else None
        pause_s = backoff_s(self._events(), self._limit)
        _LOG.info("the agent of node %d starts again in %.1f s", node, pause_s)
        until = self.clock.now() + pause_s
        while not self.is_stopping() and self.clock.now() < until:
            self.clock.sleep(_LOOK_S)
        if self.find_unfit(None if place is None else [place]):
            decision = self._decide(NodeStanding.UNFIT, node)
            if decision.action is not Action.SMALLER:
                return False
            self.unfit = None
            return self._resize(self._remaining_nodes(node), decision.reason)
        if self.is_stopping():
            return True
        self.run_dir.note(AGENT_RESTART | {"node": place})
        self.nodes.restart(node)
        return True

    def look(self) -> None:
        """Follow a job whose ranks train: anchor its plan, name slow nodes, and take missing ones back."""
        if self.is_pausing:
            return
        self.anchor()
        if not self._now.is_workload:
            return
        if (slow := self._stragglers.look(self._anchors.step_s)) is not None:
            self._answer_straggler(slow)
        elif len(self._places) < self.resolved.processes.nodes:
            self._take_back()

    def anchor(self, *, is_last: bool = False) -> None:
        """Anchor the plan on the first quiet steps of the present layout; a last look says why it could not."""
        if self._now.plan is not None:
            self._anchors.look(self._now.plan, is_last=is_last)

    def resume_ranks(self) -> bool:
        """Start the ranks on other nodes once all have stopped for it; False if they stopped for another reason."""
        change, self._once_stopped = self._once_stopped, None
        if change is None or self.is_stopping():
            return False
        self.run_dir.stop_file.unlink(missing_ok=True)
        return change()

    def _answer_straggler(self, slow: Straggler) -> None:
        if not self.resolved.run_file.recover.replace_stragglers:
            return
        decision = self._decide(NodeStanding.SLOW, slow.node, slow_step_s=slow.step_s)
        if decision.action is Action.SMALLER:
            self._pause(lambda: self._resize(self._remaining_nodes(slow.node), decision.reason))
        elif decision.action is Action.ELSEWHERE:
            self._pause(lambda: self._leave(slow))

    def _leave(self, slow: Straggler) -> bool:
        """End this allocation; its backend requeues the job without the node."""
        message = f"node {slow.node} is slower than its peers: {slow.message}"
        self.run_dir.note(NodesUnhealthyEvent(kind="nodes_unhealthy", nodes=[self._places[slow.node]], message=message))
        self.unfit = {
            "cause": Cause.NODE_UNHEALTHY,
            "message": message,
            "hint": "look for its cause: trainworks health",
        }
        return False

    def _take_back(self) -> None:
        """Go back to all nodes if the missing ones pass their check and a restart is left for it."""
        now = self.clock.now()
        if self._next_probe is None:
            self._next_probe = now + self._probe_s
        if now < self._next_probe:
            return
        self._next_probe = now + 2 * self._probe_s
        self._probe_s = min(_LONGEST_PROBE_S, 2 * self._probe_s)
        missing = [node for node in range(self.resolved.processes.nodes) if node not in self._places]
        if not self._may(AGENT_RESTART):
            return
        check = self._check(self.resolved, self.hosts, missing)
        if check is None and not self.is_stopping():
            self._pause(lambda: self._resize(list(range(self.resolved.processes.nodes)), "the missing nodes are back"))

    def _pause(self, change: Callable[[], bool]) -> None:
        """Let the ranks save and stop, for a change that follows."""
        self._once_stopped = change
        self.run_dir.stop_file.touch()

    def _resize(self, places: list[int], reason: str) -> bool:
        """End all agents, and start the job on these nodes with the layout that is planned for their number."""
        process.end_descendants(_END_GRACE_S, spare=running_observers())
        self.anchor(is_last=True)
        self._places, self._next_probe = places, None
        self._now = self.resolved.on_nodes(len(places))
        assert self._now.plan is not None
        self.run_dir.note(
            ResizedEvent(
                kind="resized",
                nodes=len(places),
                places=places,
                layout=self._now.plan.layout.describe(),
                step_s=self._now.plan.step_time.total_s,
                message=reason,
            )
        )
        self.nodes.resize(self._now, places)
        return True

    def _remaining_nodes(self, node: int) -> list[int]:
        return [place for number, place in enumerate(self._places) if number != node]

    def _decide(self, standing: NodeStanding, node: int, *, slow_step_s: float | None = None) -> RecoveryDecision:
        options = Options(
            has_restart=self._may(AGENT_RESTART | {"node": node if self._now.is_workload else None}),
            other_nodes=self.hosts.can_be_replaced,
            fewer_nodes=self._fewer_pay(node, slow_step_s),
        )
        decision = decide(Verdict.RESTART, standing, options)
        self.run_dir.note(DecisionEvent(kind="decision", node=node, action=decision.action, message=decision.reason))
        return decision

    def _fewer_pay(self, node: int, slow_step_s: float | None) -> bool:
        """Whether a plan for the other nodes exists, and training on them beats waiting, or the slow node."""
        fewer = self.resolved.fewer_nodes(len(self._places) - 1)
        holds_supervisor = node == 0 and not self.hosts.are_here
        if fewer is None or holds_supervisor or self._now.plan is None:
            return False
        if slow_step_s is not None:
            return fewer.plan.step_time.total_s < slow_step_s
        events = self._events()
        saved = max((event["step"] for event in of_kind(events, CheckpointEvent)), default=0)
        missing = MissingNode(
            nodes=self.resolved.processes.nodes,
            fewer=len(self._places) - 1,
            step_s=self.resolved.plan.step_time.total_s if self.resolved.plan else 0.0,
            fewer_step_s=fewer.plan.step_time.total_s,
            steps_left=self._now.plan.num_steps - saved,
            repair_s=self.resolved.run_file.recover.repair,
            restart_s=_restart_s(events),
        )
        return going_on_pays(missing)

    def _may(self, restart: RestartEvent) -> bool:
        return may_restart(self._events(), self._limit, restart)

    def _events(self) -> list[Event]:
        return read_events(self.run_dir.events_file)

    def _check(
        self,
        resolved: ResolvedRun,
        hosts: Hosts,
        nodes: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
    ) -> FailureReason | None:
        """Run the check that the resolved run names on nodes at once, each of which records its result.

        Checks `nodes`, or all of `hosts`; those on this machine are checked once. `places` are the numbers of `hosts`
        among all nodes of the job, where they differ. None if all passed, without a check, or if the job is to end.
        """
        if not resolved.node_check:
            return None
        seen = len(self._events())
        numbers = range(len(hosts.addresses)) if nodes is None else nodes
        checks = {
            node: process.spawn(
                hosts.command(node, check_command(self.run_dir, resolved, node)), log=self.run_dir.node_log(node)
            )
            for node in (numbers[:1] if hosts.are_here else numbers)
        }
        deadline = self.clock.now() + LONGEST_S
        while running := [check for check in checks.values() if check.exit_code() is None]:
            if self.clock.now() > deadline or self.is_stopping():
                for check in running:
                    check.signal_group(signal.SIGKILL)
                break
            process.wait_any(running, _POLL_S)
        codes = {node: check.wait(KILL_TAKES_S) for node, check in checks.items()}
        if self.is_stopping():
            return None
        said = {event["node"]: event for event in of_kind(self._events()[seen:], NodeCheckEvent)}
        unfit = [_result(node, code, said.get(node)) for node, code in codes.items()]
        return self._note_unfit([event for event in unfit if event is not None], places)

    def _note_unfit(self, unfit: Sequence[NodeCheckEvent], places: Sequence[int] | None) -> FailureReason | None:
        if not unfit:
            return None
        texts = [f"{event.get('host') or 'node {}'.format(event['node'])}: {event['message']}" for event in unfit]
        message = f"{len(unfit)} node{'s' * (len(unfit) > 1)} failed the health check: {'; '.join(texts)}"
        failure = FailureReason(cause=Cause.NODE_UNHEALTHY, message=message, hint=unfit[0]["hint"])
        numbers = [event["node"] if places is None else places[event["node"]] for event in unfit]
        self.run_dir.note(NodesUnhealthyEvent(kind="nodes_unhealthy", nodes=numbers, message=message))
        return failure


def note_lost(
    run_dir: RunDir, node: int, exit_code: int, part: Cause = Cause.AGENT_LOST, role: str | None = None
) -> None:
    """Record the loss of an agent, of its step or of its whole node; one that was killed cannot have written why."""
    if exit_code < 0:
        name = process.signal_name(-exit_code)
        message = _HOW_LOST[part].format(name) + (f" (role `{role}`)" if role else "")
        event = FailureEvent(
            kind="failure", rank=None, node=node, cause=part, exit_code=exit_code, signal=name, message=message
        )
        run_dir.note(event | {"role": role} if role else event)
    run_dir.note(AgentLostEvent(kind="agent_lost", node=node, exit_code=exit_code))


_HOW_LOST = {
    Cause.AGENT_LOST: "the node agent was killed by {}",
    Cause.STEP_LOST: "the step of the node agent was ended by {}",
    Cause.NODE_LOST: "the connection to the node was lost",
}


def _restart_s(events: Sequence[Event]) -> float:
    """Longest time from the start of an agent until all ranks met, in this run."""
    started = [event["t"] for event in of_kind(events, AgentStartedEvent)]
    met = [event["t"] for event in of_kind(events, AttemptEvent)]
    return met[0] - started[0] if started and met else _USUAL_RESTART_S


def _result(node: int, code: int | None, said: NodeCheckEvent | None) -> NodeCheckEvent | None:
    """What a failed node recorded, else how its check ended; None for a node that passed."""
    if code == 0:
        return None
    ended = NO_ANSWER if code in (None, -signal.SIGKILL) else f"exit code {code}"
    hint = f"read node-{node}.log of the run"
    return said or NodeCheckEvent(kind="node_check", node=node, message=ended, hint=hint)
