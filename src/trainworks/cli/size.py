"""`trainworks size`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import check_writable, option_value, said_by
from trainworks.api.cost_inputs import parse_assumptions, read_prices
from trainworks.api.size import Asked, size_up
from trainworks.api.size_details import details_of, minimum_clusters
from trainworks.api.size_plans import Plans
from trainworks.api.size_teams import print_shared, share_out, shared_as_json
from trainworks.catalog.catalog import find_row, has, system
from trainworks.catalog.catalog import processor as find_processor
from trainworks.catalog.facts import Processor
from trainworks.cli.options import AsJson, Assume, Prices, wide_console
from trainworks.cli.size_tables import Proposal
from trainworks.cli.size_view import print_proposal, proposal_as_json, write_proposal
from trainworks.config.load import Source, load_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.cost.owning import MOST_HOURS_OF_A_YEAR
from trainworks.plan.cost.renting import CONTRACTS as RENTED
from trainworks.plan.sizing.candidates import Candidate, described_node
from trainworks.plan.sizing.proposal import Alternative, Wish, choose
from trainworks.report.explain import explain as explain_figure
from trainworks.report.progress_bar import waiting
from trainworks.units import parse_duration, parse_share, parse_usd

__all__ = ["command"]

CONTRACTS = (*RENTED, "own")
_LARGEST = 65_536

RunFiles = Annotated[
    list[Path], typer.Argument(metavar="RUN_FILE...", help="YAML run files; several are teams that share a cluster.")
]
Deadline = Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="Done by then; the run file's goal.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="USD", help="Of the run: `200000USD`.")]
Confidence = Annotated[str, typer.Option("--confidence", metavar="SHARE", help="Chance of meeting the deadline.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="Accelerator or node to look at; may be repeated.")
]
NodeText = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Of these alone: `8x A100-SXM-80GB over 8x HDR`; may be repeated."),
]
ProcessorName = Annotated[
    str | None, typer.Option("--processor", metavar="NAME", help="Of the nodes, to be checked: `EPYC 9654`.")
]
Contracts = Annotated[
    list[str] | None, typer.Option("--contract", metavar="|".join(CONTRACTS), help="To look at; may be repeated.")
]
Hours = Annotated[
    float | None,
    typer.Option("--hours-per-year", metavar="H", help="For which a cluster of your own would train: priced as well."),
]
Largest = Annotated[int, typer.Option("--largest", metavar="NODES", min=1, max=_LARGEST, help="Nodes to look at.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the simulations.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the proposal as an HTML page.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Say how a figure comes about.")]


def command(
    run_files: RunFiles,
    deadline: Deadline = None,
    budget: Budget = None,
    confidence: Confidence = "90%",
    only: Only = None,
    node: NodeText = None,
    processor: ProcessorName = None,
    contract: Contracts = None,
    hours_per_year: Hours = None,
    largest: Largest = 1024,
    prices: Prices = None,
    assume: Assume = None,
    seed: Seed = 1,
    plot: Plot = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Plans every kind of node on offer, with its failures and its price; proposes the cheapest that meets the goal."""
    check_writable(plot, "--plot")
    chance = option_value("--confidence", parse_share, confidence) or 0.0
    table = read_prices(prices)
    loaded = [load_run_file(path) for path in run_files]
    asked = [
        Asked(
            run_file=run_file,
            wish=_wish(run_file, deadline, budget, chance, spot="spot" in (contract or [])),
            offers=table.offers,
            only=_names(only or []),
            nodes=_nodes(node or [], run_file),
            processor=_processor(processor),
            contracts=_contracts(contract, owned=hours_per_year is not None or bool(node)),
            hours_per_year=_hours(hours_per_year),
            largest=largest,
            given=parse_assumptions(assume or []),
            seed=seed,
        )
        for run_file, _ in loaded
    ]
    sources = [source for _, source in loaded]
    if len(asked) == 1:
        _size_one(asked[0], sources[0], plot, explain, as_json=as_json, notes=table.notes)
    elif plot is None and explain is None:
        _size_many(asked, sources, as_json=as_json)
    else:
        raise UsageError("--plot and --explain are for one run file", hint="several are answered with one table")


def _size_many(asked: list[Asked], sources: list[Source], *, as_json: bool) -> None:
    with waiting("planning") as progress:
        shared = share_out(list(zip(asked, sources, strict=True)), progress)
    if as_json:
        typer.echo(json.dumps(shared_as_json(shared), indent=2))
    else:
        print_shared(shared, wide_console())


def _size_one(
    asked: Asked, source: Source, plot: Path | None, explain: str | None, *, as_json: bool, notes: tuple[str, ...]
) -> None:
    proposal = _proposal(asked, source)
    if plot is not None:
        write_proposal(plot, proposal)
    if explain is not None:
        typer.echo(explain_figure(proposal.figures, explain))
    elif as_json:
        typer.echo(json.dumps(proposal_as_json(proposal), indent=2))
    else:
        print_proposal(proposal, notes, wide_console())


def _proposal(asked: Asked, source: Source) -> Proposal:
    plans = Plans(asked.run_file, source)
    with waiting("planning") as progress:
        sized = size_up(asked, plans, progress)
        chosen = choose(sized.alternatives, asked.wish)
        if chosen is None:
            raise _unmet(sized.alternatives, asked.wish)
        plan = plans.exactly(chosen.candidate.cluster_text(chosen.num_nodes))
        run = sized.runs[chosen.candidate.node, chosen.num_nodes]
        details = details_of(chosen, run, plan, asked, plans)
        return Proposal(asked, chosen, sized, details, minimum_clusters(asked, plans))


def _unmet(alternatives: list[Alternative], wish: Wish) -> EnvironmentProblem:
    """No alternative meets the goal: what comes nearest, in cost or in time."""
    surest = max(alternatives, key=lambda item: (item.chance(wish), -item.cost.value))
    cheapest = min(alternatives, key=lambda item: item.cost.value)
    return EnvironmentProblem(
        f"none of {len(alternatives)} alternatives meets the goal; the surest is {surest.name} with a chance of "
        f"{surest.chance(wish):.0%} for {surest.cost.value:,.0f} USD, the cheapest {cheapest.name} for "
        f"{cheapest.cost.value:,.0f} USD",
        hint="allow more time, more money, more nodes (`--largest`) or a smaller `--confidence`",
    )


def _wish(run_file: RunFile, deadline: str | None, budget: str | None, confidence: float, *, spot: bool) -> Wish:
    return Wish(
        deadline_s=option_value("--deadline", parse_duration, deadline) or run_file.goal.deadline,
        budget_usd=option_value("--budget", parse_usd, budget) or run_file.goal.budget,
        confidence=confidence,
        spot=spot,
    )


def _names(written: list[str]) -> frozenset[str]:
    """Names of accelerators or nodes as the catalogue writes them."""
    return frozenset(map(_catalogue_name, written))


def _catalogue_name(written: str) -> str:
    if has("systems", written):
        return system(written).node
    return find_row(
        written, "nodes" if has("nodes", written) and not has("accelerators", written) else "accelerators"
    ).name


def _nodes(written: list[str], run_file: RunFile) -> tuple[Candidate, ...]:
    with said_by("--node"):
        return tuple(described_node(text, run_file.cluster.usd_per_accelerator_hour) for text in written)


def _processor(name: str | None) -> Processor | None:
    with said_by("--processor"):
        return None if name is None else find_processor(name)


def _contracts(written: list[str] | None, *, owned: bool) -> frozenset[str]:
    """On demand and spot, unless said otherwise; owning where its hours or nodes are given."""
    for name in written or []:
        if name not in CONTRACTS:
            raise UsageError(f"no contract `{name}`", place="--contract", hint=f"there are {', '.join(CONTRACTS)}")
    chosen = frozenset(written or ("on-demand", "spot"))
    return chosen | {"own"} if owned and not written else chosen


def _hours(asked: float | None) -> float:
    if asked is not None and not 1 <= asked <= MOST_HOURS_OF_A_YEAR:
        raise UsageError(f"{asked:g} hours in a year", place="--hours-per-year", hint="it has 8,760")
    return asked or 5000.0
