"""What a supervisor does when nodes are lost, unfit or slow: restart, leave them out, take them back, or give up.

It checks nodes before their ranks start, and before they start again: `job.health`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainworks.agent.accelerators import evidence_of, failure_of
from trainworks.agent.node_agents import Hosts, Nodes, SomeHosts
from trainworks.agent.observers import running_observers
from trainworks.agent.watches import AnchorWatch, StragglerWatch
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.node_check import accelerator_command, check_command, run_checks
from trainworks.jobs.state import Cause
from trainworks.record.events.job import (
    DecisionEvent,
    FailureReason,
    NodeCheckEvent,
    NodesUnhealthyEvent,
    ResizedEvent,
    RestartEvent,
)
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.events.training import CheckpointEvent
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
    restart_time_s,
    role_backoff_s,
    role_restarts,
)
from trainworks.recover.stragglers import Straggler

_LOG = logging.getLogger(__name__)

_END_GRACE_S = 5.0
_LOOK_S = 0.05
_FIRST_PROBE_S = 10.0
_LONGEST_PROBE_S = 600.0
"""Times between two looks at nodes that are missing; each is twice as long as the one before."""


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
    waits_for_others: bool = field(default=False, init=False)
    """Whether the job leaves them for other accelerators, for which it waits in its queue."""
    _lacking: list[int] = field(default_factory=list, init=False)
    """Nodes that are unfit for an accelerator alone, which is out of service now; as numbers in the whole job."""
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

    def may_begin(self) -> bool:
        """Check all nodes before ranks start there for the first time; False if the job cannot start on them."""
        return not self._find_unfit() or (bool(self._lacking) and self._do_without(is_free=True, begins=True))

    def _find_unfit(self, nodes: Sequence[int] | None = None) -> bool:
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
        looks = bool(self._now.node_check) or (self._now.is_workload and bool(self._now.accelerator_check))
        was_refused = looks and exit_code == ExitCode.NODE_UNHEALTHY
        checked = was_refused and bool(self._now.node_check)
        checks = [event for event in of_kind(self._events(), NodeCheckEvent) if event["node"] == node]
        failed = [event for event in checks[-1:] if event["message"]]
        self._lacking = []
        self.unfit = self._note_unfit(failed, self._places) if checked else None
        unfit, role = self.unfit is not None, self._now.processes.group_of(node).role
        self.unfit = self.unfit or self._blame(node, exit_code)
        if not checked and not self._now.is_workload and self._is_final(role):
            self.unfit = None
            return False
        if self._lacking:
            return self._do_without(is_free=unfit)
        if not was_refused and not self.nodes.restartable(exit_code):
            return False  # its agent has judged the ranks, and recorded why
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
        if self._find_unfit(None if place is None else [place]):
            if self._lacking:
                return self._do_without(is_free=True)
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
        if (held := self.hosts.accelerators) is not None and not all(map(held.are_in_service, missing)):
            return
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

    def _decide(
        self,
        standing: NodeStanding,
        node: int,
        *,
        slow_step_s: float | None = None,
        is_free: bool = False,
        may_shrink: bool = True,
    ) -> RecoveryDecision:
        held, hosts = self.hosts.accelerators, self.hosts
        options = Options(
            has_restart=is_free or self._may(AGENT_RESTART | {"node": node if self._now.is_workload else None}),
            other_nodes=hosts.can_be_replaced,
            fewer_nodes=may_shrink and self._fewer_pay(node, slow_step_s),
            other_accelerators=standing is NodeStanding.INCOMPLETE
            and (held.can_be_replaced() if held else hosts.can_be_replaced or hosts.gets_new_pods),
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
            restart_s=restart_time_s(events),
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
        """Run the check that the resolved run names on `nodes`, or all of `hosts`; once for those on this machine.

        `places` are the numbers of `hosts` among all nodes of the job, where they differ. None if all passed, without a
        check, or if the job is to end.
        """
        if not resolved.node_check:
            return None
        numbers = range(len(hosts.addresses)) if nodes is None else nodes
        numbers = numbers[:1] if hosts.are_here else numbers
        commands = {node: hosts.command(node, check_command(self.run_dir, resolved, node)) for node in numbers}
        failed = run_checks(self.run_dir, commands, self.clock, self.is_stopping)
        return self._note_unfit(failed, places)

    def _note_unfit(self, failed: Sequence[NodeCheckEvent], places: Sequence[int] | None) -> FailureReason | None:
        """Record which nodes failed their check; what is the fault of an accelerator alone takes that out of service.

        None if only accelerators failed, and the job holds none of them.
        """
        held, out, unfit = self.hosts.accelerators, dict[str, str](), list[NodeCheckEvent]()
        for event in failed:
            if held is None or not event.get("accelerators"):
                unfit.append(event)
            else:
                place = event["node"] if places is None else places[event["node"]]
                here = self._places if places is not None else range(len(held.names))
                out |= held.named_by([event], here if self.hosts.are_here else [place])
        failure = self._take_out(Cause.NODE_UNHEALTHY, out)
        unfit = list(failed) if out and failure is None else unfit  # ranks would start on what is not out of service
        if not unfit:
            return failure
        self._lacking = []
        texts = [f"{event.get('host') or 'node {}'.format(event['node'])}: {event['message']}" for event in unfit]
        message = f"{len(unfit)} node{'s' * (len(unfit) > 1)} failed the health check: {'; '.join(texts)}"
        numbers = [event["node"] if places is None else places[event["node"]] for event in unfit]
        self.run_dir.note(NodesUnhealthyEvent(kind="nodes_unhealthy", nodes=numbers, message=message))
        return FailureReason(cause=Cause.NODE_UNHEALTHY, message=message, hint=unfit[0]["hint"])

    def _blame(self, node: int, exit_code: int) -> FailureReason | None:
        """Take an accelerator of a node out of service, or else the node, that a failure was clearly the fault of."""
        held, place, events = self.hosts.accelerators, self._places[node], self._events()
        failure, checks = first_failure(events), list[NodeCheckEvent]()
        is_gone = exit_code < 0 or self.nodes.loses_node(exit_code)
        gets_others = held is not None or self.hosts.can_be_replaced or self.hosts.gets_new_pods
        if not (gets_others and self._now.accelerator_check) or is_gone or failure is None or failure["node"] != node:
            return None
        if self._now.is_workload and exit_code == ExitCode.NODE_UNHEALTHY:  # the agent has looked
            checks = [event for event in of_kind(events, NodeCheckEvent) if event["node"] == node][-1:]
        elif not self._now.is_workload or failure["cause"] == Cause.GPU_FAULT:
            program = accelerator_command(self.run_dir, self._now, node)
            command = program and SomeHosts(self.hosts, self._places).command(node, program)
            checks = run_checks(self.run_dir, {node: command} if command else {}, self.clock, self.is_stopping)
        ranks = self._now.processes.group_of(node).ranks_of(node)
        evidence = evidence_of(node, checks, events, ranks, held.indices_of(place) if held else ())
        if held is not None:
            return self._take_out(Cause.GPU_FAULT, held.named_by(evidence, [place]))
        unfit = self._note_unfit(evidence, self._places)
        self._lacking = [place] if unfit is not None else []
        return unfit | {"cause": Cause.GPU_FAULT} if unfit is not None and self.hosts.gets_new_pods else unfit

    def _take_out(self, cause: Cause, evidence: Mapping[str, str]) -> FailureReason | None:
        """Take accelerators of the job out of service, by name; returns the failure of a job that has them."""
        held, self._lacking = self.hosts.accelerators, []
        if held is None or not evidence or not held.take_out(evidence, self.run_dir, self.clock.now()):
            return None
        self._lacking = held.nodes_of(evidence)
        return failure_of(cause, evidence)

    def _do_without(self, *, is_free: bool, begins: bool = False) -> bool:
        """Continue without accelerators that are out of service; False if the job leaves its nodes, or ends."""
        lacking = [number for number, place in enumerate(self._places) if place in self._lacking]
        may_shrink = not begins and len(lacking) == 1
        decision = self._decide(NodeStanding.INCOMPLETE, lacking[0], is_free=is_free, may_shrink=may_shrink)
        if decision.action is Action.SMALLER:
            self.unfit = None
            return self._resize(self._remaining_nodes(lacking[0]), decision.reason)
        if self.hosts.accelerators is None and decision.action is Action.STOP:
            self.unfit = None  # its scheduler would start the job again for that
        return decision.action is Action.OTHER_ACCELERATOR and self._replace_accelerators(begins=begins)

    def _replace_accelerators(self, *, begins: bool) -> bool:
        """Take others of this machine in place of those that are out of service; False if the queue of the job does."""
        held = self.hosts.accelerators
        self.waits_for_others = held is not None and held.is_queued
        taken = None if held is None else held.replaced(self.run_dir)
        if taken is None:
            return False
        self.hosts.accelerators, handle = taken
        self.nodes.keep(handle)
        os.environ["CUDA_VISIBLE_DEVICES"] = self.hosts.accelerators.visible
        self.unfit = None
        if not begins:
            process.end_descendants(_END_GRACE_S, spare=running_observers())
            self.run_dir.note(AGENT_RESTART)
            self.nodes.resize(self._now, self._places)
        return True
