"""Storage of a run: the demand, the needs of a node, every kind of storage judged by them, and RAID levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainworks.catalog.catalog import storage
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.storage.raid import UNPROTECTED, Raid
from trainworks.plan.storage.run import RAID_DRIVE_BYTES, RAID_DRIVES, StoragePlan, raid_figures
from trainworks.plan.storage.systems import StorageVerdict, recommended
from trainworks.plan.trace import Traced
from trainworks.report.explain import sources_section
from trainworks.report.rendering.document import Column, Document, Facts, Section, Table, Text, left, right
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_counted, format_quantity, format_step_time

_SMALLEST_CHANCE = 1e-9
_SURVIVES = {
    "nothing": "no loss",
    "drives": "the loss of a drive, not of a server without its pair: keep a copy elsewhere",
    "servers": "the loss of a server, not of the site: keep a copy elsewhere",
    "sites": "the loss of a site, not a deletion: keep versions",
}


@build_document.register
def document(plan: StoragePlan) -> Document:
    """The demand, the needs of a node, every kind of storage with its reason, and RAID levels."""
    demand = plan.demand
    figures = [item for item in demand.figures() if item is not demand.packed]
    now, packed = (format_quantity(item.value, item.unit) for item in (demand.opens, demand.packed))
    packing = f"the files are small: packed into shards, the run would open {packed} instead of {now}"
    verdicts = [[verdict.name, "yes" if verdict.enough else "no", verdict.reason] for verdict in plan.verdicts]
    drives = f"{RAID_DRIVES} drives of {format_quantity(RAID_DRIVE_BYTES, 'bytes')}"
    levels = [*left(drives), *right("usable", "writes"), *left("survives"), *right("data lost in a year")]
    unprotected = Table([Column("no RAID level protects from"), Column("what does", wrap=True)], [*UNPROTECTED])
    return Document(
        f"Storage for {plan.plan.job.cluster.name}",
        "storage",
        [
            Section("", [Facts.from_mapping(_about(plan.plan))]),
            Section("", [_figures("storage has to give", figures)]),
            Section("", [Text(packing)] if demand.small else []),
            Section("", [_figures("each node needs", plan.needs.figures())]),
            Section("", [Text(_node(plan))]),
            Section("", [Table([*left("storage", "enough"), Column("because", wrap=True)], verdicts)]),
            Section("", [Facts.from_mapping({"recommended": _recommendation(plan.verdicts)})]),
            Section("", [Table(levels, [_raid_cells(array) for array in plan.arrays()])]),
            Section("", [unprotected]),
            sources_section(plan.figures),
        ],
    )


def _about(plan: ClusterPlan) -> dict[str, str]:
    best, cluster = plan.best[0], plan.job.cluster
    accelerators = format_counted(cluster.num_accelerators, "accelerator")
    return {
        "cluster": f"{cluster.name}: {format_counted(cluster.num_nodes, 'node')}, {accelerators}",
        "layout": best.layout.describe(),
        "step": f"{plan.global_batch:,} samples in {format_step_time(best.step_time_s)}, {plan.steps:,} steps",
    }


def _figures(title: str, figures: Sequence[Traced]) -> Table:
    rows = [
        [item.name, format_quantity(item.value, item.unit), (item.formula or item.source or "").replace("_", " ")]
        for item in figures
    ]
    return Table([Column(title), Column("", numeric=True), Column("how it comes about", wrap=True)], rows)


def _node(plan: StoragePlan) -> str:
    node = plan.plan.job.cluster.node
    if node is None or node.vcpus is None or node.host_memory_bytes is None:
        return "the catalogue does not say how many vCPUs and how much memory this node has"
    cores = "enough" if node.vcpus >= plan.needs.vcpus.value else "not enough"
    memory = "enough" if node.host_memory_bytes >= plan.needs.memory.value else "not enough"
    size = format_quantity(node.host_memory_bytes, "bytes")
    return f"{node.name} has {node.vcpus:,} vCPUs, {cores}, and {size} of memory, {memory}"


def _recommendation(verdicts: list[StorageVerdict]) -> str:
    best = recommended(verdicts)
    if best is None:
        return "none of these is enough: allow saving more time, pack small files, or share the reads by more nodes"
    home = storage(best.design.home)
    return (
        f"{best.name}: of those that are enough the one with least to buy and run beside the nodes. "
        f"{home.name} survives {_SURVIVES[home.survives]}."
    )


def _raid_cells(array: Raid) -> list[str]:
    best, chance = array.at_best.value, array.loss.value
    survives = f"any {array.tolerates.value:.0f}" + (f", at best {best:.0f}" if best > array.tolerates.value else "")
    return [
        array.level,
        format_quantity(array.capacity.value, "bytes"),
        f"{array.writes.value:.0f} x",
        survives if best else "none",
        f"{chance:.1e}" if chance >= _SMALLEST_CHANCE else f"below {_SMALLEST_CHANCE:.0e}",
    ]


@to_json.register
def _(plan: StoragePlan) -> Mapping[str, object]:
    best = recommended(plan.verdicts)
    systems = []
    for verdict in plan.verdicts:
        servers = {count.name.rpartition(": ")[2].replace(" ", "_"): count.value for count in verdict.servers}
        systems.append({"name": verdict.name, "enough": verdict.enough, "reason": verdict.reason, "servers": servers})
    return {
        "cluster": plan.plan.job.cluster.name,
        "demand": _to_figures(plan.demand.figures()),
        "node": _to_figures(plan.needs.figures()),
        "systems": systems,
        "recommended": None if best is None else best.name,
        "raid": [{"level": each.level, **_to_figures([*raid_figures(each), each.tolerates])} for each in plan.arrays()],
    }


def _to_figures(figures: Sequence[Traced]) -> dict[str, float]:
    units = {"": ""} | {item.unit: f"_{item.unit.replace('/', '_per_')}" for item in figures if item.unit}
    return {f"{item.name.replace(' ', '_').lower()}{units[item.unit]}": item.value for item in figures}
