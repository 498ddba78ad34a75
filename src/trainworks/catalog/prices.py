"""Price tables that replace the offers of the catalogue.

A CSV with a header. The columns, in any order:

    accelerator        a name of the catalogue or an alias: `H100`, `A100-SXM-80GB`
    accelerators       number that the price is for; 1 without a `node` is a price per accelerator
    on_demand_usd_h    dollars per hour for all of them; empty if not sold on demand
    spot_usd_h         of one zone; rows with the same name are the zones of one offer       optional
    name               of the offer; provider and node by default                            optional
    provider, node, region                                                                   optional

A `vms.csv` of SkyPilot's catalogue (`~/.sky/catalogs/v*/CLOUD/vms.csv`) works unchanged. Its conventions:

    - `A100` is the part of 40 GB, `V100` that of 16 GB. PCIe and SXM parts share a name; the instance tells them apart.
    - A price of 700.0 or 0 means "not offered"; an empty one means that it is not sold that way.
    - A spot price equal to the on-demand price means no discount.
    - Google's accelerators and their instances have separate rows; the price is the sum.
    - Google's TPU slices and fractions of an accelerator are ignored.

Source: skypilot-org/skypilot-catalog, catalogs/v8.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

from trainworks.catalog.catalog import accelerator, find_row, has, load_catalog, node
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Listing:
    """Prices of one zone: a row of a price table."""

    name: str
    provider: str
    node: str | None
    accelerator: str
    """Name in the catalogue."""
    accelerators: int
    on_demand_usd_h: float | None
    spot_usd_h: float | None
    region: str
    place: str
    """File and line."""


def offers_of(listings: Iterable[Listing]) -> list[Offer]:
    """Merge the rows of one name into an offer: the cheapest on-demand price and the range of spot prices.

    Spot prices are left out if none is below the on-demand price.
    """
    groups: dict[tuple[str, str, int], list[Listing]] = {}
    for row in listings:
        groups.setdefault((row.name, row.accelerator, row.accelerators), []).append(row)
    return [offer for rows in groups.values() if (offer := _offer(rows)) is not None]


def _offer(rows: list[Listing]) -> Offer | None:
    sold = [row for row in rows if row.on_demand_usd_h is not None]
    cheapest = min(sold, key=lambda row: row.on_demand_usd_h or 0.0, default=rows[0])
    on_demand = cheapest.on_demand_usd_h
    spot = sorted(row.spot_usd_h for row in rows if row.spot_usd_h is not None)
    if spot and on_demand is not None and spot[0] >= on_demand:
        spot = []
    if on_demand is None and not spot:
        return None
    return Offer(
        name=cheapest.name,
        provider=cheapest.provider,
        node=cheapest.node,
        accelerator=cheapest.accelerator,
        accelerators=cheapest.accelerators,
        usd_per_hour=on_demand,
        spot_usd_per_hour=(spot[0], median(spot), spot[-1]) if len(spot) > 1 else tuple(spot),
        zones=len(spot) or None,
        region=cheapest.region or "not given",
        source=cheapest.place,
    )


def price_of(text: str, place: str) -> float | None:
    """Parse a price in USD; None for an empty text.

    Raises:
        UsageError: the text is not a number above 0.
    """
    if not text.strip():
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        hint = "write dollars per hour as a plain number, `55.04`; leave it empty if not for sale"
        raise UsageError(f"`{printable_text(text)}` is not a price", place=place, hint=hint)
    return price


@cache
def known_accelerator(name: str) -> str | None:
    """Name of an accelerator in the catalogue; None for one that plans cannot use."""
    if not has("accelerators", name):
        return None
    try:
        return accelerator(name).name
    except UsageError:
        return None


def skypilot_name(name: str) -> str:
    """SkyPilot's name of an accelerator of the catalogue; any other name stays as it is.

    >>> skypilot_name("A100-SXM-80GB"), skypilot_name("A100-SXM-40GB"), skypilot_name("MI300X-192GB")
    ('A100-80GB', 'A100', 'MI300X')
    """
    if name not in load_catalog().accelerators:
        return name
    own = [short for short, meant in _NAMES.items() if meant == name and "-" not in short]  # a dash: of one cloud
    aliases = find_row(name, "accelerators").aliases
    return next(iter((*own, *(alias for alias in aliases if alias not in _NAMES and " " not in alias))), name)


def printable_text(text: str) -> str:
    """Untrusted text as one short line that is safe to print."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]


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
    "RTXA6000": "RTX-A6000-48GB",
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


_NEEDED = ("accelerator", "accelerators", "on_demand_usd_h")
_SHOWN_UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Offers of a table, and notes on ignored rows."""

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


def parse_prices(lines: Iterable[str], *, name: str, cloud: str = "") -> PriceTable:
    """Read a price table in the format above or that of SkyPilot, according to its header.

    Args:
        lines: of the file.
        name: of the file, for errors and for the source of each price.
        cloud: name of the cloud, which tables of SkyPilot do not contain.

    Raises:
        UsageError: a missing column, or an invalid price or count; with file and line.
    """
    reader = csv.DictReader(lines, restval="")
    try:
        header = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = header
        if set(COLUMNS) <= set(header):
            return _of_skypilot(reader, name=name, cloud=cloud)
        if missing := [column for column in _NEEDED if column not in header]:
            raise _no_table(name, missing)
        return _of_own(reader, name=name)
    except csv.Error as error:
        raise UsageError(f"invalid CSV: {error}", place=f"{name}:{reader.line_num}") from None


def _no_table(name: str, missing: list[str]) -> UsageError:
    lacking = f"column `{missing[0]}` is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
    hint = f"the header needs {', '.join(_NEEDED)}; spot_usd_h, name, provider, node and region are optional"
    return UsageError(f"not a price table: {lacking} missing", place=f"{name}:1", hint=hint)


def _numbered(reader: csv.DictReader[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    return ((reader.line_num, row) for row in reader)


def _of_skypilot(reader: csv.DictReader[str], *, name: str, cloud: str) -> PriceTable:
    table = read_skypilot(_numbered(reader), name=name, cloud=cloud)
    orphans = f"{name}: {table.without_instance:,} rows of accelerators ignored: no price of an instance"
    notes = [*_of_unknown(name, table.unknown), *([orphans] if table.without_instance else [])]
    return PriceTable(tuple(offers_of(table.listings)), tuple(notes))


def _of_own(reader: csv.DictReader[str], *, name: str) -> PriceTable:
    unknown: dict[str, int] = {}
    listings = []
    for line, row in _numbered(reader):
        part = known_accelerator(row["accelerator"].strip())
        if part is None:
            written = printable_text(row["accelerator"])
            unknown[written] = unknown.get(written, 0) + 1
        else:
            listings.append(_own_listing(row, part, place=f"{name}:{line}"))
    return PriceTable(tuple(offers_of(listings)), tuple(_of_unknown(name, unknown)))


def _own_listing(row: Mapping[str, str], part: str, *, place: str) -> Listing:
    count = row["accelerators"].strip()
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) < 10**6):
        raise UsageError(f"`accelerators` must be an integer of at least 1, got `{printable_text(count)}`", place=place)
    provider, node = (printable_text(row.get(column) or "") for column in ("provider", "node"))
    named = printable_text(row.get("name") or "") or f"{provider} {node}".strip() or f"{count}x {part}"
    return Listing(
        name=named,
        provider=provider,
        node=node or None,
        accelerator=part,
        accelerators=int(count),
        on_demand_usd_h=price_of(row["on_demand_usd_h"], place),
        spot_usd_h=price_of(row.get("spot_usd_h") or "", place),
        region=printable_text(row.get("region") or ""),
        place=place,
    )


def _of_unknown(name: str, unknown: Mapping[str, int]) -> list[str]:
    """Note on the rows with an accelerator that plans cannot use."""
    if not unknown:
        return []
    total, names = sum(unknown.values()), list(unknown)
    more = f" and {len(names) - _SHOWN_UNKNOWN} more" if len(names) > _SHOWN_UNKNOWN else ""
    shown = ", ".join(f"`{each}`" for each in names[:_SHOWN_UNKNOWN])
    rows = "1 row" if total == 1 else f"{total:,} rows"
    return [f"{name}: {rows} ignored, with accelerators that plans cannot use: {shown}{more}"]
