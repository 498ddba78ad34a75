"""Inputs of a cost: prices, and numbers that replace assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from trainworks.catalog.catalog import assumption, load_catalog
from trainworks.catalog.prices import PriceTable, parse_prices
from trainworks.errors import ArgumentError, EnvironmentProblem

Assumptions = Mapping[str, float] | Iterable[str]
"""Numbers by the name of the assumption that they replace, or `NAME=VALUE` each."""

SKYPILOT = "skypilot"
SKYPILOT_FOLDER = Path(".sky/catalogs")

_ANY = (0.0, 1e12)
_SHARE = (0.0, 1.0)
LIMITS: dict[str, tuple[float, float]] = {
    "server price": (1.0, 1e9),
    "node power": (1.0, 1e6),
    "server price per power": (0.01, 1e4),
    "network share of capex": (0.0, 0.9),
    "power while training": _SHARE,
    "power while idle": _SHARE,
    "node power over accelerators": (1.0, 10.0),
    "electricity": (0.0, 10.0),
    "PUE": (1.0, 5.0),
    "colocation": _ANY,
    "staff, few nodes": (0.0, 100.0),
    "staff, many nodes": (0.0, 100.0),
    "salary": _ANY,
    "maintenance": _SHARE,
    "residual value": _SHARE,
    "years of use": (0.1, 50.0),
    "committed-use discount": (0.0, 0.99),
    "committed term": (0.0, 87600.0),
    "spot life": (1.0, 1e9),
    "spot save": (0.001, 1e6),
    "spot restart": (0.0, 1e6),
}
"""Assumptions that may be replaced, with the least and the largest plausible value."""


def parse_assumptions(assume: Assumptions) -> dict[str, float]:
    """Numbers that replace assumptions, by name.

    Raises:
        ArgumentError: no such assumption, one that is given twice, no number, or an implausible number.

    >>> parse_assumptions(["pue=1.2"])
    {'PUE': 1.2}
    """
    known = {each.lower(): each for each in LIMITS}
    numbers: dict[str, float] = {}
    for written, value in _pairs(assume):
        if written.lower() not in known:
            near = get_close_matches(written.lower(), known, n=3, cutoff=0.3) or list(known)[:3]
            hint = f"nearest are {', '.join(f'`{known[each]}`' for each in near)}"
            raise ArgumentError(f"unknown assumption `{written}`", argument="assume", hint=hint)
        name = known[written.lower()]
        if name in numbers:
            raise ArgumentError(f"`{name}` is given twice", argument="assume", hint=f'keep one `--assume "{name}=..."`')
        numbers[name] = check_assumption(name, value, argument="assume")
    return numbers


def _pairs(assume: Assumptions) -> list[tuple[str, float]]:
    if isinstance(assume, Mapping):
        return list(assume.items())
    pairs = []
    for text in assume:
        name, equals, value = text.rpartition("=")
        if not equals:
            hint = 'write it like `--assume "PUE=1.2"`'
            raise ArgumentError(f"`{text}` has no `=`", argument="assume", hint=hint)
        try:
            pairs.append((name.strip(), float(value)))
        except ValueError:
            hint = "write a plain number in the unit of `trainworks catalog list assumptions`"
            raise ArgumentError(f"`{text}` has no number", argument="assume", hint=hint) from None
    return pairs


def check_assumption(name: str, value: float, *, argument: str) -> float:
    """Check that a number for an assumption is plausible.

    Raises:
        ArgumentError: it lies outside of its limits.
    """
    low, high = LIMITS[name]
    if math.isfinite(value) and low <= value <= high:
        return value
    usual = "" if name in ("server price", "node power") else f"usual is {assumption(name).typical:g}"
    raise ArgumentError(
        f"{name} is {value:g}, and must lie between {low:g} and {high:g}", argument=argument, hint=usual
    )


def read_prices(prices: Path | str | None) -> PriceTable:
    """Offers of the catalogue, of a CSV file, or of an installed SkyPilot.

    Raises:
        ArgumentError: the file is missing, or is not a price table.
        EnvironmentProblem: SkyPilot has no catalogue on this machine.
    """
    if prices is None:
        return PriceTable(tuple(load_catalog().offers.values()))
    if prices == SKYPILOT:
        return _skypilot_prices()
    path = Path(prices)
    return _read(path, cloud=path.absolute().parent.name if path.name == "vms.csv" else path.stem)


def _skypilot_prices() -> PriceTable:
    folder = Path.home() / SKYPILOT_FOLDER
    versions = [path for path in folder.glob("v*") if path.name[1:].isdigit()]
    newest = max(versions, key=lambda path: int(path.name[1:]), default=None)
    files = sorted(newest.glob("*/vms.csv")) if newest else []
    if not files:
        raise EnvironmentProblem(
            f"no price table of SkyPilot in `{folder}`",
            place="--prices skypilot",
            hint="run SkyPilot once to fetch it, or name a table of your own: `--prices FILE`",
        )
    tables = [_read(path, cloud=path.parent.name) for path in files]
    return PriceTable(
        tuple(offer for table in tables for offer in table.offers),
        tuple(note for table in tables for note in table.notes),
    )


def _read(path: Path, *, cloud: str) -> PriceTable:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_prices(lines, name=str(path), cloud=cloud)
    except OSError as error:
        raise ArgumentError(f"cannot read `{path}`: {error.strerror}", argument="prices") from None
    except UnicodeDecodeError:
        hint = "export the table as CSV in UTF-8"
        raise ArgumentError(f"cannot read `{path}`: not text in UTF-8", argument="prices", hint=hint) from None
