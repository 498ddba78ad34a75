"""Tables of measured collectives, as nccl-tests prints them."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import UsageError
from trainworks.measure.measured_clusters import read_cluster
from trainworks.measure.measured_runs import source_of
from trainworks.measure.tables import Row, needed_number, needed_whole, number_of, text_of, whole_of
from trainworks.plan.collectives import Collective

COLLECTIVE_COLUMNS = (
    *("id", "source", "gpu", "nodes", "gpus", "network", "collective", "size_bytes", "time_us", "busbw", "algbw"),
)

_KNOWN: dict[str, Collective] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One row that can be predicted."""

    id: str
    source: str
    group: str
    """Collective, ranks, accelerator and network: what one curve over sizes belongs to."""
    kind: Collective
    cluster: ClusterDescription
    ranks: int
    size_bytes: float
    """Size as nccl-tests counts it: the complete buffer, summed over the ranks in gathers and scatters."""
    time_s: float | None


def read_collective(row: Row) -> MeasuredCollective:
    """The collective of a row; its time is printed, or follows from `algbw` or `busbw` in GB/s.

    Raises:
        UsageError: the row lacks something, or names a collective that is not planned.
    """
    ranks = needed_whole(row, "gpus")
    nodes = whole_of(row, "nodes") or 1
    if ranks % nodes:
        raise UsageError(f"{ranks} gpus are not the same number on each of {nodes} nodes")
    network = text_of(row, "network")
    size_bytes = needed_number(row, "size_bytes")
    kind = _kind(text_of(row, "collective"))
    cells = {**row, "gpus_per_node": str(ranks // nodes), "inter_node_net": network if nodes > 1 else ""}
    cluster = read_cluster({"intra_node_net": network if nodes == 1 else "", **cells}, num_accelerators=ranks)
    return MeasuredCollective(
        id=text_of(row, "id"),
        source=source_of(row),
        group=f"{kind}, {ranks}x {cluster.accelerator.name}, {network or cluster.network}",
        kind=kind,
        cluster=cluster,
        ranks=ranks,
        size_bytes=size_bytes,
        time_s=_time_s(row, kind, ranks, size_bytes),
    )


def _kind(text: str) -> Collective:
    key = "".join(letter for letter in text.lower() if letter.isalpha()).removesuffix("perf")
    if key not in _KNOWN:
        raise UsageError(f"collective `{text}` is not planned", hint=f"these are: {', '.join(_KNOWN.values())}")
    return _KNOWN[key]


def _time_s(row: Row, kind: Collective, ranks: int, size_bytes: float) -> float | None:
    """Algbw = S / t, busbw = algbw times 2(n-1)/n for an all-reduce, (n-1)/n for the others (nccl-tests)."""
    if microseconds := number_of(row, "time_us"):
        return microseconds * 1e-6
    if bus := number_of(row, "busbw"):
        return size_bytes * (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks / (bus * 1e9)
    if algorithm := number_of(row, "algbw"):
        return size_bytes / (algorithm * 1e9)
    return None
