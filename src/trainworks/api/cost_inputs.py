"""What `trainworks cost` is asked: prices, assumptions that are replaced, and the run whose hours are paid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from trainworks.api.arguments import on_cluster
from trainworks.api.cluster_plan import plan_cluster
from trainworks.catalog.catalog import assumption, load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Offer
from trainworks.catalog.prices import PriceTable, parse_prices
from trainworks.config.load import load_run_file
from trainworks.config.run_file import Goal
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.cost.comparison import YOU
from trainworks.plan.prediction import describe_layout
from trainworks.plan.trace import Traced, computed, fact

__all__ = ["RunToPay", "checked", "parse_assumptions", "read_prices", "run_to_pay"]

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
"""What may be replaced, and the values that can be meant."""


@dataclass(frozen=True, slots=True)
class RunToPay:
    """A run whose hours are paid."""

    name: str
    cluster: ClusterDescription
    hours: Traced
    count: Traced
    """Tokens or images that it works off."""
    noun: str
    own_price: Offer | None
    """What the run file says that an accelerator hour costs."""
    budget_usd: float | None


def run_to_pay(path: Path, on: str | None) -> RunToPay:
    """Plan the run, whose time is what is paid.

    Raises:
        UsageError: the run file describes no cluster, and none was named; or what `plan_cluster` refuses.
        EnvironmentProblem: no layout fits.
    """
    run_file, source = load_run_file(path)
    run_file = on_cluster(run_file, on)
    cluster = run_file.cluster
    if cluster.engine != "described":
        raise UsageError(f"`{path}` runs on this machine, which has no price", hint='name a cluster: `--on "64x H100"`')
    plan = plan_cluster(run_file.model_copy(update={"goal": Goal()}), source)
    best = plan.best[0]
    run_time = computed(
        "run time",
        plan.run_time_s,
        "s",
        by=f"`trainworks plan`: {plan.steps:,} steps with {describe_layout(best.layout)}, 80 % interval",
        low=plan.steps * best.low_s,
        high=plan.steps * best.high_s,
    )
    workload = run_file.workload
    length = 1 if workload is None or workload.task == "image-classification" else workload.data.sequence_length
    return RunToPay(
        name=run_file.name,
        cluster=plan.job.cluster,
        hours=(run_time / 3600).named("hours", "h"),
        count=fact("work", plan.steps * plan.global_batch * length, "", source=f"`{path}`"),
        noun="images" if length == 1 else "tokens",
        own_price=_own_price(cluster.usd_per_accelerator_hour, plan.job.cluster, str(path)),
        budget_usd=run_file.goal.budget,
    )


def _own_price(usd: float | None, cluster: ClusterDescription, path: str) -> Offer | None:
    if usd is None:
        return None
    return Offer(
        name="your price",
        provider=YOU,
        accelerator=cluster.accelerator.name,
        accelerators=1,
        usd_per_hour=usd,
        source=f"{path}: cluster.usd_per_accelerator_hour",
    )


def parse_assumptions(written: Sequence[str]) -> dict[str, float]:
    """Numbers that replace assumptions, from `NAME=VALUE` each.

    Raises:
        UsageError: no such assumption, one that is given twice, no number, or a number that cannot be meant.
    """
    given: dict[str, float] = {}
    for text in written:
        name, equals, value = text.rpartition("=")
        if not equals:
            raise UsageError(f"`{text}` replaces nothing", place="--assume", hint='write it like `--assume "PUE=1.2"`')
        known = {each.lower(): each for each in LIMITS}
        if name.strip().lower() not in known:
            near = get_close_matches(name.strip().lower(), known, n=3, cutoff=0.3) or list(known)[:3]
            hint = f"nearest are {', '.join(f'`{known[each]}`' for each in near)}"
            raise UsageError(f"no assumption `{name.strip()}`", place="--assume", hint=hint)
        own = known[name.strip().lower()]
        if own in given:
            raise UsageError(f"`{own}` is given twice", place="--assume", hint=f'keep one `--assume "{own}=..."`')
        given[own] = checked(own, _number(value, text), place="--assume")
    return given


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        hint = "write a plain number in the unit of `trainworks catalog list assumptions`"
        raise UsageError(f"`{text}` has no number", place="--assume", hint=hint) from None


def checked(name: str, value: float, *, place: str) -> float:
    """A number that replaces an assumption, if it can be meant.

    Raises:
        UsageError: it lies outside of its limits.
    """
    low, high = LIMITS[name]
    if math.isfinite(value) and low <= value <= high:
        return value
    known = "" if name in ("server price", "node power") else f"usual is {assumption(name).typical:g}"
    raise UsageError(f"{name} is {value:g}, and has to lie between {low:g} and {high:g}", place=place, hint=known)


def read_prices(option: str | None) -> PriceTable:
    """The catalogue's offers, or those of a file, or of an installed SkyPilot.

    Raises:
        UsageError: a file that is missing or that is no price table.
        EnvironmentProblem: no SkyPilot catalogue on this machine.
    """
    if option is None:
        return PriceTable(tuple(load_catalog().offers.values()))
    if option == SKYPILOT:
        return _skypilot()
    path = Path(option)
    return _read(path, cloud=path.absolute().parent.name if path.name == "vms.csv" else path.stem)


def _skypilot() -> PriceTable:
    folder = Path.home() / SKYPILOT_FOLDER
    versions = [path for path in folder.glob("v*") if path.name[1:].isdigit()]
    newest = max(versions, key=lambda path: int(path.name[1:]), default=None)
    files = sorted(newest.glob("*/vms.csv")) if newest else []
    if not files:
        raise EnvironmentProblem(
            f"no price table of SkyPilot in `{folder}`",
            place="--prices skypilot",
            hint="SkyPilot fetches it on its first use; or name a table of your own: `--prices FILE`",
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
        raise UsageError(f"cannot read `{path}`: {error.strerror}", place="--prices") from None
    except UnicodeDecodeError:
        raise UsageError(f"`{path}` is no text in UTF-8", place="--prices", hint="export the table as CSV") from None
