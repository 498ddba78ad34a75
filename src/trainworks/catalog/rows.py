"""The data files as rows of figures, each with source, date and confidence.

A row gives `source` (a key of sources.yaml) for all its figures; a figure from another source is a mapping with `value`
and the keys that differ: `source`, `date`, `confidence`, `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml

from trainworks.catalog.facts import Precision
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

_FILES: dict[Kind, tuple[str, ...]] = {
    "accelerators": ("accelerators",),
    "nodes": ("nodes", "instances"),
    "systems": ("systems",),
    "links": ("links",),
    "switches": ("switches",),
    "kernels": ("kernels",),
    "processors": ("processors",),
    "storage": ("storage",),
    "offers": ("offers",),
    "fleets": ("fleets",),
    "runs": ("runs",),
    "assumptions": ("assumptions",),
    "grids": ("grids",),
    "xids": ("xids",),
    "software": ("software",),
    "anchors": ("anchors",),
    "terms": ("terms",),
}
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
    for name in _FILES[kind]:
        rows |= parse_rows(kind, _read(name), defaults=_DEFAULTS.get(name))
    return rows


@cache
def read_sources() -> dict[str, dict[str, str]]:
    """Title, date and confidence of every source."""
    return {key: {name: str(value) for name, value in row.items()} for key, row in _read("sources").items()}


def _read(name: str) -> dict[str, dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("trainworks.catalog").joinpath("data", f"{name}.yaml").read_text(encoding="utf-8")
    parsed: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)  # noqa: S506, a safe loader
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


def _as_is(field: str) -> Column:
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
    """Rates by sequence length."""
    return lambda value: {field: {length: rate * 1e12 for length, rate in value.items()}}


def _link(bandwidth: str, *, name: str | None = None, network: str | None = None) -> Column:
    """A column with the name of a link: its bandwidth and, if requested, its name and network."""

    def column(value: Any) -> dict[str, Any]:
        found = read_rows("links")[value].facts() if value != "none" else {"bytes_per_s": 0.0, "network": "none"}
        facts = {bandwidth: found["bytes_per_s"]}
        return facts | ({name: value} if name else {}) | ({network: found["network"]} if network else {})

    return column


_COLUMNS: dict[Kind, dict[str, Column]] = {
    "accelerators": {
        "vendor": _as_is("vendor"),
        "architecture": _as_is("architecture"),
        "launched": _as_is("launched"),
        "memory": _size("memory_bytes"),
        "usable_memory": _size("usable_bytes"),
        "memory_type": _as_is("memory_type"),
        "memory_stacks": _as_is("memory_stacks"),
        "memory_bandwidth": _bandwidth("memory_bytes_per_s"),
        **{f"peak_{precision}_tflops_per_s": _peak(precision) for precision in get_args(Precision)},
        "matmul_tflops_per_s": _scaled("matmul_flops_per_s", Fraction(10**12)),
        "multiprocessors": _as_is("multiprocessors"),
        "scale_up": _link("scale_up_bytes_per_s", name="scale_up"),
        "bridge": _as_is("bridge"),
        "scale_up_group": _as_is("scale_up_group"),
        "pair_bandwidth": _bandwidth("pair_bytes_per_s"),
        "host": _link("host_bytes_per_s"),
        "power_w": _as_is("power_w"),
        "reference_node": _as_is("reference_node"),
    },
    "nodes": {
        "kind": _as_is("kind"),
        "provider": _as_is("provider"),
        "accelerator": _as_is("accelerator"),
        "accelerators": _as_is("accelerators"),
        "scale_up_domain": _as_is("scale_up_domain"),
        "scale_up_reduction": _as_is("scale_up_reduction"),
        "nics": _as_is("nics"),
        "nic": _link("nic_bytes_per_s", network="network"),
        "nic_bandwidth": _bandwidth("nic_bytes_per_s"),
        "network": _as_is("network"),
        "in_network_reduction": _as_is("in_network_reduction"),
        "nic_slot": _link("nic_slot_bytes_per_s"),
        "processor": _as_is("processor"),
        "processors": _as_is("processors"),
        "vcpus": _as_is("vcpus"),
        "host_memory": _size("host_memory_bytes"),
        "power_w": _as_is("power_w"),
    },
    "systems": {"form": _as_is("form"), "node": _as_is("node"), "nodes": _as_is("nodes")},
    "links": {
        "network": _as_is("network"),
        "lanes": _as_is("lanes"),
        "lane": _bandwidth("lane_bytes_per_s"),
        "bandwidth": _bandwidth("bytes_per_s"),
        "latency_us": _scaled("latency_s", Fraction(1, 10**6)),
    },
    "switches": {
        "network": _as_is("network"),
        "ports": _as_is("ports"),
        "port": _bandwidth("port_bytes_per_s"),
        "latency_ns": _scaled("latency_s", Fraction(1, 10**9)),
        "in_network_reduction": _as_is("in_network_reduction"),
        "announced": _as_is("announced"),
    },
    "kernels": {
        "kernel": _as_is("kernel"),
        "accelerator": _as_is("accelerator"),
        "head_dim": _as_is("head_dim"),
        **{
            f"{series}_tflops_per_s": _rates(f"{series}_flops_per_s")
            for series in ("forward", "backward", "causal_forward", "causal_backward")
        },
    },
    "processors": {
        "vendor": _as_is("vendor"),
        "cores": _as_is("cores"),
        "pcie_generation": _as_is("pcie_generation"),
        "pcie_lanes": _as_is("pcie_lanes"),
        "memory_type": _as_is("memory_type"),
        "memory_channels": _as_is("memory_channels"),
        "launched": _as_is("launched"),
        "power_w": _as_is("power_w"),
    },
    "storage": {
        "form": _as_is("form"),
        "posix": _as_is("posix"),
        "fewest_servers": _as_is("fewest_servers"),
        "most_servers": _as_is("most_servers"),
        "survives": _as_is("survives"),
        "client": _bandwidth("client_bytes_per_s"),
        "server_read": _bandwidth("server_read_bytes_per_s"),
        "server_write": _bandwidth("server_write_bytes_per_s"),
        "server_capacity": _size("server_capacity_bytes"),
        "opens_files_s": _as_is("opens_per_s"),
        "latency_us": _scaled("latency_s", Fraction(1, 10**6)),
        "server": _as_is("server"),
        "good_for": _as_is("good_for"),
    },
    "offers": {
        "provider": _as_is("provider"),
        "node": _as_is("node"),
        "accelerator": _as_is("accelerator"),
        "accelerators": _as_is("accelerators"),
        "on_demand_usd_h": _as_is("usd_per_hour"),
        "spot_usd_h": _as_is("spot_usd_per_hour"),
        "zones": _as_is("zones"),
        "region": _as_is("region"),
    },
    "fleets": {
        "accelerator": _as_is("accelerator"),
        "nodes": _as_is("nodes"),
        "days": _as_is("days"),
        "failures": _as_is("failures"),
        "causes": _as_is("causes"),
        "failures_per_1000_node_days": _scaled("failures_per_node_s", Fraction(1, 1000 * 86400)),
        "hardware_share": _as_is("hardware_share"),
        "stands_for": _as_is("stands_for"),
    },
    "runs": {
        "accelerator": _as_is("accelerator"),
        "accelerators": _as_is("accelerators"),
        "bits": _as_is("bits"),
        "experts": _as_is("experts"),
        "mfu_percent": _scaled("mfu", Fraction(1, 100)),
    },
    "assumptions": {
        "low": _as_is("low"),
        "typical": _as_is("typical"),
        "high": _as_is("high"),
        "unit": _as_is("unit"),
    },
    "grids": {"intensity_g_kwh": _scaled("kg_co2e_per_kwh", Fraction(1, 1000))},
    "software": {
        name: _as_is(name)
        for name in (
            "component",
            "ends",
            "first_driver",
            "last_driver",
            "first_cuda",
            "last_cuda",
            "builds",
            "packages",
            "slurm",
            "kernel",
            "first_slurm",
            "kernel_module",
            "first_operator",
            "python",
            "first_python",
            "last_python",
            "left_out",
            "cuda",
        )
    },
    "xids": {"action": _as_is("action"), "meaning": _as_is("meaning")},
    "anchors": {
        "kind": _as_is("kind"),
        "quantity": _as_is("quantity"),
        "cluster": _as_is("cluster"),
        "conditions": _as_is("conditions"),
        "bandwidth": _bandwidth("value"),
        "rate_tflops_per_s": _scaled("value", Fraction(10**12)),
    },
    "terms": {
        "meaning": _as_is("meaning"),
        "write_instead": _as_is("instead"),
        "prefixes": _as_is("prefixes"),
        "left_out": _as_is("left_out"),
        "packages": _as_is("packages"),
        **{kind: _as_is(kind) for kind in ("clusters", "networks", "switches", "models", "topologies")},
    },
}
