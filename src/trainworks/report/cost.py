"""What a run or a year costs: owning, every offer, and what moves the answer most."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.catalog.exchange import Exchange
from trainworks.plan.cost.comparison import CostComparison, CostLine, usd_per_million
from trainworks.plan.cost.owning import fits_in_year
from trainworks.plan.cost.renting import CONTRACTS
from trainworks.plan.cost.report import CostReport
from trainworks.plan.trace import Traced
from trainworks.report.explain import sources_section, tornado_plot
from trainworks.report.rendering.document import (
    NARROW,
    Block,
    Column,
    Document,
    Fact,
    Facts,
    Section,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_count, format_quantity

_NOT_JOINED = "*"


@build_document.register
def document(report: CostReport) -> Document:
    """Owning, every offer, what moves the answer most, and what was assumed."""
    cluster = report.comparison.cluster
    return Document(
        report.title,
        "cost",
        [
            Section("", [_facts(report)]),
            Section("", [_offers(report)] if report.comparison.lines else []),
            Section("", [Text(sentence) for sentence in report.sentences]),
            _swings(report.comparison, report.exchange),
            sources_section(report.figures),
        ],
        about=f"{cluster.num_accelerators:,} {cluster.accelerator.name}",
        notes=report.notes,
        shows_title=True,
    )


@to_json.register
def _(report: CostReport) -> Mapping[str, object]:
    comparison, owning = report.comparison, report.comparison.owning
    return {
        "cluster": comparison.cluster.name,
        "num_accelerators": comparison.cluster.num_accelerators,
        "hours": comparison.hours.value,
        "work": _value(report.count),
        "owning_usd": _value(comparison.owned),
        "owning_usd_per_accelerator_hour": None if owning is None else owning.per_accelerator_hour.value,
        "owning_capex_usd": None if owning is None else owning.capex.value,
        "market_usd": _value(comparison.market),
        "energy_wh": _value(comparison.energy),
        "carbon_kg_co2e": _value(comparison.carbon),
        "grid": report.grid,
        "offers": [_offer_json(line) for line in comparison.lines],
        "tornado": [
            {
                "name": swing.of.name,
                "low": swing.of.low,
                "high": swing.of.high,
                "unit": swing.of.unit,
                "usd_at_low": swing.at_low,
                "usd_at_high": swing.at_high,
            }
            for swing in comparison.swings
        ],
        "notes": [*report.sentences, *report.notes],
    }


def _facts(report: CostReport) -> Facts:
    comparison, facts, money = report.comparison, [], report.exchange.format
    if report.count is not None:
        facts.append(Fact("work", f"{format_count(report.count.value)} {report.noun}"))
    if comparison.owning is not None and comparison.owned is not None:
        hour = comparison.owned.inputs.get("each", comparison.owning.per_accelerator_hour)
        note = f"{money(hour.value)} per accelerator hour; {money(comparison.owning.capex.value)} to buy"
        facts.append(Fact("owning", money(comparison.owned.value), note))
    if comparison.market is not None:
        facts.append(Fact("renting", money(comparison.market.value), "at the median on-demand price"))
    if comparison.energy is not None and comparison.carbon is not None:
        energy, carbon = (format_quantity(each.value, each.unit) for each in (comparison.energy, comparison.carbon))
        facts.append(Fact("energy", energy, f"{carbon} (grid: {report.grid})"))
    return Facts(facts, figures=True)


def _offers(report: CostReport) -> Table:
    count, noun, money = report.count, report.noun, report.exchange
    columns = [
        Column("offer"),
        Column("each hour", numeric=True, short_name="each h"),
        *right("on demand", "reserved", "spot"),
        *right("by zone", "saves", min_width=NARROW),
        Column("own from", numeric=True, only=None if count is None else "page"),
    ]
    if count is not None:
        columns.append(Column(f"per M {noun}", numeric=True, short_name="per M"))
    rows = []
    for line in report.comparison.lines:
        price, pays = line.offer.usd_per_hour, line.break_even
        rows.append(
            [
                line.offer.name + (_NOT_JOINED if line.may_not_join else ""),
                "-" if price is None else f"{price * money.per_usd / line.offer.accelerators:.2f}",
                *(money.short(line.costs[each].value) if each in line.costs else "-" for each in CONTRACTS),
                " to ".join(map(money.short, line.spot_range)) if line.spot_range else "",
                "" if line.discount is None else f"{line.discount.value:.0%}",
                "never" if pays is None or not fits_in_year(pays) else f"{pays.value:,.0f} h",
                *([] if count is None else [f"{usd_per_million(line.first, count, noun).value * money.per_usd:.3g}"]),
            ]
        )
    return Table(columns, rows)


def _swings(comparison: CostComparison, money: Exchange) -> Section:
    answer, blocks = comparison.answer, list[Block]()
    if answer is None or not comparison.swings:
        return Section("", [])
    rows = []
    for swing in comparison.swings:
        unit = f", {swing.of.unit}" if swing.of.unit not in ("", "s", "year") else ""
        ends = [
            format_quantity(end or 0.0, "s" if swing.of.unit == "s" else "") for end in (swing.of.low, swing.of.high)
        ]
        rows.append([swing.of.name + unit, *ends, money.short(swing.at_low), money.short(swing.at_high)])
    columns = [*left("what moves it most"), *right("low", "high", "at low", "at high")]
    blocks = [*tornado_plot(answer, comparison.swings, money), Table(columns, rows, only="text")]
    return Section(f"{answer.name}: {money.format(answer.value)}", blocks)


def _value(figure: Traced | None) -> float | None:
    return None if figure is None else figure.value


def _offer_json(line: CostLine) -> Mapping[str, object]:
    offer = line.offer
    return {
        "name": offer.name,
        "provider": offer.provider,
        "accelerators": offer.accelerators,
        "usd_per_hour": offer.usd_per_hour,
        "region": offer.region,
        "usd": {contract: cost.value for contract, cost in line.costs.items()},
        "spot_effective_discount": _value(line.discount),
        "break_even_hours": _value(line.break_even) if fits_in_year(line.break_even) else None,
    }
