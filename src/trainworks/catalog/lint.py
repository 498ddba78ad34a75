"""Check the catalogue by recomputing its figures from each other.

Each rule checks one fact and yields findings with the value, the limit and the probable cause. A row may explain a
finding (`explained` in the data); an explanation without a finding is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainworks.catalog import facts
from trainworks.catalog.catalog import Catalog, find_row, has, node, switch
from trainworks.catalog.cluster import parse_cluster, read_fabric
from trainworks.catalog.hardware_rules import HARDWARE_CHECKS, Check, Problem, giga
from trainworks.catalog.models import known_model
from trainworks.catalog.rows import KINDS, Kind
from trainworks.catalog.software import least_driver
from trainworks.errors import UsageError

CLIENT_BYTES_PER_S = 100e9
"""Above the fastest published read of one node from shared storage (two ports of 400 Gb/s)."""

GRID_KG_PER_KWH = (0.005, 1.2)
"""Greenhouse gases of a kilowatt-hour: hydropower and nuclear alone, and lignite alone."""

ACCELERATOR_USD_PER_HOUR = (0.05, 30.0)
"""Range of published prices of one accelerator; some lists print 700 for "not offered"."""


def _offer_is_of_its_node(offer: facts.Offer, catalog: Catalog) -> Iterator[Problem]:
    """An offer of a node has that node's accelerators, and its accelerator is in the catalogue."""
    if offer.accelerator not in catalog.accelerators:
        yield offer.accelerator, "an accelerator of the catalogue", "a typing error, or an alias"
    if offer.node is None:
        return
    if offer.node not in catalog.nodes:
        yield offer.node, "a node of the catalogue", "a typing error, or an alias"
        return
    node = catalog.nodes[offer.node]
    sold, built = (offer.accelerator, offer.accelerators), (node.accelerator, node.accelerators)
    if sold != built:
        meaning = "the offer is of another size or part"
        yield f"{sold[1]} x {sold[0]}", f"{offer.node} has {built[1]} x {built[0]}", meaning


def _offer_price(offer: facts.Offer, _: Catalog) -> Iterator[Problem]:
    """A price per accelerator hour is in the published range; spot prices are in order and below on demand."""
    low, high = ACCELERATOR_USD_PER_HOUR
    prices = [*offer.spot_usd_per_hour, *filter(None, [offer.usd_per_hour])]
    for price in prices:
        if not low <= price / offer.accelerators <= high:
            each = f"{price / offer.accelerators:g} USD per accelerator hour"
            yield each, f"{low:g} to {high:g}", "a placeholder for `not offered`, or the price of another size"
    if prices != sorted(prices):
        written = ", ".join(f"{price:g}" for price in prices)
        yield written, "cheapest, median and dearest spot, on demand", "spot is dearer than on demand"


def _storage_rates(system: facts.Storage, _: Catalog) -> Iterator[Problem]:
    """A server writes no faster than it reads, and a bottleneck of the network is written in bytes."""
    read, write = system.server_read_bytes_per_s, system.server_write_bytes_per_s
    if read is not None and write is not None and write > read:
        yield f"writes {giga(write)}", f"reads {giga(read)}", "read and write were swapped"
    client = system.client_bytes_per_s
    if client is not None and client > CLIENT_BYTES_PER_S:
        yield f"client of {giga(client)}", f"{giga(CLIENT_BYTES_PER_S)}", "Gb/s were written as GB/s"


def _fleet_rate(fleet: facts.Fleet, catalog: Catalog) -> Iterator[Problem]:
    """Failures over nodes and days are the rate, causes add up to the failures, the accelerator is known."""
    if fleet.accelerator is not None and fleet.accelerator not in catalog.accelerators:
        yield fleet.accelerator, "an accelerator of the catalogue", "a typing error, or an alias"
    if fleet.causes is not None and sum(fleet.causes.values()) != fleet.failures:
        yield f"causes of {sum(fleet.causes.values())}", f"{fleet.failures} failures", "a cause is missing"
    if fleet.failures is None or fleet.nodes is None or fleet.days is None:
        return
    counted = fleet.failures / fleet.nodes / fleet.days
    rate = fleet.failures_per_node_s * 86400
    if abs(rate / counted - 1) > 0.02:
        yield f"{1000 * rate:.2f} per 1000 node-days", f"{1000 * counted:.2f}", "GPUs were counted for nodes"


def _fleet_stands_alone(fleet: facts.Fleet, catalog: Catalog) -> Iterator[Problem]:
    known = {part.architecture for part in catalog.accelerators.values()}
    for architecture in fleet.stands_for:
        others = [name for name, other in catalog.fleets.items() if architecture in other.stands_for]
        if len(others) > 1:
            yield f"{architecture}: {', '.join(others)}", "one fleet", "the choice of a plan is arbitrary"
        if architecture not in known:
            yield architecture, "an architecture of some accelerator", "a typing error"


def _assumption_in_range(assumption: facts.Assumption, _: Catalog) -> Iterator[Problem]:
    values = [assumption.low, assumption.typical, assumption.high]
    if values != sorted(values):
        yield f"{assumption.typical:g}", f"{assumption.low:g} to {assumption.high:g}", "two columns were swapped"


def _run_is_on_a_part(run: facts.PublishedRun, catalog: Catalog) -> Iterator[Problem]:
    part = catalog.accelerators.get(run.accelerator)
    if part is None:
        yield f"`{run.accelerator}`", "an accelerator of the catalogue", "a name that is written differently"
    elif not 0 < run.mfu < _largest_mfu(part):
        limit = f"below {_largest_mfu(part):.1%}"
        yield f"{run.mfu:.1%}", limit, "FLOPs that count recomputation, or another precision's peak"


def _largest_mfu(part: facts.Accelerator) -> float:
    """The fastest published product over the peak of the data sheet; 1 where none is published."""
    peak = part.peak_flops_per_s.get("bf16") or part.peak_flops_per_s.get("fp16")
    return part.matmul_flops_per_s / peak if part.matmul_flops_per_s and peak else 1.0


def _grid_intensity(grid: facts.ElectricityGrid, _: Catalog) -> Iterator[Problem]:
    low, high = GRID_KG_PER_KWH
    if not low <= grid.kg_co2e_per_kwh <= high:
        limit = f"{low * 1e3:g} to {high * 1e3:g} g/kWh"
        yield f"{grid.kg_co2e_per_kwh * 1e3:g} g/kWh", limit, "kg for g, or a figure per MWh"


def _node_is_known(system: facts.System, catalog: Catalog) -> Iterator[Problem]:
    if system.node not in catalog.nodes:
        yield f"`{system.node}`", "a node of the catalogue", "a name that is written differently"


def _rack_fills_its_domain(system: facts.System, catalog: Catalog) -> Iterator[Problem]:
    node = catalog.nodes.get(system.node)
    if node is None or system.form == "server":
        return
    total = system.nodes * node.accelerators
    if total != node.scale_up_domain:
        yield f"{total} accelerators", f"a domain of {node.scale_up_domain}", "another number of nodes"


def _term_hides_nothing(term: facts.Term, _: Catalog) -> Iterator[Problem]:
    """No row has the name of a term: the row would be found first and the term never explained."""
    row = find_row(term.name, "terms")
    for name in (row.name, *row.aliases):
        for kind in KINDS:
            if kind != "terms" and has(kind, name):
                yield f"`{name}`", f"no name of the {kind}", "the catalogue has such a row now: remove the term"


def _proposals_can_be_planned(term: facts.Term, _: Catalog) -> Iterator[Problem]:
    """Every proposal of a term can be parsed as its kind, and is in its text."""
    readers: tuple[tuple[tuple[str, ...], Callable[[str], object]], ...] = (
        (term.clusters, parse_cluster),
        (term.networks, lambda text: read_fabric(text, node("DGX H100"), text)),
        (term.switches, switch),
        (term.models, known_model),
    )
    for texts, read in readers:
        yield from (problem for text in texts for problem in _unreadable(text, read))
    for text in (*term.clusters, *term.networks, *term.switches, *term.models, *term.topologies):
        if f"`{text}`" not in term.instead:
            yield f"`{text}`", f"words of: {term.instead}", "the text of the proposal was changed"


def _unreadable(text: str, read: Callable[[str], object]) -> Iterator[Problem]:
    try:
        read(text)
    except UsageError as error:
        yield f"`{text}`", "something that can be planned", error.message


def _month(found: facts.Release, _: Catalog) -> Iterator[Problem]:
    if found.ends is not None and not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", found.ends):
        yield f"`{found.ends}`", "year and month: `2028-06`", "a day, or a word"


def _driver_range(found: facts.Release, _: Catalog) -> Iterator[Problem]:
    if found.first_driver and found.last_driver and found.first_driver > found.last_driver:
        yield f"R{found.first_driver}", f"at most R{found.last_driver}", "the two are exchanged"


def _builds_have_a_driver(found: facts.Release, _: Catalog) -> Iterator[Problem]:
    for cuda in found.builds:
        if least_driver(cuda) is None:
            yield f"wheels for CUDA {cuda}", "a CUDA of the catalogue", "the row of the new CUDA is missing"


CHECKS: dict[Kind, dict[str, Check]] = {
    **HARDWARE_CHECKS,
    "offers": {"offer-is-of-its-node": _offer_is_of_its_node, "offer-price": _offer_price},
    "storage": {"storage-rates": _storage_rates},
    "fleets": {"fleet-rate": _fleet_rate, "fleet-stands-alone": _fleet_stands_alone},
    "runs": {"run-is-on-a-part": _run_is_on_a_part},
    "assumptions": {"in-range": _assumption_in_range},
    "grids": {"grid-intensity": _grid_intensity},
    "xids": {},
    "anchors": {"cluster-is-known": lambda anchor, _: _unreadable(anchor.cluster, parse_cluster)},
    "systems": {"node-is-known": _node_is_known, "rack-fills-its-domain": _rack_fills_its_domain},
    "terms": {"term-hides-nothing": _term_hides_nothing, "proposals-can-be-planned": _proposals_can_be_planned},
    "software": {
        "ends-in-a-month": _month,
        "driver-range": _driver_range,
        "builds-have-a-driver": _builds_have_a_driver,
    },
}
"""Rules by kind of row and by name."""
RULES = (*(rule for checks in CHECKS.values() for rule in checks), "stale-explanation")
"""Names of all rules, for findings and for `explained` in the data."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A figure that contradicts others."""

    kind: Kind
    row: str
    rule: str
    value: str
    limit: str
    meaning: str
    explained: str | None = None


def lint(catalog: Catalog) -> list[LintFinding]:
    """Check all facts; findings include explained ones, in the order of the catalogue."""
    findings = [
        LintFinding(kind, name, rule, *problem)
        for kind in KINDS
        for name, fact in getattr(catalog, kind).items()
        for rule, check in CHECKS[kind].items()
        for problem in check(fact, catalog)
    ]
    explained = [replace(found, explained=catalog.explained.get(found.row, {}).get(found.rule)) for found in findings]
    return [*explained, *_stale_explanations(catalog, explained)]


def _stale_explanations(catalog: Catalog, findings: list[LintFinding]) -> Iterator[LintFinding]:
    found = {(finding.row, finding.rule) for finding in findings}
    for row, rules in catalog.explained.items():
        for rule, why in rules.items():
            if (row, rule) not in found:
                kind: Kind = "accelerators" if row in catalog.accelerators else "nodes"
                meaning = "the figures no longer give the finding that it explains"
                yield LintFinding(kind, row, "stale-explanation", f"`{rule}`: {why}", "a finding of that rule", meaning)
