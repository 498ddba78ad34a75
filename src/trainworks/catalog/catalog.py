"""Facts by name.

A name is matched without regard to case, blanks, `-` and `_`, against names and aliases, and never by resemblance: an
unknown one is an error that names the nearest three. A family (`A100`) means its most common part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trainworks.catalog import facts
from trainworks.catalog.names import nearest_rows, normal_name, without_remark
from trainworks.catalog.row_files import kept_with_rows
from trainworks.catalog.rows import FACTS, KINDS, CatalogRow, Kind, read_rows
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError

_Fact = TypeVar("_Fact", bound=Frozen)
_LONGEST = 60
"""Characters of an unknown name that an error repeats."""
_EXPLAINED: frozenset[Kind] = frozenset(("accelerators", "nodes", "systems", "links", "switches", "terms"))
"""Kinds whose names a term may be taken for."""
_NOUNS: dict[Kind, str] = {
    "nodes": "node or instance",
    "switches": "switch",
    "kernels": "attention kernel",
    "storage": "storage system",
    "runs": "published run",
    "xids": "GPU error",
    "software": "release",
    "anchors": "benchmark anchor",
}
"""What errors call a row; the kind without its `s` where it is not here."""


@dataclass(frozen=True)
class Catalog:
    """All facts, by name."""

    accelerators: Mapping[str, facts.Accelerator]
    nodes: Mapping[str, facts.Node]
    systems: Mapping[str, facts.System]
    links: Mapping[str, facts.Link]
    switches: Mapping[str, facts.Switch]
    kernels: Mapping[str, facts.AttentionKernel]
    processors: Mapping[str, facts.Processor]
    storage: Mapping[str, facts.Storage]
    offers: Mapping[str, facts.Offer]
    fleets: Mapping[str, facts.Fleet]
    runs: Mapping[str, facts.PublishedRun]
    assumptions: Mapping[str, facts.Assumption]
    grids: Mapping[str, facts.ElectricityGrid]
    xids: Mapping[str, facts.XidAction]
    software: Mapping[str, facts.Release]
    anchors: Mapping[str, facts.BenchAnchor]
    terms: Mapping[str, facts.Term]
    explained: Mapping[str, Mapping[str, str]]
    """Rules that a row breaks for a reason, with the reason, by name of the row."""


def accelerator(name: str) -> facts.Accelerator:
    """The accelerator of that name or alias, perhaps with another power limit or with a bridge between two cards:
    `H100-SXM-80GB at 500 W`, `RTX-3090-24GB with NVLink bridge`.

    Raises:
        UsageError: there is none, plans cannot use it, or no bridge fits it.

    >>> accelerator("a100-sxm4-80gb").name
    'A100-SXM-80GB'
    >>> accelerator("H100 at 500 W").power_w
    500.0
    >>> accelerator("RTX 3090 with NVLink bridge").scale_up_group
    2
    """
    row = _find("accelerators", name)
    if row.unplannable is not None:
        raise UsageError(f"`{row.name}` cannot be planned with: {row.unplannable}", hint=f"use {row.instead}")
    part = facts.Accelerator.model_validate(row.facts())
    said = _EQUIPMENT.search(name)
    if said is None:
        return part
    if said["watts"]:
        watts = float(said["watts"])
        limit = {"name": f"{part.name} at {watts:g} W", "power_w": watts, "rated_power_w": part.power_w}
        part = part.model_copy(update=limit)
    return _bridged(part) if said["bridge"] else part


_EQUIPMENT = re.compile(
    r"(?:\s+at\s+(?P<watts>\d{2,4})\s*W|(?=\s+with))(?P<bridge>\s+with\s+(?:an?\s+)?NVLink\s+bridges?)?$", re.IGNORECASE
)


def _bridged(part: facts.Accelerator) -> facts.Accelerator:
    if part.scale_up.endswith(" bridge"):
        return part
    if part.bridge is None:
        raise UsageError(f"no bridge joins two {part.name}", hint="leave `with NVLink bridge` out")
    added = {"scale_up": part.bridge, "scale_up_bytes_per_s": link(part.bridge).bytes_per_s, "scale_up_group": 2}
    return part.model_copy(update={"name": f"{part.name} with NVLink bridge", **added})


def node(name: str) -> facts.Node:
    """The machine or cloud instance of that name or alias.

    Raises:
        UsageError: there is none.

    >>> node("DGX H100").nics
    8
    """
    return facts.Node.model_validate(_find("nodes", name).facts())


def system(name: str) -> facts.System:
    """The system of that name or alias.

    Raises:
        UsageError: there is none.

    >>> system("DGX GB200").nodes
    18
    """
    return facts.System.model_validate(_find("systems", name).facts())


def system_of(node_name: str) -> facts.System | None:
    """The system made of nodes of that name; None for nodes that are sold alone.

    >>> system_of("GB200 NVL72 tray").name, system_of("DGX H100")
    ('GB200 NVL72', None)
    """
    systems = (system(name) for name in names("systems"))
    return next((found for found in systems if found.node == node_name), None)


def rack_of(node: facts.Node | None) -> facts.System | None:
    """The rack that nodes are sold in, whose nodes share one scale-up domain; None for nodes that are sold alone."""
    found = None if node is None else system_of(node.name)
    return found if found is not None and found.form == "rack" else None


def link(name: str) -> facts.Link:
    """The link of that name or alias.

    Raises:
        UsageError: there is none.

    >>> link("HDR").bytes_per_s
    25000000000.0
    """
    return facts.Link.model_validate(_find("links", name).facts())


def network_link(name: str) -> facts.Link | None:
    """A link between nodes by its name, also with `InfiniBand` beside it; None where there is none."""
    for each in (name, _INFINIBAND.sub("", name).strip()):
        if has("links", each) and link(each).network not in ("scale-up", "host"):
            return link(each)
    return None


def switch(name: str) -> facts.Switch:
    """The switch of that name or alias.

    Raises:
        UsageError: there is none.
    """
    return facts.Switch.model_validate(_find("switches", name).facts())


def attention_kernels() -> dict[str, facts.AttentionKernel]:
    """All attention kernels by name."""
    return _all("kernels", facts.AttentionKernel)


@kept_with_rows
def published_runs() -> dict[str, facts.PublishedRun]:
    """All published runs by name."""
    return _all("runs", facts.PublishedRun)


def processor(name: str) -> facts.Processor:
    """The processor of that name or alias.

    Raises:
        UsageError: there is none.
    """
    return facts.Processor.model_validate(_find("processors", name).facts())


def storage(name: str) -> facts.Storage:
    """The storage system of that name.

    Raises:
        UsageError: there is none.

    >>> storage("NFS").most_servers
    1
    """
    return facts.Storage.model_validate(_find("storage", name).facts())


def assumption(name: str) -> facts.Assumption:
    """The assumption of that name.

    Raises:
        UsageError: there is none.

    >>> assumption("electricity").unit
    'USD/kWh'
    """
    return facts.Assumption.model_validate(_find("assumptions", name).facts())


def grid(name: str) -> facts.ElectricityGrid:
    """The grid of that country or cloud region.

    Raises:
        UsageError: there is none.

    >>> grid("Sweden").kg_co2e_per_kwh
    0.041
    """
    return facts.ElectricityGrid.model_validate(_find("grids", name).facts())


def reference_node(accelerator_name: str) -> facts.Node:
    """The node to assume for an accelerator.

    A card in a PCIe slot gets a node of eight with one NIC of 100 Gb/s.

    Raises:
        UsageError: no such accelerator, or no node of it is known.

    >>> reference_node("A100").name, reference_node("L4").accelerators
    ('DGX A100 80GB', 8)
    """
    found = accelerator(accelerator_name)
    if found.reference_node is None:
        raise UsageError(
            f"the catalogue has no node with {found.name}",
            hint=f"describe it: `4 nodes of 8x {found.name} over 8x 400 Gb/s`",
        )
    base = node(found.reference_node)
    if base.accelerator == found.name:
        return base
    if found.rated_power_w is not None and base.accelerator == _find("accelerators", found.name).name:
        return base.model_copy(update={"accelerator": found.name})
    own = {
        "name": f"{base.name} with {found.name}",
        "accelerator": found.name,
        "scale_up_domain": found.scale_up_group or 1,
    }
    return base.model_copy(update=own)


def names(kind: Kind = "accelerators") -> tuple[str, ...]:
    """Names of all rows of a kind, without aliases."""
    return tuple(read_rows(kind))


def has(kind: Kind, name: str) -> bool:
    """True if a row of that kind has the name or alias."""
    return _key(kind, name) in _index(kind)


def _key(kind: Kind, name: str) -> str:
    return normal_name(_EQUIPMENT.sub("", name) if kind == "accelerators" else name)


def find_row(name: str, kind: Kind | None = None) -> CatalogRow:
    """The row of that name or alias, of one kind or of any.

    Raises:
        UsageError: there is none.
    """
    kinds = KINDS if kind is None else (kind,)
    for candidate in kinds:
        if has(candidate, name):
            return _find(candidate, name)
    raise _unknown(name, kinds)


def family(name: str) -> tuple[str, ...]:
    """Other accelerators whose names begin with an alias.

    >>> family("H100")
    ('H100-PCIE-80GB', 'H100-NVL-94GB')
    """
    row = find_row(name, "accelerators")
    prefix = f"{name.strip().lower()}-"
    return tuple(other for other in names() if other.lower().startswith(prefix) and other != row.name)


@kept_with_rows
def load_catalog() -> Catalog:
    """All facts that plans can use."""
    rows = [row for kind in KINDS for row in read_rows(kind).values()]
    plannable: Mapping[str, Any] = {
        kind: {
            row.name: FACTS[kind].model_validate(row.facts())
            for row in read_rows(kind).values()
            if row.unplannable is None
        }
        for kind in KINDS
    }
    return Catalog(**plannable, explained={row.name: row.explained for row in rows if row.explained})


def _all(kind: Kind, fact: type[_Fact]) -> dict[str, _Fact]:
    return {row.name: fact.model_validate(row.facts()) for row in read_rows(kind).values()}


def _find(kind: Kind, name: str) -> CatalogRow:
    found = _index(kind).get(_key(kind, name))
    if found is None:
        raise _unknown(name, (kind,))
    return read_rows(kind)[found]


def explain_term(name: str) -> UsageError | None:
    """The error for a known word that no plan can use; None for any other word.

    >>> explain_term("fibre-channel").message.partition(";")[0]
    '`fibre-channel` is a storage network'
    """
    wanted = normal_name(without_remark(name))
    found = _index("terms").get(wanted) or next(
        (term for term, prefix in _prefixes() if wanted.startswith(prefix) and wanted != prefix), None
    )
    if found is None:
        return None
    term = facts.Term.model_validate(read_rows("terms")[found].facts())
    return UsageError(f"`{name}` {term.meaning}", hint=term.instead)


@kept_with_rows
def _prefixes() -> tuple[tuple[str, str], ...]:
    """Terms and the normalised prefixes of the names that they explain."""
    rows = read_rows("terms").values()
    return tuple((row.name, normal_name(prefix)) for row in rows for prefix in row.facts().get("prefixes", ()))


def _unknown(name: str, kinds: tuple[Kind, ...]) -> UsageError:
    if set(kinds) & _EXPLAINED and (explained := explain_term(name)) is not None:
        return explained
    noun = "row" if len(kinds) > 1 else _NOUNS.get(kinds[0], kinds[0].removesuffix("s"))
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    nearest = nearest_rows(normal_name(name), {kind: _index(kind) for kind in kinds})
    listed = f"trainworks catalog list {kinds[0]}" if len(kinds) == 1 else "trainworks catalog list"
    near = f"nearest are {', '.join(f'`{one}`' for one in nearest)}; " if nearest else ""
    return UsageError(f"no {noun} `{name}` in the catalogue", hint=f"{near}`{listed}` has all")


@kept_with_rows
def _index(kind: Kind) -> dict[str, str]:
    """Name of the row by its normalised name and aliases."""
    index: dict[str, str] = {}
    rows = read_rows(kind)
    for row in sorted(rows.values(), key=lambda row: not row.place):  # the user's first: their names win
        for name in (row.name, *row.aliases):
            other = rows[index.setdefault(normal_name(name), row.name)]
            if other.name != row.name and bool(other.place) == bool(row.place):
                message = f"{kind}: `{name}` names both `{other.name}` and `{row.name}`"
                raise UsageError(message, place=row.place or None, hint="give one of the two another name or alias")
    return index


_INFINIBAND = re.compile(r"\b(?:infiniband|ib)\b", re.IGNORECASE)
