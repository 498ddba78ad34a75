"""Repairs of nodes: which step follows which, how many at once, which action after which failure, and the policy. Pure.

waits -> drain -> drained -> reset | reload | reboot -> check -> release -> back
                     ^                                    |
                     +------------- failed <--------------+      ticket -> out
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainworks.catalog.catalog import load_catalog
from trainworks.config.quantities import DurationS, Share
from trainworks.config.spec import Spec
from trainworks.units import DAY_S

GPUS_RESET = "trainworks: the GPUs were reset"
"""Line of the kernel's log after a reset; errors before it that a reset clears do not count any more."""
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 $NODE "
_Action = Literal["check", "reset", "reload", "reboot", "ticket"]
_Command = Annotated[str, StringConstraints(max_length=4096)]
_Needed = Annotated[_Command, StringConstraints(pattern=r"\S")]


class RepairPolicy(Spec):
    """How a site repairs its nodes.

    A command is a line of bash that runs where `trainworks repair` runs, with the node's name in `$NODE` and the cause
    in `$CAUSE`. Its exit code is 0 if it succeeded. An empty one leaves its step out.
    """

    max_share: Share = 0.05
    """Largest share of the cluster's nodes that repairs keep out of service, those with a ticket included."""
    escalate_within: DurationS = 7 * DAY_S
    """Time in which a second failure of the same kind gets the next stronger action."""
    boot_timeout: DurationS = 1800.0
    """Time after which a node that has not booted again has failed."""
    command_timeout: DurationS = 900.0
    """Time after which a command is killed and has failed."""
    causes: dict[str, _Action] = Field(default_factory=dict)
    """First action by check or alert."""
    takes_over: dict[Annotated[str, Field(min_length=1)], _Action] = Field(default_factory=dict)
    """First action by the first words of the reason of a drain; such nodes are repaired, too."""
    reset: _Command = _SSH + f"\"sudo sh -c 'nvidia-smi --gpu-reset && echo {GPUS_RESET} > /dev/kmsg'\""
    """Resets all GPUs of the node."""
    reload: _Command = ""
    """Loads the driver of the GPUs anew."""
    reboot: _Command = _SSH + "sudo systemctl reboot"
    """Reboots the node. Exit code 255 counts as 0, because ssh loses its connection."""
    uptime: _Needed = _SSH + "cat /proc/uptime"
    """Prints the seconds since the node booted."""
    check: _Needed = _SSH + "sudo trainworks health --as prolog"
    """Checks the node; as root, because what a check cannot read does not fail."""
    bench: _Command = _SSH + "trainworks bench compute memory"
    """Checks a node that was slow, after `check`."""
    ticket: _Command = ""
    """Opens a ticket. `$TICKET` is a JSON file with its facts; after a crash the command may run again with the same
    `id`."""


MARK = "trainworks repair: "
"""First words of the reason of every node that a repair has drained."""


RepairStep = Literal[
    "waits", "drain", "drained", "check", "reset", "reload", "reboot", "booting", "failed", "release", "back", "ticket",
    "out", "left",
]  # fmt: skip
"""A step of a repair: what is done next, or what came of it."""
LADDER: tuple[RepairStep, ...] = ("check", "reset", "reload", "reboot", "ticket")
"""Actions, each stronger than the one before."""
OF_CHECK = "trainworks: "
"""First words of the reason of a node that a health check or a hook has drained."""
NOT_READY = "NotReady"
"""State of a node of Kubernetes that does not answer, and that is not cordoned."""
EFFECTS = frozenset((*LADDER, "drain", "booting", "release"))
ENDS = frozenset(("back", "out", "left"))
_KINDS: dict[RepairStep, tuple[str, ...]] = {
    "check": ("named", OF_CHECK, "Prolog error", "GpuThermallyThrottled"),
    "reset": ("xid", "gpu-ecc-errors", "fabric-state", "nvswitch-errors", "slow", "GpuResetPending",
              "GpuUncorrectedErrors", "NvlinkRecovers"),
    "reload": ("gpu-driver",),
    "reboot": ("gpu-count", "gpu-processes", "fabric-manager", "cpu-online", "shm", "mounts-present", "NodeDown",
               "GpuLost", NOT_READY, "Not responding", "Kill task failed"),
    "ticket": ("GpuRowRemapFailed", "GpuTooHot", "FabricPortDown", "FabricPortFlaps"),
}  # fmt: skip
FIRST = {kind: step for step, kinds in _KINDS.items() for kind in kinds}
"""First action by check, alert, or first words of a reason; any other failed check gets a ticket."""
FAULTS = (OF_CHECK, "Prolog error", "Kill task failed", "Not responding")
"""First words of reasons that a check or Slurm gave; drained nodes with another reason are left alone."""
_SLOW = frozenset({"slow", "NvlinkRecovers", "GpuThermallyThrottled"})
_OF_XID: dict[str, RepairStep] = {"reboot": "reboot", "isolate": "ticket"}


def first_action(kind: str, text: str, policy: RepairPolicy) -> RepairStep:
    """First action after a cause of a kind; that of the strongest XID that its text names.

    >>> first_action("xid", "GPU 0000:04:00 had XID 79: GPU fell off the bus", RepairPolicy())
    'reboot'
    """
    if of_site := (policy.causes | policy.takes_over).get(kind):
        return of_site
    xids = load_catalog().xids
    codes = [code for code in re.findall(r"XID \d+", text) if kind == "xid" and code in xids]
    steps = [_OF_XID.get(xids[code].action, "reset") for code in codes]
    return max(steps, key=LADDER.index, default=FIRST.get(kind, "ticket"))


def command_of(step: RepairStep | None, kind: str, policy: RepairPolicy) -> str:
    """Command of the site for a step after a cause; empty if the step has none. A slow node is measured, too."""
    command: str = getattr(policy, step, "") if step in LADDER else ""
    is_measured = step == "check" and kind in _SLOW and policy.bench
    return f"( {command} ) && ( {policy.bench} )" if is_measured else command


@dataclass(frozen=True, slots=True)
class RepairEvent:
    """A line of the record; the one that begins a repair, `waits`, has the cause, its kind and the first action.

    A cause that begins none yet is such a line with the time of the evidence.
    """

    t: float
    node: str
    step: RepairStep
    detail: str = ""
    kind: str = ""
    first: RepairStep = "check"


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
        return next((event.t for event in reversed(self.events) if event.step == step), None)


def repairs_of(events: Iterable[RepairEvent]) -> dict[str, NodeRepair]:
    """The last repair of each node, from the record."""
    found: dict[str, NodeRepair] = {}
    actions: dict[tuple[str, str], tuple[RepairEvent, ...]] = {}
    for event in events:
        if event.step == "waits":
            found[event.node] = NodeRepair((event,), actions.get((event.node, event.kind), ()))
        elif (repair := found.get(event.node)) is not None:
            found[event.node] = NodeRepair((*repair.events, event), repair.earlier)
            if event.step in LADDER[1:]:
                of = (event.node, repair.begun.kind)
                actions[of] = (*actions.get(of, ()), event)
    return found


Holder = Literal["service", "repair", "fault", "others"]
"""Why a node takes jobs, or takes none."""


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
    held = {name for name, repair in repairs.items() if repair.step not in ENDS | {"waits"}}
    held |= {node.name for node in nodes if node.holder != "service" and node.reason.startswith(MARK)}
    most, found = int(policy.max_share * len(nodes) + 1e-9), dict[str, NextStep]()
    seen = {node.name: node for node in nodes}
    for name, repair in repairs.items():
        if repair.step in ENDS or name not in seen:
            continue
        found[name] = _next(repair, seen[name], policy, now)
        if found[name].step == "drain" and name not in held and len(held) >= most:
            why = f"{len(held)} of {len(nodes)} nodes are out for repair, and {most} may be"
            hint = "" if most else "; raise `--max-share`"
            found[name] = NextStep(None, f"{why} ({100 * policy.max_share:.3g} %){hint}")
        elif found[name].step == "drain":
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
    if step == "release" and holder in ("service", "fault"):
        return NextStep("back")
    if holder == "others" or (holder == "service" and step not in ("waits", "drain")):
        return NextStep("left", f"drained by others: {node.reason}" if holder == "others" else "takes jobs again")
    if step == "waits" or step in EFFECTS:
        return NextStep("drain" if step == "waits" else step)
    return NextStep(None, "has jobs") if node.has_jobs else NextStep(next_action(repair, policy, now))


def next_action(repair: NodeRepair, policy: RepairPolicy, now: float) -> RepairStep:
    """The weakest action that is stronger than all that were tried lately, and not weaker than the first of the cause.

    What this repair has tried counts, and what earlier ones have tried for the same kind within the time.
    """
    first = repair.begun.first
    if first == "check" and repair.at("failed") is None:
        return first
    lately = [event for event in repair.earlier if event.t >= now - policy.escalate_within]
    tried = [LADDER.index(event.step) + 1 for event in (*lately, *repair.events) if event.step in LADDER[1:4]]
    lowest = max(1, LADDER.index(first), *tried)
    return next(step for step in LADDER[lowest:] if step == "ticket" or getattr(policy, step))
