"""Kinds of storage, alone and in two tiers, and what each tier then has to do.

A home holds the dataset and every checkpoint that counts. A faster tier in front of it may serve the reads (`cache`),
take the checkpoints while the training waits (`staging`), or both. A cache helps from the second epoch on; before that
the home fills it. A staged checkpoint counts when the home has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.trace import Traced

LOCAL = "local NVMe"


@dataclass(frozen=True, slots=True)
class Design:
    """Storage systems of the catalogue: a home, and optional faster tiers."""

    home: str
    cache: str | None = None
    staging: str | None = None

    @property
    def name(self) -> str:
        """Display name: `object store + local NVMe`."""
        return " + ".join(dict.fromkeys(filter(None, (self.home, self.cache, self.staging))))


DESIGNS = (
    Design(LOCAL),
    Design("NFS"),
    Design("NFS", cache=LOCAL, staging=LOCAL),
    Design("object store"),
    Design("object store", cache=LOCAL, staging=LOCAL),
    Design("object store", cache="Alluxio"),
    Design("CephFS"),
    Design("BeeGFS"),
    Design("Lustre"),
    Design("Storage Scale"),
    Design("BeeGFS", cache=LOCAL, staging=LOCAL),
    Design("Lustre", cache=LOCAL, staging=LOCAL),
)
"""Designs by what has to be bought and run in addition to the nodes, least first: drives in the nodes, one server, a
service rented by the byte, a cluster of caches, a cluster of storage servers. No citable prices exist, so this order,
not a price, determines which sufficient design is recommended."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Demand on one system of a design: of all nodes together, or of one node for its own drives."""

    system: str
    is_home: bool
    reads: tuple[Traced, ...] = ()
    """Each at another time: the largest counts."""
    writes: tuple[Traced, ...] = ()
    opens: Traced | None = None
    capacity: Traced | None = None


def tiers(design: Design, demand: Demand, needs: NodeNeeds) -> Iterator[Tier]:
    """The systems of a design with what each has to do, the home first."""
    cached = design.cache is not None and demand.rereads
    fill, fill_opens = (_filling(item, design, demand) for item in (demand.fill, demand.fill_opens))
    yield _per_node(
        Tier(
            design.home,
            is_home=True,
            reads=(_lesser(demand.read, fill) if cached else demand.read, demand.restart),
            writes=(demand.drain if design.staging else demand.write,),
            opens=_lesser(demand.opens, fill_opens) if cached else demand.opens,
            capacity=demand.capacity,
        ),
        demand,
    )
    for system in dict.fromkeys(filter(None, (design.cache, design.staging))):
        serves = cached and system == design.cache
        takes = system == design.staging
        front = Tier(
            system,
            is_home=False,
            reads=(demand.read,) if serves else (),
            writes=(demand.write,) if takes else (),
            opens=demand.opens if serves else None,
            capacity=needs.local if system == LOCAL else demand.dataset if serves else None,
        )
        if serves or takes:
            yield _per_node(front, demand)


def _filling(item: Traced, design: Design, demand: Demand) -> Traced:
    """A shared cache is filled once, local drives as often as they hold the dataset."""
    if design.cache != LOCAL:
        return item
    return (item * demand.copies).named(f"{item.name} local drives", item.unit, once=item, copies=demand.copies)


def _lesser(one: Traced, other: Traced) -> Traced:
    return min(one, other, key=float)


def _per_node(tier: Tier, demand: Demand) -> Tier:
    """Local drives serve their own node alone."""
    if tier.system != LOCAL:
        return tier
    return Tier(
        tier.system,
        tier.is_home,
        reads=tuple(_each(item, demand) for item in tier.reads),
        writes=tuple(_each(item, demand) for item in tier.writes),
        opens=None if tier.opens is None else _each(tier.opens, demand),
        capacity=_each(tier.capacity, demand) if tier.is_home and tier.capacity is not None else tier.capacity,
    )


def _each(item: Traced, demand: Demand) -> Traced:
    return (item / demand.nodes).named(f"{item.name} per node", item.unit, total=item)
