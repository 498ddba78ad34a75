"""Price tables of SkyPilot (`~/.sky/catalogs/v*/CLOUD/vms.csv`).

Conventions of these tables:
    - `A100` is the part of 40 GB, `V100` that of 16 GB. PCIe and SXM parts share a name; the instance tells them apart.
    - A price of 700.0 or 0 means "not offered"; an empty one means that it is not sold that way.
    - A spot price equal to the on-demand price is no discount.
    - Google's accelerators and their instances have separate rows; the price is the sum.
    - Google's TPU slices and fractions of an accelerator are ignored.

Source: skypilot-org/skypilot-catalog, catalogs/v8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trainworks.catalog.catalog import has, load_catalog, node
from trainworks.catalog.listings import Listing, known_accelerator, price_of, printable_text

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
NOT_OFFERED = (0.0, 700.0)

_NAMES = {
    "A100": "A100-SXM-40GB",
    "V100": "V100-SXM-16GB",
    "H100-MEGA": "H100-SXM-80GB",
    "A100-80GB-SXM": "A100-SXM-80GB",
    "Trainium": "Trainium1-32GB",
    "RTX4090": "RTX-4090-24GB",
    "RTX3090": "RTX-3090-24GB",
}
"""Names of SkyPilot that the catalogue lacks or uses for another part."""
_PROVIDERS = {"aws": "AWS", "gcp": "GCP", "ibm": "IBM", "oci": "OCI", "runpod": "RunPod", "cudo": "Cudo"}
_PLACES = ("Region", "AvailabilityZone")


@dataclass(frozen=True, slots=True)
class _Bare:
    """Accelerators without their instance."""

    listing: Listing
    zone: str
    mega: bool
    """They belong to Google's `mega` instances, which have more NICs."""


@dataclass(slots=True)
class SkyPilotTable:
    """Contents of one table."""

    listings: list[Listing] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    """Number of rows by accelerator that the catalogue does not know."""
    without_instance: int = 0
    """Number of rows whose instance has no price in the same zone, or is unknown."""


def read_skypilot(rows: Iterable[tuple[int, Mapping[str, str]]], *, name: str, cloud: str) -> SkyPilotTable:
    """Read the offers by zone of one `vms.csv`.

    Args:
        rows: line number and values by column.
        name: of the file, for errors and sources.
        cloud: name in SkyPilot: `aws`, `gcp`.

    Raises:
        UsageError: an invalid price.
    """
    table = SkyPilotTable()
    instances: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    bare: list[_Bare] = []
    for line, row in rows:
        instance, part = row["InstanceType"], row["AcceleratorName"]
        if not part and not (instance and has("nodes", instance)):
            continue
        prices = _prices(row, f"{name}:{line}")
        if not part:
            instances[instance, _zone(row)] = prices
        elif (listing := _listing(row, prices, table, place=f"{name}:{line}", cloud=cloud)) is not None:
            if instance:
                table.listings.append(listing)
            else:
                bare.append(_Bare(listing, _zone(row), mega=part.endswith("-MEGA")))
    _add_instances(table, bare, instances)
    return table


def _zone(row: Mapping[str, str]) -> str:
    return "/".join(row.get(column) or "" for column in _PLACES)


def _prices(row: Mapping[str, str], place: str) -> tuple[float | None, float | None]:
    on_demand, spot = (_offered(row[column], place) for column in ("Price", "SpotPrice"))
    return on_demand, spot


def _offered(text: str, place: str) -> float | None:
    try:
        if float(text) in NOT_OFFERED:
            return None
    except ValueError:
        pass
    return price_of(text, place)


def _listing(
    row: Mapping[str, str], prices: tuple[float | None, float | None], table: SkyPilotTable, *, place: str, cloud: str
) -> Listing | None:
    """Listing of one row; None, and counted, if its accelerator is unknown or shared."""
    instance, count = row["InstanceType"], _whole(row["AcceleratorCount"])
    part = _accelerator(row["AcceleratorName"], instance)
    if part is None or count is None:
        name = printable_text(row["AcceleratorName"])
        table.unknown[name] = table.unknown.get(name, 0) + 1
        return None
    provider = _PROVIDERS.get(cloud, cloud.capitalize())
    shown = printable_text(instance)
    return Listing(
        f"{provider} {shown}", provider, shown, part, count, *prices, region=printable_text(row["Region"]), place=place
    )


def _whole(text: str) -> int | None:
    try:
        count = float(text)
    except ValueError:
        return None
    return int(count) if count >= 1 and count == int(count) else None


@cache
def _accelerator(name: str, instance: str) -> str | None:
    """Accelerator of a known instance, else by name."""
    if instance and has("nodes", instance):
        return node(instance).accelerator
    part = known_accelerator(_NAMES.get(name, name))
    if part is not None and "pcie" in instance.lower():
        return known_accelerator(part.replace("-SXM-", "-PCIE-")) or part
    return part


def _add_instances(
    table: SkyPilotTable, bare: list[_Bare], instances: Mapping[tuple[str, str], tuple[float | None, float | None]]
) -> None:
    """Combine accelerators without an instance with the instance of that size in the same zone."""
    for each in bare:
        row = each.listing
        found = [
            holder
            for holder in _instances_of(row.accelerator, row.accelerators, each.mega)
            if (holder, each.zone) in instances
        ]
        table.without_instance += not found
        for holder in found:
            on_demand, spot = instances[holder, each.zone]
            held: dict[str, Any] = {
                "name": f"{row.provider} {holder}",
                "node": holder,
                "on_demand_usd_h": _sum(row.on_demand_usd_h, on_demand),
                "spot_usd_h": _sum(row.spot_usd_h, spot),
            }
            table.listings.append(replace(row, **held))


@cache
def _instances_of(part: str, count: int, mega: bool) -> list[str]:
    """Google's instances with that many of that accelerator."""
    nodes = load_catalog().nodes.values()
    instances = [it.name for it in nodes if it.provider == "GCP" and (it.accelerator, it.accelerators) == (part, count)]
    return [holder for holder in instances if ("mega" in holder) == mega] or instances


def _sum(part: float | None, holder: float | None) -> float | None:
    return None if part is None or holder is None else part + holder
