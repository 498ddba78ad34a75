"""Age of rows: prices and releases change, hardware does not. Notes on the rows that an answer is made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib import resources

from trainworks.catalog.catalog import find_row, has
from trainworks.catalog.facts import Offer
from trainworks.catalog.rows import KINDS, CatalogRow, Figure, Kind, data_files, read_rows

MOST_DAYS = {"offers": 180, "instances": 365, "software": 365}
"""Days after which a row is too old; instances are nodes that are rented, and other kinds do not age."""
_PRICES = ("on demand", "spot")


@dataclass(frozen=True, slots=True)
class OldRow:
    """A row that has to be read anew at its source."""

    kind: Kind
    row: str
    figure: str
    """Its oldest figure."""
    date: str
    """Month of that figure."""
    days: int
    """Since the end of that month."""
    most_days: int
    source: str
    place: str
    """File and line."""


def old_rows(today: date) -> list[OldRow]:
    """Rows whose oldest figure is older than its kind allows on that day, in the order of the catalogue."""
    rows = (row for kind in KINDS for row in read_rows(kind).values())
    return [found for row in rows if (found := _old(row, today)) is not None]


def _old(row: CatalogRow, today: date) -> OldRow | None:
    ageing = list(_ageing(row))
    if not ageing:
        return None
    rented = row.kind == "nodes"
    oldest, most_days = min(ageing, key=lambda figure: figure.date), MOST_DAYS["instances" if rented else row.kind]
    year, month = map(int, oldest.date.split("-")[:2])
    days = (today - date(year + month // 12, month % 12 + 1, 1)).days + 1  # since the last day of the month
    if days <= most_days:
        return None
    return OldRow(row.kind, row.name, oldest.name, oldest.date, days, most_days, oldest.source, place_of(row))


def _ageing(row: CatalogRow) -> Iterator[Figure]:
    """Figures that age: prices, shapes of instances, and what is said of releases until their support has ended."""
    if row.kind == "offers":
        yield from (figure for figure in row.figures if figure.name in _PRICES)
    elif row.kind == "nodes" and row.facts().get("kind") == "instance":
        yield from (figure for figure in row.figures if figure.name not in ("kind", "provider"))
    elif row.kind == "software":
        ends = row.facts().get("ends")
        yield from (figure for figure in row.figures if ends is None or figure.date < ends)


def place_of(row: CatalogRow) -> str:
    """File and line of a row; of ours the file of the package, as `offers.yaml:12`."""
    if row.place:
        return row.place
    for name in data_files(row.kind):
        text = resources.files(__package__).joinpath("data", f"{name}.yaml").read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith((f"{row.name}:", f'"{row.name}":')):
                return f"{name}.yaml:{number}"
    raise LookupError(row.name)


def price_note(offers: Iterable[Offer]) -> str | None:
    """A note with the months of the catalogue's prices of these offers; None where all come from elsewhere."""
    rows = [find_row(offer.name, "offers") for offer in offers if not offer.source]
    dates = sorted(figure.date for row in rows for figure in row.figures if figure.name in _PRICES)
    if not dates:
        return None
    read = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"prices of the catalogue are of {read}; `trainworks catalog lint` names those that are too old"


def own_rows_note(names: Iterable[tuple[Kind, str | None]]) -> str | None:
    """A note that names the rows among these that are of a file of the user; None without one."""
    rows = [find_row(name, kind) for kind, name in names if name is not None and has(kind, name)]
    said = dict.fromkeys(f"`{row.name}` is a row of {row.place}" for row in rows if row.place)
    return "; ".join(said) or None
