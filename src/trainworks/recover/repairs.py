"""Repairs of nodes: which step follows which, how many nodes at once, and which action after which failure. Pure.

waits -> drain -> drained -> reset | reload | reboot -> check -> release -> back
                     ^                                    |
                     +------------- failed <--------------+      ticket -> out
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainworks.catalog.catalog import load_catalog
from trainworks.recover.repair_policy import RepairPolicy

MARK = "trainworks repair: "
"""First words of the reason of every node that a repair has drained."""


class RepairStep(enum.StrEnum):
    """A step of a repair: what is done next, or what came of it."""

    WAITS = "waits"
    DRAIN = "drain"
    DRAINED = "drained"
    CHECK = "check"
    RESET = "reset"
    RELOAD = "reload"
    REBOOT = "reboot"
    BOOTING = "booting"
    FAILED = "failed"
    RELEASE = "release"
    BACK = "back"
    TICKET = "ticket"
    OUT = "out"
    LEFT = "left"


Step = RepairStep
LADDER = (Step.CHECK, Step.RESET, Step.RELOAD, Step.REBOOT, Step.TICKET)
"""Actions, each stronger than the one before."""
OF_CHECK = "trainworks: "
"""First words of the reason of a node that a health check or a hook has drained."""
NOT_READY = "NotReady"
"""State of a node of Kubernetes that does not answer, and that is not cordoned."""
EFFECTS = frozenset((*LADDER, Step.DRAIN, Step.BOOTING, Step.RELEASE))
ENDS = frozenset((Step.BACK, Step.OUT, Step.LEFT))
FIRST = (
    dict.fromkeys(("named", OF_CHECK, "Prolog error", "GpuThermallyThrottled"), Step.CHECK)
    | dict.fromkeys(("xid", "gpu-ecc-errors", "fabric-state", "nvswitch-errors", "slow"), Step.RESET)
    | dict.fromkeys(("GpuResetPending", "GpuUncorrectedErrors", "NvlinkRecovers"), Step.RESET)
    | {"gpu-driver": Step.RELOAD}
    | dict.fromkeys(
        ("gpu-count", "gpu-processes", "fabric-manager", "cpu-online", "shm", "mounts-present"), Step.REBOOT
    )
    | dict.fromkeys(("NodeDown", "GpuLost", "Not responding", NOT_READY, "Kill task failed"), Step.REBOOT)
    | dict.fromkeys(("GpuRowRemapFailed", "GpuTooHot", "FabricPortDown", "FabricPortFlaps"), Step.TICKET)
)
"""First action by check, alert, or first words of a reason; any other failed check gets a ticket."""
FAULTS = (OF_CHECK, "Prolog error", "Kill task failed", "Not responding")
"""First words of reasons that a check or Slurm gave; drained nodes with another reason are left alone."""
_SLOW = frozenset({"slow", "NvlinkRecovers", "GpuThermallyThrottled"})
_OF_XID = {"reboot": Step.REBOOT, "isolate": Step.TICKET}


def first_action(kind: str, text: str, policy: RepairPolicy) -> RepairStep:
    """First action after a cause of a kind; that of the strongest XID that its text names.

    >>> str(first_action("xid", "GPU 0000:04:00 had XID 79: GPU fell off the bus", RepairPolicy()))
    'reboot'
    """
    if of_site := (policy.causes | policy.takes_over).get(kind):
        return Step(of_site)
    xids = load_catalog().xids
    codes = [code for code in re.findall(r"XID \d+", text) if kind == "xid" and code in xids]
    steps = [_OF_XID.get(xids[code].action, Step.RESET) for code in codes]
    return max(steps, key=LADDER.index, default=FIRST.get(kind, Step.TICKET))


def command_of(step: RepairStep | None, kind: str, policy: RepairPolicy) -> str:
    """Command of the site for a step after a cause; empty if the step has none. A slow node is measured, too."""
    command: str = getattr(policy, step, "") if step in LADDER else ""
    is_measured = step is Step.CHECK and kind in _SLOW and policy.bench
    return f"( {command} ) && ( {policy.bench} )" if is_measured else command


@dataclass(frozen=True, slots=True)
class RepairEvent:
    """A line of the record; the one that begins a repair, `waits`, has the cause, its kind and the first action."""

    t: float
    node: str
    step: RepairStep
    detail: str = ""
    kind: str = ""
    first: RepairStep = Step.CHECK


@dataclass(frozen=True, slots=True)
class NodeRepair:
    """The last repair of a node: its events, and the actions of earlier ones for the same kind of cause."""

    events: tuple[RepairEvent, ...]
    earlier: tuple[RepairEvent, ...] = ()

    @property
    def begun(self) -> RepairEvent:
        """The first event, which has the cause."""
        return self.events[0]

    @property
    def step(self) -> RepairStep:
        """The last step."""
        return self.events[-1].step

    def at(self, step: RepairStep) -> float | None:
        """Time of the last step of that name; None without one."""
        return next((event.t for event in reversed(self.events) if event.step is step), None)


def repairs_of(events: Iterable[RepairEvent]) -> dict[str, NodeRepair]:
    """The last repair of each node, from the record."""
    found: dict[str, NodeRepair] = {}
    actions: dict[tuple[str, str], tuple[RepairEvent, ...]] = {}
    for event in events:
        if event.step is Step.WAITS:
            found[event.node] = NodeRepair((event,), actions.get((event.node, event.kind), ()))
        elif (repair := found.get(event.node)) is not None:
            found[event.node] = NodeRepair((*repair.events, event), repair.earlier)
            if event.step in LADDER[1:]:
                of = (event.node, repair.begun.kind)
                actions[of] = (*actions.get(of, ()), event)
    return found


class Holder(enum.StrEnum):
    """Why a node takes jobs, or takes none."""

    SERVICE = "takes jobs"
    REPAIR = "held by a repair"
    FAULT = "out of service for a fault"
    OTHERS = "drained by others"


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node as its cluster shows it now."""

    name: str
    holder: Holder
    reason: str = ""
    has_jobs: bool = False


@dataclass(frozen=True, slots=True)
class NextStep:
    """What follows for a node, and why; None while it waits."""

    step: RepairStep | None
    why: str = ""


def next_steps(
    repairs: Mapping[str, NodeRepair], nodes: Sequence[SeenNode], policy: RepairPolicy, now: float
) -> dict[str, NextStep]:
    """The next step of each open repair whose node the cluster shows.

    A repair begins while the nodes that repairs hold, from wherever they run, are fewer than the share allows; a node
    that a repair holds already needs no room.
    """
    held = {name for name, repair in repairs.items() if repair.step not in ENDS | {Step.WAITS}}
    held |= {node.name for node in nodes if node.holder is not Holder.SERVICE and node.reason.startswith(MARK)}
    most, found = int(policy.max_share * len(nodes) + 1e-9), dict[str, NextStep]()
    seen = {node.name: node for node in nodes}
    for name, repair in repairs.items():
        if repair.step in ENDS or name not in seen:
            continue
        found[name] = _next(repair, seen[name], policy, now)
        if found[name].step is Step.DRAIN and name not in held and len(held) >= most:
            why = f"{len(held)} of {len(nodes)} nodes are out for repair, and {most} may be"
            found[name] = NextStep(None, f"{why} ({100 * policy.max_share:.3g} %)")
        elif found[name].step is Step.DRAIN:
            held.add(name)
    return found


def _next(repair: NodeRepair, node: SeenNode, policy: RepairPolicy, now: float) -> NextStep:
    """The next step of a repair. The first row that fits decides.

    | last step       | the node                  | next             |
    |-----------------|---------------------------|------------------|
    | release         | was released              | back             |
    | any             | was drained by others     | left             |
    | after drain     | takes jobs                | left             |
    | waits           |                           | drain            |
    | an effect       |                           | the same         |
    | drained, failed | has jobs                  | none yet         |
    | drained, failed |                           | the next action  |

    An effect without a result on record is tried again.
    """
    step, holder = repair.step, node.holder
    if step is Step.RELEASE and holder in (Holder.SERVICE, Holder.FAULT):
        return NextStep(Step.BACK)
    if holder is Holder.OTHERS or (holder is Holder.SERVICE and step not in (Step.WAITS, Step.DRAIN)):
        return NextStep(Step.LEFT, holder + f": {node.reason}" * bool(node.reason))
    if step is Step.WAITS or step in EFFECTS:
        return NextStep(Step.DRAIN if step is Step.WAITS else step)
    return NextStep(None, "has jobs") if node.has_jobs else NextStep(next_action(repair, policy, now))


def next_action(repair: NodeRepair, policy: RepairPolicy, now: float) -> RepairStep:
    """The weakest action that is stronger than all that were tried lately, and not weaker than the first of the cause.

    What this repair has tried counts, and what earlier ones have tried for the same kind within the time.
    """
    first = repair.begun.first
    if first is Step.CHECK and repair.at(Step.FAILED) is None:
        return first
    lately = [event for event in repair.earlier if event.t >= now - policy.escalate_within]
    tried = [LADDER.index(event.step) + 1 for event in (*lately, *repair.events) if event.step in LADDER[1:4]]
    lowest = max(1, LADDER.index(first), *tried)
    return next(step for step in LADDER[lowest:] if step is Step.TICKET or getattr(policy, step))
