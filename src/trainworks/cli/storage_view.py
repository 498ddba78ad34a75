"""What `trainworks storage` prints: the demand, a node's needs, every kind of storage, and what RAID is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from trainworks.catalog.catalog import storage
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.prediction import describe_layout
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.plan import RAID_DRIVE_BYTES, RAID_DRIVES, StoragePlan, raid_figures
from trainworks.plan.storage.raid import UNPROTECTED, Raid
from trainworks.plan.storage.systems import StorageVerdict, recommended
from trainworks.plan.trace import Traced
from trainworks.units import format_quantity, format_step_time

__all__ = ["print_storage", "storage_as_json"]

_SMALLEST_CHANCE = 1e-9
_SURVIVES = {
    "nothing": "no loss",
    "drives": "the loss of a drive, not of a server without its pair: keep a copy elsewhere",
    "servers": "the loss of a server, not of the site: keep a copy elsewhere",
    "sites": "the loss of a site, not a deletion: keep versions",
}


def print_storage(shown: StoragePlan, console: Console) -> None:
    """The tables, and the first kind of storage that is enough."""
    _print_pairs(console, _about(shown.plan))
    demand = shown.demand
    _print_figures(console, "storage has to give", [item for item in demand.figures() if item is not demand.packed])
    if demand.small:
        _print_lines(console, [_packing(demand)])
    _print_figures(console, "each node needs", shown.needs.figures())
    _print_lines(console, _node_has(shown))
    _print_verdicts(console, shown.verdicts)
    _print_pairs(console, [("recommended", _recommendation(shown.verdicts))])
    _print_raid(console, shown.arrays())


def _print_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Two columns, so that a narrow terminal breaks the second one only."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for pair in pairs:
        table.add_row(*pair)
    console.print(table)
    console.print()


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False)
    console.print()


def _about(plan: ClusterPlan) -> list[tuple[str, str]]:
    best, cluster = plan.best[0], plan.job.cluster
    return [
        ("cluster", f"{cluster.name}: {cluster.num_nodes:,} nodes, {cluster.num_accelerators:,} accelerators"),
        ("layout", describe_layout(best.layout)),
        ("step", f"{plan.global_batch:,} samples in {format_step_time(best.step_time_s)}, {plan.steps:,} steps"),
    ]


def _print_figures(console: Console, title: str, figures: list[Traced]) -> None:
    table = Table(title, "", "how it comes about", box=None, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for item in figures:
        how = (item.formula or item.source or "").replace("_", " ")
        table.add_row(item.name, format_quantity(item.value, item.unit), how)
    console.print(table)
    console.print()


def _packing(demand: Demand) -> str:
    now, packed = (format_quantity(item.value, item.unit) for item in (demand.opens, demand.packed))
    return f"the files are small: packed into shards, the run would open {packed} instead of {now}"


def _node_has(shown: StoragePlan) -> list[str]:
    node = shown.plan.job.cluster.node
    if node is None or node.vcpus is None or node.host_memory_bytes is None:
        return ["the catalogue does not say how many vCPUs and how much memory this node has"]
    cores = "enough" if node.vcpus >= shown.needs.vcpus.value else "not enough"
    memory = "enough" if node.host_memory_bytes >= shown.needs.memory.value else "not enough"
    has = format_quantity(node.host_memory_bytes, "bytes")
    return [f"{node.name} has {node.vcpus:,} vCPUs, {cores}, and {has} of memory, {memory}"]


def _print_verdicts(console: Console, verdicts: list[StorageVerdict]) -> None:
    table = Table("storage", "enough", "because", box=None, padding=(0, 2, 0, 0))
    for verdict in verdicts:
        table.add_row(verdict.name, "yes" if verdict.enough else "no", verdict.reason)
    console.print(table)
    console.print()


def _recommendation(verdicts: list[StorageVerdict]) -> str:
    first = recommended(verdicts)
    if first is None:
        return "none of these is enough: allow saving more time, pack small files, or share the reads by more nodes"
    home = storage(first.design.home)
    return (
        f"{first.name}: of those that are enough the one with least to buy and run beside the nodes. "
        f"{home.name} survives {_SURVIVES[home.survives]}."
    )


def _print_raid(console: Console, arrays: list[Raid]) -> None:
    table = Table(
        f"{RAID_DRIVES} drives of {format_quantity(RAID_DRIVE_BYTES, 'bytes')}",
        "usable", "writes", "survives", "data lost in a year", box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for array in arrays:
        table.add_row(*_raid_cells(array))
    console.print(table)
    console.print()
    table = Table("no RAID level protects from", "what does", box=None, padding=(0, 2, 0, 0))
    for what, how in UNPROTECTED:
        table.add_row(what, how)
    console.print(table)


def _raid_cells(array: Raid) -> tuple[str, ...]:
    best = array.at_best.value
    survives = f"any {array.tolerates.value:.0f}" + (f", at best {best:.0f}" if best > array.tolerates.value else "")
    chance = array.loss.value
    return (
        array.level,
        format_quantity(array.capacity.value, "bytes"),
        f"{array.writes.value:.0f} x",
        survives if best else "none",
        f"{chance:.1e}" if chance >= _SMALLEST_CHANCE else f"below {_SMALLEST_CHANCE:.0e}",
    )


def storage_as_json(shown: StoragePlan) -> dict[str, Any]:
    """Everything in base units, each key with its unit."""
    first = recommended(shown.verdicts)
    return {
        "cluster": shown.plan.job.cluster.name,
        "demand": _keyed(shown.demand.figures()),
        "node": _keyed(shown.needs.figures()),
        "systems": [_verdict_as_json(verdict) for verdict in shown.verdicts],
        "recommended": None if first is None else first.name,
        "raid": [{"level": array.level} | _keyed([*raid_figures(array), array.tolerates]) for array in shown.arrays()],
    }


def _verdict_as_json(verdict: StorageVerdict) -> dict[str, Any]:
    servers = {count.name.rpartition(": ")[2].replace(" ", "_"): count.value for count in verdict.servers}
    return {"name": verdict.name, "enough": verdict.enough, "reason": verdict.reason, "servers": servers}


def _keyed(figures: list[Traced]) -> dict[str, float]:
    return {f"{item.name.replace(' ', '_').lower()}{_suffix(item.unit)}": item.value for item in figures}


def _suffix(unit: str) -> str:
    return f"_{unit.replace('/', '_per_')}" if unit else ""
