"""The data files as rows of figures, each with source, date and confidence.

A row gives `source` (a key of sources.yaml) for all its figures; a figure from another source is a mapping with `value`
and the keys that differ: `source`, `date`, `confidence`, `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from trainworks.catalog import facts
from trainworks.catalog.row_files import RowFile, kept_with_rows, row_files
from trainworks.config.source import Source, read_package_data, read_text
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError, suggest
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
OWN_KINDS = ("instances", *(kind for kind in KINDS if kind != "terms"))
"""Kinds of rows that files of the user may have; `instances` are nodes that are rented."""

_Sources = Mapping[str, Mapping[str, str]]
_LIKE = "trainworks catalog list"
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


@dataclass(frozen=True, slots=True, repr=False)
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
    place: str = ""
    """File and line of a row that is not of Trainworks: the user's own, or of an update."""

    def __repr__(self) -> str:
        return f"<CatalogRow: {self.name}>"

    def figure(self, name: str) -> Figure:
        """The figure of that name; the row must have it."""
        return next(figure for figure in self.figures if figure.name == name)

    def facts(self) -> dict[str, Any]:
        """All figures in base units, by the field that each fills."""
        merged: dict[str, Any] = {"name": self.name} | (
            {"source": self.place} if self.kind == "offers" and self.place else {}
        )
        for figure in self.figures:
            for field, value in figure.facts.items():
                merged[field] = merged.get(field, {}) | value if isinstance(value, dict) else value
        return merged


@kept_with_rows
def read_rows(kind: Kind) -> dict[str, CatalogRow]:
    """All rows of a kind by name, in the order of the files; those of the user's files in place of ours.

    Raises:
        TrainworksError: a file of the user has a row that does not fit its kind; with file and line.
    """
    rows: dict[str, CatalogRow] = {}
    for name in _FILES.get(kind, (kind,)):
        rows |= parse_rows(kind, _read(name), defaults=_DEFAULTS.get(name))
    for file in row_files(OWN_KINDS, read_source):
        for name in _FILES.get(kind, (kind,)):
            rows |= {row: _own_row(kind, row, file, name) for row in file.rows.get(name, {})}
    return rows


def read_source(path: Path) -> Source:
    """The text of a file with rows."""
    return Source(str(path), read_text(path, "catalogue"))


def data_files(kind: Kind) -> tuple[str, ...]:
    """Names of the data files of a kind, without `.yaml`."""
    return _FILES.get(kind, (kind,))


def _own_row(kind: Kind, name: str, file: RowFile, written_as: str) -> CatalogRow:
    row = _DEFAULTS.get(written_as, {}) | dict(file.rows[written_as][name])
    sources = file.sources_of(written_as, name, read_sources())
    for key in row:
        if key not in (*_PROVENANCE, *_WORDS, *_COLUMNS[kind], "peak_tflops_per_s"):
            hint = suggest(str(key), list(_COLUMNS[kind])) or f"there are {', '.join(_COLUMNS[kind])}"
            raise UsageError(f"{kind} have no `{key}`", place=file.place(written_as, name, str(key)), hint=hint)
    try:
        found = _row(kind, name, row, sources)
        if found.unplannable is None:
            FACTS[kind].model_validate(found.facts())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"`{name}`: `{'.'.join(map(str, first['loc']))}`: {first['msg'].lower()}"
        raise UsageError(message, place=file.place(written_as, name), hint=f"compare `{_LIKE} {kind}`") from None
    except (AttributeError, LookupError, TypeError, ValueError, UsageError) as error:
        message = error.message if isinstance(error, UsageError) else str(error)
        hint = f"compare `{_LIKE} {kind}`"
        raise UsageError(f"`{name}`: {message}", place=file.place(written_as, name), hint=hint) from None
    return replace(found, place=file.place(written_as, name))


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
    sources = read_sources()
    return {str(name): _row(kind, str(name), {**(defaults or {}), **row}, sources) for name, row in rows.items()}


def _row(kind: Kind, name: str, row: Mapping[str, Any], sources: _Sources) -> CatalogRow:
    words = {key: row[key] for key in _WORDS if key in row}
    provenance = {key: row[key] for key in _PROVENANCE if key in row}
    aliases = tuple(str(alias) for alias in words.pop("aliases", ()))
    try:
        figures = tuple(_figure(kind, key, value, provenance, sources) for key, value in _written_figures(row))
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


def _figure(kind: Kind, key: str, value: Any, provenance: Mapping[str, Any], sources: _Sources) -> Figure:
    own = value if isinstance(value, dict) and "value" in value else {"value": value}
    from_elsewhere = own if "source" in own or key not in _CHOICES else own | {"source": "choice"}
    source = sources[str(from_elsewhere.get("source", provenance["source"]))]
    given = dict(source) | ({} if "source" in from_elsewhere else dict(provenance)) | own
    return Figure(
        name=_label(key),
        written=_written(key, own["value"]),
        facts=_COLUMNS[kind][key](own["value"]),
        source=source["title"],
        date=str(given["date"]),
        confidence=given["confidence"],
        note=own.get("note"),
    )


RowsByName = Mapping[tuple[Kind, str], CatalogRow]


def all_rows() -> RowsByName:
    """Rows of all kinds."""
    return {(kind, row.name): row for kind in KINDS for row in read_rows(kind).values()}


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that an update adds or removes, or a figure of one that it changes."""

    kind: Kind
    row: str
    figure: str
    """Empty for a whole row."""
    old: str
    """Empty for a row or figure that is added."""
    new: str
    """Empty for one that is removed."""


def row_changes(before: RowsByName, after: RowsByName) -> list[RowChange]:
    """Rows and figures that differ, in the order of the catalogue, with new rows at the end."""
    changes = []
    for kind, name in dict.fromkeys((*before, *after)):
        old, new = before.get((kind, name)), after.get((kind, name))
        if old is None or new is None:
            changes.append(RowChange(kind, name, "", _whole(old), _whole(new)))
            continue
        figures = {figure.name: (figure.written, "") for figure in old.figures}
        for figure in new.figures:
            figures[figure.name] = (figures.get(figure.name, ("", ""))[0], figure.written)
        changes += [RowChange(kind, name, figure, *pair) for figure, pair in figures.items() if pair[0] != pair[1]]
    return changes


def _whole(row: CatalogRow | None) -> str:
    return "" if row is None else ", ".join(f"{figure.name} {figure.written}" for figure in row.figures)


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
    "_cny_h": "CNY/h",
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
    if unit and not isinstance(value, int | float):
        raise ValueError(f"`{key}` is not a number: `{value}`")
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
        "on_demand_cny_h": lambda cny: {
            "usd_per_hour": round(cny / read_rows("assumptions")["CNY per USD"].facts()["typical"], 4)
        },
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
