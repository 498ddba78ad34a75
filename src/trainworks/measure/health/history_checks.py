"""Checks of what the kernel's log since boot says, and of what earlier jobs have seen of a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from trainworks.catalog import catalog
from trainworks.catalog.facts import XidAction
from trainworks.measure.health.check import ASSUMPTION, CheckSeverity, Reading, check, warning_check
from trainworks.measure.health.gpu_checks import AWS, AZURE
from trainworks.measure.health.host_checks import NPD
from trainworks.measure.health.node import NVIDIA, NodeView, NotApplicable
from trainworks.recover.node_history import AVOID_FROM
from trainworks.recover.repairs import GPUS_RESET
from trainworks.units import DAY_S

_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:[0-9a-fA-F:.]+\): \d+, (?P<severity>Fatal|Non-fatal).*")
_LINK = re.compile(r"(?:\bib\w*.*lost carrier|mlx5_core .*[Ll]ink down).*")
_HUNG = re.compile(r"task [\S ]+:\w+ blocked for more than \w+ seconds\.")
_OOM = re.compile(r"(?<!cgroup out of memory: )Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB")
_DISK = re.compile(
    r"(?:EXT4-fs error|Buffer I/O error on dev(?:ice)? (?!sr\d|fd\d|loop\d)|XFS .* Shutting down filesystem).*"
)
"""Errors of disks; optical and floppy drives, which virtual machines have without a medium, do not count."""
_DAY_S = 86400.0
_OF_MORE_THAN_A_GPU = ("XID 74", "XID 151", "XID 168")
"""Codes that name a GPU and may come of a link's other end, of the NVSwitch, or of the machine."""
_FAILING = ("reset", "reboot", "isolate")
_IN_TEXT = {
    "Node Reboot Required": "reboot",
    "GPU Reset Required": "reset",
    "Drain and Reset": "reset",
    "Drain P2P": "reset",
}
"""Text of XID 154 -> action."""
_DO = {
    "ignore": "nothing: it informs",
    "restart-app": "restart the job: the application or its input caused it",
    "monitor": "watch the GPU",
    "support": "ask NVIDIA's support: this code is not used any more",
    "reset": "reset the GPU when it is free, or reboot the node",
    "reboot": "reboot the node",
    "isolate": "drain the node and have it repaired",
}


@check(
    limit="no XID whose action is reset, reboot or isolate; one of `reset` counts for a day "
    f"({ASSUMPTION}), or until `trainworks repair` resets the GPUs, the others since boot",
    action="what `trainworks catalog list xids` says of the code",
    source=AWS,
)
def xid(node: NodeView) -> Reading:
    """The kernel's log has no GPU error (XID) that needs a reset, a reboot or a repair."""
    _need_gpus(node)
    seen = list(_xids(node))
    bad = [(gpu, known, action) for gpu, known, action in seen if action in _FAILING]
    watched = [(gpu, known, action) for gpu, known, action in seen if action in ("monitor", "support")]
    worst = max((action for _, _, action in bad or watched), key=list(_DO).index, default="ignore")
    problems = {f"GPU {gpu} had {known.name}: {known.meaning}": (gpu, known) for gpu, known, _ in bad or watched}
    owners = [(_owner(node, gpu, known), text) for text, (gpu, known) in problems.items()]
    faulty = {index: text for index, text in reversed(owners) if index is not None}  # the first of each GPU
    is_explained = bool(bad) and None not in dict(owners)
    severity: CheckSeverity = "failed" if bad else "warning"
    return Reading(f"{len(seen)} in the log", list(problems), severity, _DO[worst], faulty if is_explained else {})


@check(
    limit="no SXid; a fatal one fails",
    action="reset all GPUs with the fabric manager, or reboot; have the baseboard repaired if it returns",
    source=AWS,
)
def nvswitch_errors(node: NodeView) -> Reading:
    """The kernel's log has no NVSwitch error (SXid)."""
    _need_gpus(node)
    found = [match for line in node.log if (match := _SXID.search(line))]
    fatal = [match for match in found if match["severity"] == "Fatal"]
    return Reading(str(len(found)), [match[0] for match in fatal or found], "failed" if fatal else "warning")


@warning_check(
    limit="no link lost within a day (time: " + ASSUMPTION + ")",
    action="check cable and transceiver, and the log of the switch",
    source=f"{AZURE}/customTests/azure_ib_link_flapping.nhc",
)
def link_flaps(node: NodeView) -> Reading:
    """No link of a NIC went down."""
    return _lines(node, _LINK, within_s=_DAY_S)


@warning_check(
    limit="no task blocked within a day (time: " + ASSUMPTION + ")",
    action="check the storage and the network that the task waits for",
    source=NPD,
)
def hung_tasks(node: NodeView) -> Reading:
    """The kernel has seen no task that hangs in a system call."""
    return _lines(node, _HUNG, within_s=_DAY_S)


@warning_check(
    limit="no process killed within a day (time: " + ASSUMPTION + ")",
    action="look for the process that took the memory; limit jobs to their share with cgroups",
    source=NPD,
)
def oom_kills(node: NodeView) -> Reading:
    """The kernel has killed no process because the node had no memory left; a job at its own limit does not count."""
    return _lines(node, _OOM, within_s=_DAY_S)


@check(limit="no error since boot", action="replace the disk that the line names", source=NPD)
def disk_errors(node: NodeView) -> Reading:
    """No disk or local file system has failed."""
    return _lines(node, _DISK)


def _need_gpus(node: NodeView) -> None:
    if node.vendor != NVIDIA or not (node.gpus_on_the_bus or node.driver.version):
        raise NotApplicable("no NVIDIA GPU")


def _xids(node: NodeView) -> Iterator[tuple[str, XidAction, str]]:
    """GPU, row of the catalogue and action of every XID in the log that still counts."""
    reset_at = max((number for number, line in enumerate(node.log) if GPUS_RESET in line), default=-1)
    for number, line in enumerate(node.log):
        if match := re.search(r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?P<rest>.*)", line):
            known, now = _known(match["code"]), match["rest"].rpartition(" to ")[2]
            action = next((act for text, act in _IN_TEXT.items() if text in now), known.action)
            age_s = _age_s(node, line)
            if age_s < node.xids_within_s and (action != "reset" or (number > reset_at and age_s < _DAY_S)):
                yield match["gpu"], known, action


def _owner(node: NodeView, address: str, known: XidAction) -> int | None:
    """Index of the GPU that an XID is the fault of, by its PCI address in the kernel's log (`0000:04:00`); None if
    another part may be at fault, or no GPU has that address.

    The driver does not say the address of a GPU that it cannot open: it is the one that is lost, where that is one.
    """
    if known.name in _OF_MORE_THAN_A_GPU:
        return None
    place = address.lower()
    for gpu in node.driver.gpus:
        if gpu.bus_id.removeprefix("0000").startswith(place):
            return gpu.index
    return node.driver.lost[0].index if len(node.driver.lost) == 1 else None


def _known(code: str) -> XidAction:
    """The row of the catalogue; a code that it does not have is one to watch."""
    name = f"XID {code}"
    if not catalog.has("xids", name):
        return XidAction(name=name, action="monitor", meaning="a code that the catalogue does not have")
    return XidAction.model_validate(catalog.find_row(name, "xids").facts())


def _age_s(node: NodeView, line: str) -> float:
    """Seconds since a line was written; 0 for a line without a time."""
    stamp = re.search(r"\[\s*(\d+\.\d+)\]", line)
    return node.uptime_s - float(stamp[1]) if stamp else 0.0


def _lines(node: NodeView, pattern: re.Pattern[str], *, within_s: float | None = None) -> Reading:
    found = [
        match[0]
        for line in node.log
        if (match := pattern.search(line)) and (within_s is None or _age_s(node, line) < within_s)
    ]
    return Reading(str(len(found)), list(dict.fromkeys(found)))


@warning_check(
    limit=f"score below {AVOID_FROM:g}: its failure rate over the one that the plan assumes",
    action="drain the node and test it; have it replaced (RMA) if its hardware fails again",
    source=ASSUMPTION,
)
def history(node: NodeView) -> Reading:
    """The hardware of the node has not failed often under the jobs of the job store."""
    found = node.history(node.name, next((gpu.name for gpu in node.driver.gpus), None))
    if found is None:
        raise NotApplicable("no job of this node is on record")
    figure = f"{found.failures} failures in {found.held_s / DAY_S:.1f} days under jobs, score {found.score:.1f}"
    if found.score < AVOID_FROM:
        return Reading(figure)
    at = None if found.last_failed_at is None else datetime.fromtimestamp(found.last_failed_at, UTC)
    last = "" if at is None else f", last `{found.last_cause}` at {at:%Y-%m-%d %H:%M} UTC"
    return Reading(figure, [f"{figure}{last}"])
