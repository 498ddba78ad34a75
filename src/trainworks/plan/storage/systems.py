"""Kinds of storage, alone and in two tiers, and the verdict on each: whether it suffices, and the servers it takes.

A home holds the dataset and every checkpoint that counts. A faster tier in front of it may serve the reads (`cache`),
take the checkpoints while the training waits (`staging`), or both. A cache helps from the second epoch on; before that
the home fills it. A staged checkpoint counts when the home has it.

    servers            max over reads, writes and bytes kept of ceil(demand / that of one server)
    metadata servers   ceil(files opened per second / those of one)
    a node             demand / nodes, against the largest rate of one client
    a data worker      waits for one file after the other: workers / latency files per second and node

A system that does not scale out has one server, a node as many drives as its bays take. A service has quotas instead of
servers, and prefixes instead of metadata servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.catalog.catalog import find_row, storage
from trainworks.catalog.facts import Storage
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.trace import Traced, ceil, fact, maximum
from trainworks.units import format_counted, format_quantity, plural

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
    yield _scale_to_node(
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
            yield _scale_to_node(front, demand)


def _filling(item: Traced, design: Design, demand: Demand) -> Traced:
    """A shared cache is filled once, local drives as often as they hold the dataset."""
    if design.cache != LOCAL:
        return item
    return (item * demand.copies).named(f"{item.name} local drives", item.unit, once=item, copies=demand.copies)


def _lesser(one: Traced, other: Traced) -> Traced:
    return min(one, other, key=float)


def _scale_to_node(tier: Tier, demand: Demand) -> Tier:
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


_FIND_FILES_THEMSELVES = ("local drives", "file server", "cache")
"""Forms without metadata servers of their own."""
_IDLE_CACHE = "the data are read once, so that the cache spares nothing"
_WORTH_SAYING = 0.1
"""Smallest share of the servers' capability worth mentioning; below it they idle."""


@dataclass(frozen=True, slots=True)
class StorageVerdict:
    """One design against one demand."""

    design: Design
    enough: bool
    reason: str
    """Figures against a design that does not suffice, or the servers of one that does."""
    servers: tuple[Traced, ...]
    """Servers of every tier that move and keep bytes, and metadata servers where files are opened."""

    @property
    def name(self) -> str:
        """Name of the design."""
        return self.design.name


def judge(demand: Demand, needs: NodeNeeds) -> list[StorageVerdict]:
    """Every design, in the order of `DESIGNS`."""
    return [verdict_of(design, demand, needs) for design in DESIGNS]


def recommended(verdicts: list[StorageVerdict]) -> StorageVerdict | None:
    """The first that is enough; None where none is."""
    return next((verdict for verdict in verdicts if verdict.enough), None)


def verdict_of(design: Design, demand: Demand, needs: NodeNeeds) -> StorageVerdict:
    """Verdict on one design, with as many servers as it takes where it scales out."""
    problems: list[str] = []
    counts: list[_Count] = []
    for tier in tiers(design, demand, needs):
        system = storage(tier.system)
        needed = [*_counts(design, tier, system)]
        counts += needed
        problems += [problem for count in needed for problem in _too_few(system, count)]
        problems += _node_limits(tier, system, demand, needs)
    notes = [_IDLE_CACHE] if design.cache not in (None, design.staging) and not demand.rereads else []
    takes = [", ".join(_needed(count) for count in counts)]
    takes += [] if storage(design.home).posix else ["programs need its client"]
    reason = "; ".join([*(problems or takes), *notes])
    return StorageVerdict(design, not problems, reason, tuple(count.figure for count in counts))


@dataclass(frozen=True, slots=True)
class _Count:
    """Number of servers of a kind, with the demands and the capability of one server."""

    noun: str
    figure: Traced
    pairs: tuple[tuple[Traced, Traced], ...]

    @property
    def hardest(self) -> tuple[Traced, Traced]:
        """The demand that takes the most servers, and the capability of one."""
        return max(self.pairs, key=lambda pair: pair[0].value / pair[1].value)


def _counts(design: Design, tier: Tier, system: Storage) -> Iterator[_Count]:
    """Servers for bytes, and those for files where others find them."""
    demands = [
        *((item, "server read", system.server_read_bytes_per_s) for item in tier.reads),
        *((item, "server write", system.server_write_bytes_per_s) for item in tier.writes),
        *((item, "server capacity", system.server_capacity_bytes) for item in [tier.capacity] if item is not None),
    ]
    pairs = [(item, _figure(system, name, rate, item.unit)) for item, name, rate in demands if rate is not None]
    files = [] if tier.opens is None else [(tier.opens, _figure(system, "opens", system.opens_per_s, "files/s"))]
    if system.form in _FIND_FILES_THEMSELVES:
        pairs, files = [*pairs, *files], []
    if pairs:
        yield _count(design, system.server, pairs, system.fewest_servers)
    if files:
        yield _count(design, "prefix" if system.form == "object store" else "metadata server", files, 1)


def _count(design: Design, noun: str, pairs: list[tuple[Traced, Traced]], fewest: int) -> _Count:
    servers = maximum(fewest, *(ceil(demand / each) for demand, each in pairs))
    return _Count(noun, servers.named(f"{design.name}: {plural(noun)}", ""), tuple(pairs))


def _figure(system: Storage, name: str, value: float, unit: str) -> Traced:
    figure = find_row(system.name, "storage").figure(name)
    return fact(f"{system.name} {name}", value, unit, source=figure.cited + (f"; {figure.note}" if figure.note else ""))


def _too_few(system: Storage, count: _Count) -> Iterator[str]:
    limit = system.most_servers if count.noun == system.server else None
    if limit is not None and count.figure.value > limit:
        demand, each = count.hardest
        gives = f"{format_counted(limit, count.noun)} {'gives' if limit == 1 else 'give'}"
        yield f"{demand.name} {_quantity(demand.value, demand)}, {gives} {_quantity(limit * each.value, each)}"


def _node_limits(tier: Tier, system: Storage, demand: Demand, needs: NodeNeeds) -> Iterator[str]:
    """Limits of one node's client and its data workers, and of a home that is lost with a node."""
    if tier.is_home and system.survives == "nothing":
        yield "a lost node takes its part of the data and of every checkpoint with it"
    for item in (*tier.reads, *tier.writes):
        each = item.value / demand.nodes.value
        if system.client_bytes_per_s is not None and each > system.client_bytes_per_s:
            gets = _quantity(system.client_bytes_per_s, item)
            yield f"{item.name} {_quantity(each, item)} for each node, and a node gets {gets}"
    if tier.opens is None or system.form == "local drives":
        return
    each, most = tier.opens.value / demand.nodes.value, needs.workers.value / system.latency_s
    if each > most:
        workers = format_counted(needs.workers.value, "data worker")
        yield (
            f"each node opens {_quantity(each, tier.opens)}, and its {workers}, "
            f"waiting {format_quantity(system.latency_s, 's')} for each, {_quantity(most, tier.opens)}"
        )


def _needed(count: _Count) -> str:
    demand, each = count.hardest
    words = format_counted(count.figure.value, count.noun) + (" in each node" if count.noun == "drive" else "")
    share = demand.value / each.value / count.figure.value
    return f"{words} ({demand.name} uses {share:.0%})" if share >= _WORTH_SAYING else words


def _quantity(value: float, of: Traced) -> str:
    return format_quantity(value, of.unit)
