"""Price tables that replace the offers of the catalogue.

A CSV with a header. The columns, in any order:

    accelerator        a name of the catalogue or an alias: `H100`, `A100-SXM-80GB`
    accelerators       number that the price is for; 1 without a `node` is a price per accelerator
    on_demand_usd_h    dollars per hour for all of them; empty if not sold on demand
    spot_usd_h         of one zone; rows with the same name are the zones of one offer       optional
    name               of the offer; provider and node by default                            optional
    provider, node, region                                                                   optional

A `vms.csv` of SkyPilot's catalogue works unchanged.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainworks.catalog.facts import Offer
from trainworks.catalog.listings import Listing, known_accelerator, offers_of, price_of, printable_text
from trainworks.catalog.skypilot import COLUMNS as SKYPILOT_COLUMNS
from trainworks.catalog.skypilot import read_skypilot
from trainworks.errors import UsageError

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
        if set(SKYPILOT_COLUMNS) <= set(header):
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
