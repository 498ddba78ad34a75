"""Verdict on a kind of storage: whether it suffices, the servers it takes, and the figures against it.

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
from trainworks.plan.storage.designs import DESIGNS, Design, Tier, tiers
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.trace import Traced, ceil, fact, maximum
from trainworks.units import format_quantity

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


def verdict_of(design: Design, demand: Demand, needs: NodeNeeds, *, servers: int | None = None) -> StorageVerdict:
    """Verdict on one design.

    Args:
        design: one tier or two.
        demand: of the run.
        needs: of its nodes.
        servers: existing servers of the home, of both kinds; by default as many as needed.
    """
    problems: list[str] = []
    counts: list[_Count] = []
    for tier in tiers(design, demand, needs):
        system = storage(tier.system)
        needed = [*_counts(design, tier, system)]
        counts += needed
        have = servers if tier.is_home else None
        problems += [problem for count in needed for problem in _too_few(system, count, have)]
        problems += _node_limits(tier, system, demand, needs)
    notes = [_IDLE_CACHE] if design.cache not in (None, design.staging) and not demand.rereads else []
    reason = "; ".join([*(problems or _what_it_takes(design, counts)), *notes])
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
    return _Count(noun, servers.named(f"{design.name}: {_plural(noun)}", ""), tuple(pairs))


def _figure(system: Storage, name: str, value: float, unit: str) -> Traced:
    figure = find_row(system.name, "storage").figure(name)
    return fact(f"{system.name} {name}", value, unit, source=figure.cited + (f"; {figure.note}" if figure.note else ""))


def _too_few(system: Storage, count: _Count, have: int | None) -> Iterator[str]:
    most = system.most_servers if count.noun == system.server else None
    limit = min((number for number in (most, have) if number is not None), default=None)
    if limit is not None and count.figure.value > limit:
        yield _overload(count, limit)


def _overload(count: _Count, limit: int) -> str:
    demand, each = count.hardest
    if demand.value <= limit * each.value:
        return f"{_counted(limit, count.noun)}, and it takes {_counted(count.figure.value, count.noun)} to keep copies"
    gives = f"{_counted(limit, count.noun)} {'gives' if limit == 1 else 'give'} {_quantity(limit * each.value, each)}"
    return f"{demand.name} {_quantity(demand.value, demand)}, {gives}"


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
        yield (
            f"each node opens {_quantity(each, tier.opens)}, and its {_counted(needs.workers.value, 'data worker')}, "
            f"waiting {format_quantity(system.latency_s, 's')} for each, {_quantity(most, tier.opens)}"
        )


def _what_it_takes(design: Design, counts: list[_Count]) -> list[str]:
    words = ", ".join(_needed(count) for count in counts)
    return [words] if storage(design.home).posix else [words, "programs need its client"]


def _needed(count: _Count) -> str:
    demand, each = count.hardest
    words = _counted(count.figure.value, count.noun) + (" in each node" if count.noun == "drive" else "")
    share = demand.value / each.value / count.figure.value
    return f"{words} ({demand.name} uses {share:.0%})" if share >= _WORTH_SAYING else words


def _counted(count: float, noun: str) -> str:
    return f"{count:,.0f} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def _quantity(value: float, of: Traced) -> str:
    return format_quantity(value, of.unit)
