"""The data files as rows of figures, each with source, date and confidence.

A row gives `source` (a key of sources.yaml) for all its figures; a figure from another source is a mapping with `value`
and the keys that differ: `source`, `date`, `confidence`, `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, get_args

from trainworks.catalog import facts
from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen
from trainworks.units import parse_bandwidth, parse_bytes

Kind = Literal[
    "accelerators",
    "nodes",
    "systems",
    "links",
    "switches",
    "kernels",
    "processors",
    "storage",
    "offers",
    "fleets",
    "runs",
    "assumptions",
    "grids",
    "xids",
    "software",
    "anchors",
    "terms",
]
Confidence = Literal["high", "medium", "low"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_FILES: dict[Kind, tuple[str, ...]] = {"nodes": ("nodes", "instances")}
"""Data files of a kind where they are not the one of its name."""
_DEFAULTS = {"instances": {"kind": "instance"}}
_PROVENANCE = ("source", "date", "confidence")
_WORDS = ("aliases", "note", "unplannable", "instead", "explained")

Column = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, as in the data and in base units."""

    name: str
    written: str
    facts: Mapping[str, Any]
    """Values by field of the fact."""
    source: str
    date: str
    confidence: Confidence
    note: str | None = None

    @property
    def cited(self) -> str:
        """Source, date and confidence in one line."""
        return f"{self.source}, {self.date}, confidence {self.confidence}"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One row of the catalogue."""

    kind: Kind
    name: str
    aliases: tuple[str, ...]
    figures: tuple[Figure, ...]
    note: str | None = None
    unplannable: str | None = None
    """Reason why plans cannot use it."""
    instead: str | None = None
    explained: Mapping[str, str] | None = None
    """Lint rules that the row breaks for a reason, with the reason."""

    def figure(self, name: str) -> Figure:
        """The figure of that name; the row must have it."""
        return next(figure for figure in self.figures if figure.name == name)

    def facts(self) -> dict[str, Any]:
        """All figures in base units, by the field that each fills."""
        merged: dict[str, Any] = {"name": self.name}
        for figure in self.figures:
            for field, value in figure.facts.items():
                merged[field] = merged.get(field, {}) | value if isinstance(value, dict) else value
        return merged


@cache
def read_rows(kind: Kind) -> dict[str, CatalogRow]:
    """All rows of a kind by name, in the order of the files."""
    rows: dict[str, CatalogRow] = {}
    for name in _FILES.get(kind, (kind,)):
        rows |= parse_rows(kind, _read(name), defaults=_DEFAULTS.get(name))
    return rows


@cache
def read_sources() -> dict[str, dict[str, str]]:
    """Title, date and confidence of every source."""
    return {key: {name: str(value) for name, value in row.items()} for key, row in _read("sources").items()}


def _read(name: str) -> dict[str, dict[str, Any]]:
    parsed: dict[str, dict[str, Any]] = read_package_data(__package__, name)
    return parsed


def parse_rows(
    kind: Kind, rows: Mapping[str, Mapping[str, Any]], *, defaults: Mapping[str, Any] | None = None
) -> dict[str, CatalogRow]:
    """Rows of a data file that was read as plain values.

    Raises:
        ValueError: a key that no column knows, or a source or link that no data file has.
        QuantityError: a size or bandwidth without a unit, or with an unknown one.
    """
    return {str(name): _row(kind, str(name), {**(defaults or {}), **row}) for name, row in rows.items()}


def _row(kind: Kind, name: str, row: Mapping[str, Any]) -> CatalogRow:
    words = {key: row[key] for key in _WORDS if key in row}
    provenance = {key: row[key] for key in _PROVENANCE if key in row}
    aliases = tuple(str(alias) for alias in words.pop("aliases", ()))
    try:
        figures = tuple(_figure(kind, key, value, provenance) for key, value in _written_figures(row))
    except KeyError as error:
        raise ValueError(f"{kind}, `{name}`: no column, source or link {error}") from None
    return CatalogRow(kind=kind, name=name, aliases=aliases, figures=figures, **words)


def _written_figures(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of a row's figures, a peak by precision as one figure each."""
    for key, value in row.items():
        if key == "peak_tflops_per_s":
            yield from ((f"peak_{precision}_tflops_per_s", rate) for precision, rate in value.items())
        elif key not in _PROVENANCE and key not in _WORDS:
            yield key, value


def _figure(kind: Kind, key: str, value: Any, provenance: Mapping[str, Any]) -> Figure:
    own = value if isinstance(value, dict) and "value" in value else {"value": value}
    from_elsewhere = own if "source" in own or key not in _CHOICES else own | {"source": "choice"}
    source = read_sources()[from_elsewhere.get("source", provenance["source"])]
    given = source | ({} if "source" in from_elsewhere else dict(provenance)) | own
    return Figure(
        name=_label(key),
        written=_written(key, own["value"]),
        facts=_COLUMNS[kind][key](own["value"]),
        source=source["title"],
        date=str(given["date"]),
        confidence=given["confidence"],
        note=own.get("note"),
    )


_CHOICES = ("kind", "reference_node")
"""Columns chosen by the catalogue, independent of the source of the row."""
_LINK_COLUMNS = ("scale_up", "host", "nic", "nic_slot")
_SUFFIXES = {
    "_tflops_per_s": "TFLOP/s",
    "_percent": "%",
    "_w": "W",
    "_us": "us",
    "_ns": "ns",
    "_usd_h": "USD/h",
    "_usd": "USD",
    "_g_kwh": "g/kWh",
    "_files_s": "files/s",
}


def _label(key: str) -> str:
    for suffix in _SUFFIXES:
        key = key.removesuffix(suffix)
    return key.replace("_", " ")


def _written(key: str, value: Any) -> str:
    """The value with its unit: as the data have it, or with the unit that the key ends in."""
    unit = next((unit for suffix, unit in _SUFFIXES.items() if key.endswith(suffix)), None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _LINK_COLUMNS and value != "none":
        return f"{value}, {read_rows('links')[value].figure('bandwidth').written}"
    if isinstance(value, list):
        return f"{' / '.join(item if isinstance(item, str) else f'{item:g}' for item in value)} {unit or ''}".rstrip()
    if isinstance(value, dict):
        return f"{', '.join(f'{name} {count}' for name, count in value.items())} {unit or ''}".rstrip()
    return f"{value:g} {unit}" if unit else str(value)


# Columns: from a key of the data to fields of a fact


def _plain_column(field: str) -> Column:
    return lambda value: {field: value}


def _size(field: str) -> Column:
    return lambda value: {field: parse_bytes(value)}


def _bandwidth(field: str) -> Column:
    return lambda value: {field: parse_bandwidth(value)}


def _scaled(field: str, scale: Fraction) -> Column:
    return lambda value: {field: float(Fraction(str(value)) * scale)}


def _peak(precision: str) -> Column:
    return lambda value: {"peak_flops_per_s": {precision: float(Fraction(str(value)) * 10**12)}}


def _rates(field: str) -> Column:
    return lambda value: {field: {length: rate * 1e12 for length, rate in value.items()}}


def _link(bandwidth: str, *, name: str | None = None, network: str | None = None) -> Column:
    """A column with the name of a link: its bandwidth and, if requested, its name and network."""

    def column(value: Any) -> dict[str, Any]:
        found = read_rows("links")[value].facts() if value != "none" else {"bytes_per_s": 0.0, "network": "none"}
        facts = {bandwidth: found["bytes_per_s"]}
        return facts | ({name: value} if name else {}) | ({network: found["network"]} if network else {})

    return column


FACTS: dict[Kind, type[Frozen]] = {
    "accelerators": facts.Accelerator,
    "nodes": facts.Node,
    "systems": facts.System,
    "links": facts.Link,
    "switches": facts.Switch,
    "kernels": facts.AttentionKernel,
    "processors": facts.Processor,
    "storage": facts.Storage,
    "offers": facts.Offer,
    "fleets": facts.Fleet,
    "runs": facts.PublishedRun,
    "assumptions": facts.Assumption,
    "grids": facts.ElectricityGrid,
    "xids": facts.XidAction,
    "software": facts.Release,
    "anchors": facts.BenchAnchor,
    "terms": facts.Term,
}
_CONVERTED: dict[Kind, dict[str, Column]] = {
    "accelerators": {
        "memory": _size("memory_bytes"),
        "usable_memory": _size("usable_bytes"),
        "memory_bandwidth": _bandwidth("memory_bytes_per_s"),
        **{f"peak_{precision}_tflops_per_s": _peak(precision) for precision in get_args(facts.Precision)},
        "matmul_tflops_per_s": _scaled("matmul_flops_per_s", Fraction(10**12)),
        "scale_up": _link("scale_up_bytes_per_s", name="scale_up"),
        "pair_bandwidth": _bandwidth("pair_bytes_per_s"),
        "host": _link("host_bytes_per_s"),
    },
    "nodes": {
        "nic": _link("nic_bytes_per_s", network="network"),
        "nic_bandwidth": _bandwidth("nic_bytes_per_s"),
        "nic_slot": _link("nic_slot_bytes_per_s"),
        "host_memory": _size("host_memory_bytes"),
    },
    "links": {
        "lane": _bandwidth("lane_bytes_per_s"),
        "bandwidth": _bandwidth("bytes_per_s"),
        "latency_us": _scaled("latency_s", Fraction(1, 10**6)),
    },
    "switches": {
        "port": _bandwidth("port_bytes_per_s"),
        "latency_ns": _scaled("latency_s", Fraction(1, 10**9)),
    },
    "kernels": {
        f"{series}_tflops_per_s": _rates(f"{series}_flops_per_s")
        for series in ("forward", "backward", "causal_forward", "causal_backward")
    },
    "storage": {
        "client": _bandwidth("client_bytes_per_s"),
        "server_read": _bandwidth("server_read_bytes_per_s"),
        "server_write": _bandwidth("server_write_bytes_per_s"),
        "server_capacity": _size("server_capacity_bytes"),
        "opens_files_s": _plain_column("opens_per_s"),
        "latency_us": _scaled("latency_s", Fraction(1, 10**6)),
    },
    "offers": {
        "on_demand_usd_h": _plain_column("usd_per_hour"),
        "spot_usd_h": _plain_column("spot_usd_per_hour"),
    },
    "fleets": {"failures_per_1000_node_days": _scaled("failures_per_node_s", Fraction(1, 1000 * 86400))},
    "runs": {"mfu_percent": _scaled("mfu", Fraction(1, 100))},
    "grids": {"intensity_g_kwh": _scaled("kg_co2e_per_kwh", Fraction(1, 1000))},
    "anchors": {"bandwidth": _bandwidth("value"), "rate_tflops_per_s": _scaled("value", Fraction(10**12))},
    "terms": {"write_instead": _plain_column("instead")},
}
_COLUMNS = {
    kind: {field: _plain_column(field) for field in fact.model_fields} | _CONVERTED.get(kind, {})
    for kind, fact in FACTS.items()
}
"""Columns by kind: every field under its own name, and those that the data have in other units or under other names."""
