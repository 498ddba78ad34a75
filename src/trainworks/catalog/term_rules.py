"""Lint rules of systems and terms: their references exist, and the proposals of a term can be planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainworks.catalog.catalog import Catalog, find_row, has, switch
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.facts import System, Term
from trainworks.catalog.models import known_model
from trainworks.catalog.problem import Check, Problem
from trainworks.catalog.rows import KINDS, Kind
from trainworks.errors import UsageError

__all__ = ["TERM_CHECKS"]


def _node_is_known(system: System, catalog: Catalog) -> Iterator[Problem]:
    if system.node not in catalog.nodes:
        yield f"`{system.node}`", "a node of the catalogue", "a name that is written differently"


def _rack_fills_its_domain(system: System, catalog: Catalog) -> Iterator[Problem]:
    """The nodes of a rack or pod are those of one scale-up domain."""
    node = catalog.nodes.get(system.node)
    if node is None or system.form == "server":
        return
    total = system.nodes * node.accelerators
    if total != node.scale_up_domain:
        yield f"{total} accelerators", f"a domain of {node.scale_up_domain}", "another number of nodes"


def _term_hides_nothing(term: Term, _: Catalog) -> Iterator[Problem]:
    """No row has the name of a term: the row would be found first and the term never explained."""
    row = find_row(term.name, "terms")
    for name in (row.name, *row.aliases):
        for kind in KINDS:
            if kind != "terms" and has(kind, name):
                yield f"`{name}`", f"no name of the {kind}", "the catalogue has such a row now: remove the term"


def _proposals_can_be_planned(term: Term, _: Catalog) -> Iterator[Problem]:
    """Every proposal of a term can be parsed as its kind, and is in its text."""
    readers: tuple[tuple[tuple[str, ...], Callable[[str], object]], ...] = (
        (term.clusters, parse_cluster),
        (term.networks, lambda text: parse_cluster(f"2 nodes of 8x H100 over {text}")),
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


TERM_CHECKS: dict[Kind, dict[str, Check]] = {
    "systems": {"node-is-known": _node_is_known, "rack-fills-its-domain": _rack_fills_its_domain},
    "terms": {"term-hides-nothing": _term_hides_nothing, "proposals-can-be-planned": _proposals_can_be_planned},
}
"""Rules by kind of row and by name."""
