"""Needs of every node for reading and saving: cores, memory, local drives.

    data workers   max(accelerators, samples per second of the node * bytes of a sample / bytes per second of a core)
    cores          data workers + one per accelerator + those of the system
    memory         (workers * (own + batches ahead * batch) + accelerators * rank + staged state) / (1 - page cache)
    local drives   (share of the dataset, if it is read more than once + 2 staged checkpoints) / (1 - free space)

The size of the dataset does not enter the memory: the page cache only saves reads. A dataset need not fit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainworks.plan.assumptions import assumed
from trainworks.plan.storage.demand import AGAIN, Demand, Number, given
from trainworks.plan.trace import Traced, ceil, fact, maximum

_THREADS = 2
"""Virtual CPUs of a core: what clouds sell are hardware threads of x86 processors."""


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Cores, memory and drives of one node."""

    workers: Traced
    cores: Traced
    vcpus: Traced
    """Hardware threads, as clouds count them."""
    staged: Traced
    """Bytes of state that this node saves."""
    memory: Traced
    cached: Traced
    """Bytes of the dataset worth caching on local drives; 0 if it is read once."""
    local: Traced
    """Bytes of local drives that cache and staging would take."""

    def figures(self) -> list[Traced]:
        """All figures."""
        return [getattr(self, each.name) for each in fields(self)]


def node_needs(
    demand: Demand,
    *,
    samples_per_s: Number,
    sample_bytes: Number,
    prepared_bytes: Number,
    batch_samples: int,
    accelerators_per_node: Number,
    images: bool,
    images_per_core: float | None = None,
    saving_nodes: int | None = None,
) -> NodeNeeds:
    """Needs of a node to feed its accelerators and to stage its part of a checkpoint.

    Args:
        demand: of the run.
        samples_per_s: of all nodes together.
        sample_bytes: of one sample as it is stored.
        prepared_bytes: of one sample as an accelerator gets it.
        batch_samples: samples that a data worker prepares at once.
        accelerators_per_node: each has a process of its own.
        images: whether samples are decoded; tokens are loaded.
        images_per_core: per second, as measured on these images; the catalogue's bytes per second when None.
        saving_nodes: nodes over which one replica's state is spread; by default all.

    Raises:
        UsageError: a number is not above 0.
    """
    ranks = given("accelerators per node", accelerators_per_node, "")
    samples_per_second = given("samples per second", samples_per_s, "samples/s")
    sample_size = given("sample size", sample_bytes, "bytes")
    core_rate = assumed("image preparation" if images else "token loading")
    if images_per_core is not None:
        decoded = fact("images of a core", images_per_core, "images/s", source="measured by `data prepare` here")
        core_rate = (decoded * sample_size).named("image preparation", "bytes/s", decoded=decoded)
    workers = (maximum(ranks, ceil(samples_per_second / demand.nodes * sample_size / core_rate))).named(
        "data workers", "", accelerators=ranks, core_rate=core_rate
    )
    system = assumed("system cores")
    cores = (workers + ranks + system).named("CPU cores", "", workers=workers, ranks=ranks, system=system)
    savers = demand.nodes if saving_nodes is None else given("saving nodes", saving_nodes, "")
    staged = (demand.checkpoint / savers).named("state per node", "bytes", checkpoint=demand.checkpoint, nodes=savers)
    cached = (demand.dataset * demand.copies / demand.nodes * (demand.epochs > AGAIN)).named(
        "cached data", "bytes", dataset=demand.dataset, copies=demand.copies
    )
    free = assumed("free space")
    return NodeNeeds(
        workers=workers,
        cores=cores,
        vcpus=(_THREADS * cores).named("vCPUs", "", cores=cores),
        staged=staged,
        memory=_memory(workers, ranks, staged, given("prepared sample", prepared_bytes, "bytes"), batch_samples),
        cached=cached,
        local=((cached + 2 * staged) / (1 - free)).named(
            "local drives", "bytes", cached=cached, staged=staged, free=free
        ),
    )


def _memory(workers: Traced, ranks: Traced, staged: Traced, sample: Traced, batch_samples: int) -> Traced:
    process = assumed("data worker memory")
    ahead = assumed("batches ahead")
    batch = given("samples in a batch", batch_samples, "")
    waiting = (workers * (process + ahead * batch * sample)).named(
        "prepared batches", "bytes", workers=workers, own=process, ahead=ahead, batch=batch, sample=sample
    )
    rank_memory = assumed("rank memory")
    page_cache = assumed("page cache share")
    return ((waiting + ranks * rank_memory + staged) / (1 - page_cache)).named(
        "node memory", "bytes", waiting=waiting, ranks=ranks, staged=staged, page_cache=page_cache
    )
