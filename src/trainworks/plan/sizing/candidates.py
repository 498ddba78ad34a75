"""Kinds of node that could be bought or rented, and the numbers of them that are tried."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainworks.catalog.catalog import Catalog, reference_node
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes, parse_cluster
from trainworks.catalog.facts import PYTORCH_VENDORS, Node, Offer
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.engines import stack_file_in
from trainworks.errors import UsageError

_RUN_FILE_PRICE = "cluster.usd_per_accelerator_hour of the run file"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kind of node."""

    node: str
    """Its name in a description of a cluster: `4 nodes of NODE`."""
    one: ClusterDescription
    """A single node."""
    for_sale: bool
    """True for a machine that can be bought."""
    offers: tuple[Offer, ...]
    """Offers to rent it."""
    there: int | None = None
    """Nodes of a cluster that exists; None for nodes that are still to be had."""

    @property
    def base(self) -> Node:
        """The node with its NICs."""
        assert self.one.node is not None, "a described cluster has a node"
        return self.one.node

    @property
    def largest(self) -> int | None:
        """Most nodes that one job can span: one if their network is not published, else any number."""
        joined = self.for_sale or self.there is not None or self.base.scale_up_domain > self.base.accelerators
        known = joined or any(offer.node is not None for offer in self.offers)
        return None if self.base.nics and known else 1

    def offers_of(self, num_nodes: int) -> list[Offer]:
        """Offers for so many nodes: a price without an instance says nothing about the network between nodes."""
        joined = self.base.scale_up_domain > self.base.accelerators
        return [offer for offer in self.offers if offer.node is not None or num_nodes == 1 or joined]

    def cluster(self, num_nodes: int) -> ClusterDescription:
        """A cluster of `num_nodes` of them.

        Raises:
            UsageError: several nodes, and no bandwidth between them is known.
        """
        return self.one.with_nodes(num_nodes)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A kind of node that is not proposed, and why."""

    node: str
    reason: str


def without_units(node: str, precision: str) -> Skipped:
    """A kind of node whose accelerators do not compute in a precision."""
    return Skipped(node, f"no {precision} matrix units")


def candidates(
    catalog: Catalog, offers: Iterable[Offer], *, precision: str, only: frozenset[str] = frozenset()
) -> tuple[list[Candidate], list[Skipped]]:
    """Every kind of node that is offered or sold, and those that cannot train in this precision.

    An offer that names only an accelerator represents that accelerator's reference node. A machine is for sale if its
    power is known, because owning it cannot be priced otherwise.

    Args:
        catalog: all facts.
        offers: from the catalogue or from a price table of the user.
        precision: of the workload.
        only: names of accelerators or nodes to look at; all when empty.
    """
    bases = {name: node for name, node in catalog.nodes.items() if node.kind == "machine" and node.power_w}
    for_sale = frozenset(bases)
    rented: dict[str, list[Offer]] = {}
    for offer in offers:
        for name, base in _offered(offer, catalog):
            bases[name] = base
            rented.setdefault(name, []).append(offer)
    nodes, skipped = [], []
    for name, base in bases.items():
        part = catalog.accelerators[base.accelerator]
        if only and not {name, part.name} & only:
            continue
        if not only and part.vendor not in PYTORCH_VENDORS:
            skipped.append(Skipped(name, "neither CUDA nor ROCm; name it with `--only` to have it tried"))
        elif precision in part.peak_flops_per_s:
            nodes.append(
                Candidate(name, cluster_of_nodes(base, node_name=name), name in for_sale, tuple(rented.get(name, ())))
            )
        else:
            skipped.append(without_units(name, precision))
    return nodes, skipped


def _offered(offer: Offer, catalog: Catalog) -> Iterator[tuple[str, Node]]:
    """Node of an offer with its name in the text of a cluster; nothing for a part of a node."""
    if offer.node is not None:
        if offer.node in catalog.nodes:
            yield offer.node, catalog.nodes[offer.node]
        return
    try:
        base = reference_node(offer.accelerator)
    except UsageError:
        return
    if offer.accelerators in (1, base.accelerators):
        yield base.name if base.name in catalog.nodes else f"{base.accelerators}x {offer.accelerator}", base


def offers_in(offers: Iterable[Offer], region: str) -> tuple[Offer, ...]:
    """Offers of a region, `eu`, `us` or `us-east-1`, and those of all regions; none where no offer names it.

    >>> from trainworks.catalog.catalog import load_catalog
    >>> sorted({offer.provider for offer in offers_in(load_catalog().offers.values(), "eu-north")})
    ['AWS', 'Lambda', 'Nebius']
    """
    wanted = region.lower()

    def is_there(name: str) -> bool:
        is_part = name.startswith(wanted) or name.endswith(wanted)
        return is_part or (name.endswith("-") and wanted.startswith(name))

    parts = [(offer, re.findall(r"[a-z0-9-]+", offer.region.lower())) for offer in offers]
    if not any(is_there(part) for _, names in parts for part in names):
        return ()
    return tuple(offer for offer, names in parts if "all" in names or any(map(is_there, names)))


def described_node(text: str, usd_per_accelerator_hour: float | None = None) -> Candidate:
    """A described node, as in a cluster's text after `nodes of`: it can be bought, or rented at your price.

    A stack file stands for a node of it, behind its adapters.

    Raises:
        UsageError: the text does not describe a node.

    >>> described_node("8x A100-SXM-80GB over 8x NDR").base.nics
    8
    """
    if stack_file_in(text):
        one = read_cluster(text).with_nodes(1).model_copy(update={"topology": "auto", "spare_slots": 0})
        text = one.name.removeprefix("1 node of ")
    else:
        one = parse_cluster(f"1 node of {text}")
    if usd_per_accelerator_hour is None:
        return Candidate(text, one, for_sale=True, offers=())
    return Candidate(text, one, for_sale=True, offers=(your_price(text, one, usd_per_accelerator_hour),))


def existing_nodes(cluster: ClusterDescription, usd_per_accelerator_hour: float | None) -> Candidate:
    """The nodes of a cluster that exists, at your price."""
    one = cluster.with_nodes(1)
    name = one.name.removeprefix("1 node of ")
    price = None if usd_per_accelerator_hour is None else your_price(name, cluster, usd_per_accelerator_hour)
    return Candidate(name, one, for_sale=False, offers=(price,) if price else (), there=cluster.num_nodes)


def your_price(
    node: str | None, cluster: ClusterDescription, usd_per_accelerator_hour: float, source: str = _RUN_FILE_PRICE
) -> Offer:
    """The price of an accelerator hour in a run file as an offer."""
    return Offer(
        name="your price",
        provider="you",
        node=node,
        accelerator=cluster.accelerator.name,
        accelerators=1,
        usd_per_hour=usd_per_accelerator_hour,
        source=source,
    )


def node_counts(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 ... up to the largest: each at most twice the one before it.

    >>> node_counts(20)
    [1, 2, 3, 4, 6, 8, 12, 16]
    """
    counts = {base << shift for base in (2, 3) for shift in range(largest.bit_length())} | {1}
    return sorted(count for count in counts if count <= largest)
