"""Repair the nodes of a cluster: drain, act, check, release. Each step is on record before it is taken."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trainworks.api.inputs import Quantity, named_cluster, share
from trainworks.backends.backend import Backend, NodeStatus
from trainworks.backends.registry import backend_for
from trainworks.config.load import load_model
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import append_text, closing_handle, take_lock, write_atomic
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.folders import data_folder
from trainworks.record.events.log import read_lines_from
from trainworks.recover import repairs
from trainworks.recover.repairs import MARK, Holder, NextStep, NodeRepair, RepairEvent, RepairPolicy, RepairStep

_POLL_S = 10.0
_THREADS = 32
_LONGEST = 200
"""Characters of a cause, and of what a command printed, that are kept."""
_CONNECTION_LOST = 255
"""Exit code of ssh when the node reboots."""


def repair(
    cluster: str,
    *,
    nodes: Sequence[str] = (),
    sources: Sequence[Path | str] = (),
    policy: Path | str | None = None,
    max_share: Quantity | None = None,
    dry_run: bool = False,
    wait_s: float = math.inf,
    on_event: Callable[[RepairEvent], None] = lambda event: None,
) -> list[RepairEvent]:
    """Repair nodes, and continue repairs that were interrupted; without nodes and sources, those out for a fault.

    Args:
        cluster: a name such as `slurm`, or a run file.
        nodes: names of nodes to check and repair.
        sources: JSON files of `health`, `bench` or Alertmanager that name nodes.
        policy: policy file of the site; see `RepairPolicy`.
        max_share: replaces that of the policy.
        dry_run: return the plan, and change nothing.
        wait_s: longest time to wait for jobs and boots; a later call continues.
        on_event: called with each line of the record, as it is written.

    Raises:
        UsageError: a node, a file or the policy is not valid, or the cluster refuses.
        EnvironmentProblem: another process repairs the cluster, or it does not answer.
    """
    site = RepairPolicy() if policy is None else load_model(Path(policy), RepairPolicy, "policy file")[0]
    if (at_most := share("max_share", max_share)) is not None:
        site = site.model_copy(update={"max_share": at_most})
    causes = [RepairEvent(math.inf, node, "waits", "named by the user", "named") for node in nodes]
    causes += [cause for source in sources for cause in read_causes(Path(source), site)]
    found = named_cluster(cluster)
    work = ClusterRepairs(backend_for(found), _record(found), site, on_event=on_event)
    return work.plan(causes) if dry_run else work.run(causes, wait_s)


def repair_history(cluster: str) -> list[RepairEvent]:
    """Every step of every repair of a cluster, from its record."""
    return _read(_record(named_cluster(cluster)))


def _record(cluster: Cluster) -> Path:
    place = {"slurm": cluster.slurm.login, "kubernetes": cluster.kubernetes.context}.get(cluster.engine)
    return data_folder("repairs", re.sub(r"[^\w.@-]", "_", f"{cluster.engine}-{place or 'default'}") + ".jsonl")


def _read(record: Path) -> list[RepairEvent]:
    return [RepairEvent(**row) for row in read_lines_from(record, 0)[0]]


@dataclass
class ClusterRepairs:
    """The repairs of one cluster: `next_steps` decides, and each step is taken here.

    Only one process at a time writes the record, which holds every step.
    """

    backend: Backend
    record: Path
    policy: RepairPolicy
    clock: Clock = field(default_factory=SystemClock)
    on_event: Callable[[RepairEvent], None] = lambda event: None
    _events: list[RepairEvent] = field(default_factory=list)
    _nodes: dict[str, NodeStatus] = field(default_factory=dict)

    def plan(self, causes: Sequence[RepairEvent]) -> list[RepairEvent]:
        """What `run` would do first; nothing is changed."""
        begun, left = self._begin(causes)
        self._events += begun
        return [*self._shown(), *left]

    def run(self, causes: Sequence[RepairEvent], wait_s: float = math.inf) -> list[RepairEvent]:
        """Take every step that is due, until no repair is open or has room, or the time is over."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        if (lock := take_lock(self.record.with_suffix(".lock"))) is None:
            raise EnvironmentProblem("another process repairs this cluster", hint="wait until it has ended")
        with closing_handle(lock):
            begun, left = self._begin(causes)
            for event in begun:
                self._write(event)
            names = {node for node, each in self._repairs.items() if each.step not in repairs.ENDS}
            self._work(self.clock.now() + wait_s)
            return [*self._shown(names), *left]

    def _work(self, deadline: float) -> None:
        while True:
            steps = self._next()
            with ThreadPoolExecutor(_THREADS) as threads:
                has_moved = any(list(threads.map(self._take, steps, steps.values())))
            waits = all(self._repairs[node].step == "waits" for node in steps)
            if not has_moved and (waits or self.clock.now() >= deadline):
                return
            if not has_moved:
                self.clock.sleep(_POLL_S)

    @property
    def _repairs(self) -> dict[str, NodeRepair]:
        return repairs.repairs_of(list(self._events))

    def _begin(self, causes: Sequence[RepairEvent]) -> tuple[list[RepairEvent], list[RepairEvent]]:
        """First events of new repairs, and nodes that get none, with the reason."""
        self._events, now = _read(self.record), self.clock.now()
        self._nodes = {node.name: node for node in self.backend.nodes()}
        begun, left, known = dict[str, RepairEvent](), dict[str, RepairEvent](), self._repairs
        for cause in causes or list(self._faults()):
            node, before = cause.node, known.get(cause.node)
            if before is not None and (before.step not in repairs.ENDS or cause.t <= before.events[-1].t):
                continue
            if why := self._left_alone(cause, before):
                left[node] = RepairEvent(now, node, "left", f"{cause.detail}; {why}", cause.kind)
                continue
            is_out = before is not None and before.step == "out" and cause.kind == "named"
            kind = before.begun.kind if before is not None and is_out else cause.kind
            first = repairs.first_action(cause.kind, cause.detail, self.policy)
            event = RepairEvent(now, node, "waits", cause.detail[:_LONGEST], kind, first)
            if node not in begun or repairs.LADDER.index(first) > repairs.LADDER.index(begun[node].first):
                begun[node] = event
        return list(begun.values()), list(left.values())

    def _left_alone(self, cause: RepairEvent, before: NodeRepair | None) -> str:
        """Why a node without an open repair gets none; empty if it gets one."""
        node = self._nodes.get(cause.node)
        if node is None:
            if cause.kind == "named":
                raise UsageError(f"the cluster has no node `{cause.node}`", place="--nodes", hint="trainworks nodes")
            return "not a node of this cluster"
        holder = self._holder(node, before)
        if holder == "repair" and cause.kind != "named":
            return "out with a ticket; name it in `--nodes` to check it again"
        return f"drained by others: {node.reason or 'no reason given'}" if holder == "others" else ""

    def _faults(self) -> Iterator[RepairEvent]:
        """Nodes that Trainworks or the scheduler took out of service for a fault."""
        for node in self._nodes.values():
            if self._holder(node, None) == "fault":
                words, text = self._fault(node), node.reason or ""
                checks = re.findall(r"(?: |; )([a-z][a-z0-9-]+): ([^;]+)", text) if words == repairs.OF_CHECK else []
                for kind, found in checks or [(words, text)]:
                    yield RepairEvent(math.inf, node.name, "waits", found, kind)

    def _fault(self, node: NodeStatus) -> str:
        """First words of the reason of a node that is out of service for a fault; empty for any other reason."""
        words = (*repairs.FAULTS, *self.policy.takes_over)
        found = next((each for each in words if (node.reason or "").startswith(each)), "")
        return repairs.NOT_READY if node.raw == repairs.NOT_READY else found

    def _holder(self, node: NodeStatus, repair: NodeRepair | None) -> Holder:
        if node.state not in ("draining", "drained", "down"):
            return "service"
        is_known = repair is not None and repair.step not in ("back", "left")
        if is_known and (node.reason or "").startswith(MARK):
            return "repair"
        return "fault" if self._fault(node) else "others"

    def _next(self) -> dict[str, NextStep]:
        """The next steps, after a look at the cluster."""
        self._nodes, known = {node.name: node for node in self.backend.nodes()}, self._repairs
        seen = []
        for name, node in self._nodes.items():
            has_jobs = node.state == "draining" or bool(node.jobs)
            seen.append(repairs.SeenNode(name, self._holder(node, known.get(name)), node.reason or "", has_jobs))
        return repairs.next_steps(known, seen, self.policy, self.clock.now())

    def _shown(self, names: Collection[str] = ()) -> list[RepairEvent]:
        """What follows in each open repair, and the last step of each named one that has ended."""
        steps, shown, now = self._next(), list[RepairEvent](), self.clock.now()
        for node, each in self._repairs.items():
            if node in steps:
                step, kind = steps[node].step or each.step, each.begun.kind
                action = repairs.next_action(each, self.policy, now) if step == "drain" else step
                command = repairs.command_of(action, kind, self.policy).replace("$NODE", node)
                words = [each.begun.detail, f"then {action}" * (action != step), steps[node].why or command]
                shown.append(RepairEvent(now, node, step, "; ".join(filter(None, words)), kind))
            elif node in names:
                shown.append(each.events[-1])
        return shown

    def _take(self, node: str, todo: NextStep) -> bool:
        """Take a step, and return whether it led on. An effect is on record before it is tried, its result after."""
        repair, step = self._repairs[node], todo.step
        if step is None:
            return False
        if repair.step != step:
            self._note(node, step, todo.why)
        follows, said = self._effect(repair, step) if step in repairs.EFFECTS else (step, "")
        if follows != step:
            self._note(node, follows, said)
        return follows is not repair.step

    def _effect(self, repair: NodeRepair, step: RepairStep) -> tuple[RepairStep, str]:
        """Take a step; returns what follows it, and what there is to say of it."""
        node, cause = repair.begun.node, repair.begun.detail
        if step == "drain":
            self.backend.drain(node, MARK + cause)
            return "drained", ""
        if step == "release":
            self.backend.undrain(node)
            return "back", ""
        if step == "ticket":
            return "out", self._open_ticket(repair)
        if self._has_booted(repair):
            return "check", ""
        if step == "booting":
            is_late = self.clock.now() - (repair.at(step) or 0.0) > self.policy.boot_timeout
            return ("failed", f"not booted in {self.policy.boot_timeout:g} s") if is_late else (step, "")
        return self._act(repair, step)

    def _act(self, repair: NodeRepair, step: RepairStep) -> tuple[RepairStep, str]:
        command = repairs.command_of(step, repair.begun.kind, self.policy)
        code, said = self._call(command, repair.begun.node, repair.begun.detail)
        if code and not (step == "reboot" and code == _CONNECTION_LOST):
            return "failed", said[-_LONGEST:]
        return "release" if step == "check" else "booting" if step == "reboot" else "check", said[-_LONGEST:]

    def _has_booted(self, repair: NodeRepair) -> bool:
        """Whether a node has booted since its reboot is on record; the time that the answer takes counts against it."""
        asked_at, now = repair.at("reboot"), self.clock.now()
        if asked_at is None or repair.step not in ("reboot", "booting"):
            return False
        code, said = self._call(self.policy.uptime, repair.begun.node, repair.begun.detail)
        uptime = re.match(r"\d+(\.\d+)?", said)
        return code == 0 and uptime is not None and now - float(uptime[0]) > asked_at

    def _open_ticket(self, repair: NodeRepair) -> str:
        begun = repair.begun
        name = f"{begun.node}-{int(begun.t)}"
        file = self.record.with_suffix("") / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        facts = {"id": name, "node": begun.node, "kind": begun.kind, "cause": begun.detail}
        write_atomic(file, json.dumps({**facts, "steps": [asdict(event) for event in repair.events]}, indent=2))
        self.backend.drain(begun.node, f"{MARK}{begun.detail}; ticket {name}")
        if not self.policy.ticket:
            return str(file)
        code, said = self._call(self.policy.ticket, begun.node, begun.detail, TICKET=str(file))
        return f"{file}: {'the command failed: ' * bool(code)}{said[-_LONGEST:]}"

    def _call(self, command: str, node: str, cause: str, **more: str) -> tuple[int, str]:
        """Exit code of a command of the site, and what it printed, in one line."""
        env = {**os.environ, "NODE": node, "CAUSE": cause, **more}
        try:
            done = process.run(["bash", "-c", command], timeout_s=self.policy.command_timeout, env=env)
        except EnvironmentProblem as late:
            return 124, late.message
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        return done.exit_code, said or f"exit code {done.exit_code}" * bool(done.exit_code)

    def _note(self, node: str, step: RepairStep, detail: str = "") -> None:
        self._write(RepairEvent(self.clock.now(), node, step, detail))

    def _write(self, event: RepairEvent) -> None:
        append_text(self.record, json.dumps(asdict(event)) + "\n", durable=True)
        self._events.append(event)
        self.on_event(event)


def read_causes(path: Path, policy: RepairPolicy) -> list[RepairEvent]:
    """Read which nodes failed, from JSON of `health`, `bench`, an acceptance or Alertmanager.

    Alerts without an action are left out.

    Raises:
        UsageError: the file cannot be read, or is none of these.
    """
    hint = "write it with `trainworks health --json`, `trainworks bench --json` or `amtool alert query -o json`"
    try:
        return _causes(json.loads(path.read_text(encoding="utf-8")), path.stat().st_mtime, policy)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", place="--from", hint=hint) from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise UsageError(
            f"`{path}` is neither a report of nodes nor a list of alerts", place="--from", hint=hint
        ) from None


def _causes(content: Any, at: float, policy: RepairPolicy) -> list[RepairEvent]:
    if "verification" in content:  # of an acceptance, whose bench is None where nodes are not as their stack says
        content = content["bench"] or {"nodes": [], "outliers": []}
    if "checks" in content:
        failed = [each for each in content["checks"] if each["verdict"] == "failed"]
        return [RepairEvent(at, content["node"], "waits", each["problems"][0], each["check"]) for each in failed]
    if "odd" in content:
        complaints = [(each["node"], text.split(": ", 1)) for each in content["nodes"] for text in each["failed"]]
        return [RepairEvent(at, node, "waits", text, kind) for node, (kind, text) in complaints]
    if "outliers" in content:
        names = {node["name"] for node in content["nodes"]}
        slow = [(each["subject"].split()[0], each) for each in content["outliers"] if "<->" not in each["subject"]]
        words = "{subject}: {share:.0%} of the rate of its peers"
        return [RepairEvent(at, node, "waits", words.format(**each), "slow") for node, each in slow if node in names]
    found = []
    for alert in content["alerts"] if isinstance(content, dict) else content:
        labels, status, since = alert["labels"], alert.get("status", "firing"), alert.get("startsAt")
        is_active = (status["state"] if isinstance(status, dict) else status) in ("firing", "active")
        name, begun_at = labels["alertname"], datetime.fromisoformat(since).timestamp() if since else at
        is_known = name == "HealthCheckFailed" or name in repairs.FIRST or name in policy.causes
        if "node" in labels and is_active and is_known:
            kind, text = labels.get("check", name), alert["annotations"]["summary"]
            found.append(RepairEvent(begun_at, labels["node"], "waits", text, kind))
    return found
