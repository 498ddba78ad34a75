"""Price tables that replace the offers of the catalogue.

A CSV with a header. The columns, in any order:

    accelerator        a name of the catalogue or an alias: `H100`, `A100-SXM-80GB`
    accelerators       number that the price is for; 1 without a `node` is a price per accelerator
    on_demand_usd_h    dollars per hour for all of them; empty if not sold on demand
    spot_usd_h         of one zone; rows with the same name are the zones of one offer       optional
    on_demand_cny_h, spot_cny_h    the same in yuan, instead of dollars
    name               of the offer; provider and node by default                            optional
    compliance         what the provider is certified for: `ISO 27001; HIPAA`                optional
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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from trainworks.catalog.catalog import accelerator, find_row, has, load_catalog, node
from trainworks.catalog.exchange import usd_of
from trainworks.catalog.facts import Offer
from trainworks.catalog.row_files import kept_with_rows
from trainworks.errors import UsageError
from trainworks.units import Money

_LONGEST_NAME = 60
_COLUMNS = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region"}
"""Header of a table of SkyPilot."""
_NOT_OFFERED = (0.0, 700.0)
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
_NEEDED = ("accelerator", "accelerators", "on_demand_usd_h")
_SHOWN_UNKNOWN = 4

_Rows = Iterable[tuple[int, Mapping[str, str]]]
"""Line number and values by column."""
_Prices = tuple[float | None, float | None]
"""On demand and spot, USD per hour."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Offers of a table, and notes on ignored rows."""

    offers: tuple[Offer, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listing:
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
    compliance: str = ""


def parse_prices(lines: Iterable[str], *, name: str, cloud: str = "") -> PriceTable:
    """Read a price table in the format above or that of SkyPilot, according to its header.

    `name` of the file is in errors, and in the source of each price. `cloud` is the one whose name tables of SkyPilot
    do not contain.

    Raises:
        UsageError: a missing column, or an invalid price or count; with file and line.
    """
    reader = csv.DictReader(lines, restval="")
    try:
        header = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = header
        rows = ((reader.line_num, row) for row in reader)
        if set(header) >= _COLUMNS:
            return _read_skypilot(rows, name=name, cloud=cloud)
        known = {column.replace("_cny_", "_usd_") for column in header}
        if missing := [column for column in _NEEDED if column not in known]:
            lacking = f"column `{missing[0]}` is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
            others = "spot_usd_h, name, provider, node, region and compliance"
            hint = f"the header needs {', '.join(_NEEDED)}; {others} are optional"
            raise UsageError(f"not a price table: {lacking} missing", place=f"{name}:1", hint=hint)
        return _read_own(rows, name=name)
    except csv.Error as error:
        raise UsageError(f"invalid CSV: {error}", place=f"{name}:{reader.line_num}") from None


@kept_with_rows
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


def _read_skypilot(rows: _Rows, *, name: str, cloud: str) -> PriceTable:
    listings: list[_Listing] = []
    unknown: Counter[str] = Counter()
    instances: dict[tuple[str, str], _Prices] = {}
    bare: list[tuple[_Listing, str, bool]] = []  # without their instance: zone, and whether it is a `mega` of Google
    for line, row in rows:
        instance, part, place = row["InstanceType"], row["AcceleratorName"], f"{name}:{line}"
        if not part and not (instance and has("nodes", instance)):
            continue
        prices = _price(row["Price"], place, _NOT_OFFERED), _price(row["SpotPrice"], place, _NOT_OFFERED)
        zone = "/".join(row.get(column) or "" for column in ("Region", "AvailabilityZone"))
        if not part:
            instances[instance, zone] = prices
        elif (listing := _listing(row, prices, place=place, cloud=cloud)) is None:
            unknown[_printable(part)] += 1
        elif instance:
            listings.append(listing)
        else:
            bare.append((listing, zone, part.endswith("-MEGA")))
    joined = [[*_with_instance(*each, instances)] for each in bare]
    orphans = sum(not found for found in joined)
    notes = _note_unknown(name, unknown)
    if orphans:
        notes.append(f"{name}: {orphans:,} rows of accelerators ignored: no price of an instance")
    return PriceTable(tuple(_offers([*listings, *chain.from_iterable(joined)])), tuple(notes))


def _listing(row: Mapping[str, str], prices: _Prices, *, place: str, cloud: str) -> _Listing | None:
    """Listing of one row; None if its accelerator is unknown or shared."""
    instance = row["InstanceType"]
    part = _accelerator(row["AcceleratorName"], instance)
    try:
        count = float(row["AcceleratorCount"])
    except ValueError:
        return None
    if part is None or count < 1 or count != int(count):
        return None
    provider, shown = _PROVIDERS.get(cloud, cloud.capitalize()), _printable(instance)
    return _Listing(f"{provider} {shown}", provider, shown, part, int(count), *prices, _printable(row["Region"]), place)


@kept_with_rows
def _accelerator(name: str, instance: str) -> str | None:
    """Accelerator of a known instance, else by name."""
    if instance and has("nodes", instance):
        return node(instance).accelerator
    part = known_accelerator(_NAMES.get(name, name))
    if part is not None and "pcie" in instance.lower():
        return known_accelerator(part.replace("-SXM-", "-PCIE-")) or part
    return part


def _with_instance(
    row: _Listing, zone: str, mega: bool, instances: Mapping[tuple[str, str], _Prices]
) -> Iterator[_Listing]:
    """Accelerators without an instance together with each instance of that size in the same zone."""
    for holder in _instances_of(row.accelerator, row.accelerators, mega):
        if (holder, zone) in instances:
            on_demand, spot = instances[holder, zone]
            yield replace(
                row,
                name=f"{row.provider} {holder}",
                node=holder,
                on_demand_usd_h=_sum(row.on_demand_usd_h, on_demand),
                spot_usd_h=_sum(row.spot_usd_h, spot),
            )


@kept_with_rows
def _instances_of(part: str, count: int, mega: bool) -> list[str]:
    nodes = load_catalog().nodes.values()
    instances = [it.name for it in nodes if it.provider == "GCP" and (it.accelerator, it.accelerators) == (part, count)]
    return [holder for holder in instances if ("mega" in holder) == mega] or instances


def _sum(part: float | None, holder: float | None) -> float | None:
    return None if part is None or holder is None else part + holder


def _read_own(rows: _Rows, *, name: str) -> PriceTable:
    unknown: Counter[str] = Counter()
    listings = []
    for line, row in rows:
        part = known_accelerator(row["accelerator"].strip())
        if part is None:
            unknown[_printable(row["accelerator"])] += 1
        else:
            listings.append(_own_listing(row, part, place=f"{name}:{line}"))
    return PriceTable(tuple(_offers(listings)), tuple(_note_unknown(name, unknown)))


def _own_listing(row: Mapping[str, str], part: str, *, place: str) -> _Listing:
    count = row["accelerators"].strip()
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) < 10**6):
        raise UsageError(f"`accelerators` must be an integer of at least 1, got `{_printable(count)}`", place=place)
    provider, node = (_printable(row.get(column) or "") for column in ("provider", "node"))
    return _Listing(
        name=_printable(row.get("name") or "") or f"{provider} {node}".strip() or f"{count}x {part}",
        provider=provider,
        node=node or None,
        accelerator=part,
        accelerators=int(count),
        on_demand_usd_h=_own_price(row, "on_demand", place),
        spot_usd_h=_own_price(row, "spot", place),
        region=_printable(row.get("region") or ""),
        place=place,
        compliance=row.get("compliance") or "",
    )


def _offers(listings: Iterable[_Listing]) -> Iterator[Offer]:
    """Merge the rows of one name into an offer: the cheapest on-demand price and the range of spot prices."""
    groups: dict[tuple[str, str, int, str], list[_Listing]] = {}
    for row in listings:
        groups.setdefault((row.name, row.accelerator, row.accelerators, row.compliance), []).append(row)
    for rows in groups.values():
        sold = [row for row in rows if row.on_demand_usd_h is not None]
        cheapest = min(sold, key=lambda row: row.on_demand_usd_h or 0.0, default=rows[0])
        on_demand = cheapest.on_demand_usd_h
        spot = sorted(row.spot_usd_h for row in rows if row.spot_usd_h is not None)
        if spot and on_demand is not None and spot[0] >= on_demand:  # no discount
            spot = []
        if on_demand is None and not spot:
            continue
        yield Offer(
            name=cheapest.name,
            provider=cheapest.provider,
            node=cheapest.node,
            accelerator=cheapest.accelerator,
            accelerators=cheapest.accelerators,
            usd_per_hour=on_demand,
            spot_usd_per_hour=(spot[0], median(spot), spot[-1]) if len(spot) > 1 else tuple(spot),
            zones=len(spot) or None,
            region=cheapest.region or "not given",
            compliance=tuple(filter(None, map(_printable, cheapest.compliance.split(";")))),
            source=cheapest.place,
        )


def _own_price(row: Mapping[str, str], contract: str, place: str) -> float | None:
    """A price in USD from its column in dollars or in yuan."""
    usd, cny = (_price(row.get(f"{contract}_{currency}_h") or "", place) for currency in ("usd", "cny"))
    if usd is not None and cny is not None:
        columns = f"`{contract}_usd_h` and `{contract}_cny_h`"
        raise UsageError(f"{columns} are one price", place=place, hint="fill in one of the two")
    return usd if cny is None else usd_of(Money(cny, "CNY"))


def _price(text: str, place: str, not_offered: tuple[float, ...] = ()) -> float | None:
    """A price; None for an empty text, and for one that means that nothing is offered."""
    if not text.strip():
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if price in not_offered:
        return None
    if not (math.isfinite(price) and price > 0):
        hint = "write an amount per hour as a plain number, `55.04`; leave it empty if not for sale"
        raise UsageError(f"`{_printable(text)}` is not a price", place=place, hint=hint)
    return price


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]


def _note_unknown(name: str, unknown: Counter[str]) -> list[str]:
    if not unknown:
        return []
    names = list(unknown)
    more = f" and {len(names) - _SHOWN_UNKNOWN} more" if len(names) > _SHOWN_UNKNOWN else ""
    shown = ", ".join(f"`{each}`" for each in names[:_SHOWN_UNKNOWN])
    rows = "1 row" if unknown.total() == 1 else f"{unknown.total():,} rows"
    return [f"{name}: {rows} ignored, with accelerators that plans cannot use: {shown}{more}"]
