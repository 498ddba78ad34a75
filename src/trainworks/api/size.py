"""Propose what to buy or rent for a run: every kind of node planned, priced and simulated with its failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, overload

from trainworks.api.anchor import trainable
from trainworks.api.cost import Assumptions, parse_assumptions, read_prices
from trainworks.api.inputs import (
    Progress,
    Quantity,
    RunInput,
    argument,
    check_number,
    load_run,
    money,
    no_progress,
    seconds,
    share,
)
from trainworks.api.planning.described import workload_of
from trainworks.api.sizing.details import Planned, add_alternatives, details_of, share_capacity, smallest_clusters
from trainworks.api.sizing.plans import PlanCache, powers, smallest
from trainworks.api.sizing.reliability import may_meet
from trainworks.backends.registry import backend_class
from trainworks.catalog.catalog import find_row, has, load_catalog, system
from trainworks.catalog.catalog import processor as find_processor
from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.catalog.facts import PYTORCH_VENDORS
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.plan.cost.owning import MOST_HOURS_OF_A_YEAR
from trainworks.plan.cost.renting import CONTRACTS as RENTAL_CONTRACTS
from trainworks.plan.cost.renting import contracts
from trainworks.plan.sizing.candidates import (
    Candidate,
    Skipped,
    candidates,
    described_node,
    existing_nodes,
    node_counts,
    offers_in,
    without_units,
)
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, choose
from trainworks.plan.sizing.result import (
    Proposal,
    SharedCapacity,
    SizedAlternatives,
    SizingRequest,
    least_usd,
    may_afford,
)

CONTRACTS = (*RENTAL_CONTRACTS, "own")
_USUAL_HOURS_PER_YEAR = 5000.0
_USUAL_LARGEST = 1024
_TRIED_COUNTS = 3
"""Numbers of nodes to try of each kind, from the smallest that may meet the deadline."""


@overload
def size(run: RunInput, **options: Any) -> Proposal: ...


@overload
def size(run: list[Any], **options: Any) -> SharedCapacity: ...


def size(  # type: ignore[misc]  # the overloads leave the options to this signature
    run: RunInput | list[Any],
    *,
    settings: Settings = NO_SETTINGS,
    deadline: Quantity | None = None,
    budget: Quantity | None = None,
    confidence: Quantity = 0.9,
    only: Iterable[str] = (),
    node: Iterable[str] = (),
    processor: str | None = None,
    contract: Iterable[str] = (),
    region: str | None = None,
    require: Iterable[str] = (),
    hours_per_year: float | None = None,
    largest: int | None = None,
    engine: str | None = None,
    prices: Path | str | None = None,
    assume: Assumptions = (),
    seed: int = 1,
    without_learning: bool = False,
    progress: Progress = no_progress,
) -> Proposal | SharedCapacity:
    """Propose the cheapest cluster that meets a goal, with alternatives and reasons.

    Args:
        run: a run file, or its path; a list of them shares one cluster.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        deadline: time until the run is done; the goal of the run file when left out.
        budget: for the run, `50000 USD` or `500万元`, or a number in USD; the goal of the run file when left out.
        confidence: least chance of meeting the deadline.
        only: names of the accelerators or nodes to consider; all when empty.
        node: descriptions of nodes to consider instead of those of the catalogue: `8x A100-SXM-80GB over 8x HDR`.
        processor: host CPU to validate.
        contract: `on-demand`, `reserved`, `spot` or `own`; on demand and spot when empty.
        region: of the offers to rent, `eu` or `us-east-1`; all when left out.
        require: what the provider of an offer has to state, `ISO 27001`: the column `compliance` of `prices`.
        hours_per_year: hours of training in a year on an owned cluster, which is priced as well.
        largest: largest cluster to consider, in nodes; 1,024 when left out, or all of a cluster that is there.
        engine: scheduler that will run the job, `slurm` or `kubernetes`; that of the run file when left out. The run is
            then sized for Trainworks' own trainer, and the written run file can be submitted.
        prices: offers from a CSV file, or `skypilot`; those of the catalogue when left out.
        assume: numbers that replace assumptions, by name.
        seed: of the simulations.
        without_learning: leave out what stored measurements taught.
        progress: called with the share of the work that is done.

    Raises:
        UsageError: an argument is not valid, or a run file has no workload.
        EnvironmentProblem: no cluster meets the goal.

    >>> proposal = size("examples/plan-llama-2-7b.yaml", deadline="3d", only=["H100-SXM-80GB"], contract=["on-demand"])
    >>> proposal.chosen.candidate.base.accelerator
    'H100-SXM-80GB'
    """
    check_number("hours_per_year", hours_per_year, 1, MOST_HOURS_OF_A_YEAR)
    with argument("processor"):
        part = None if processor is None else find_processor(processor)
    table, names, descriptions = read_prices(prices), tuple(contract), tuple(node)
    offers = table.offers if region is None else offers_in(table.offers, region)
    if not offers and region is not None:
        known = ", ".join(sorted({offer.region for offer in table.offers} - {"not given"}))
        raise ArgumentError(f"no offer is in `{region}`", argument="region", hint=f"offers are in {known}")
    for rule in require:
        offers = tuple(offer for offer in offers if rule.casefold() in map(str.casefold, offer.compliance))
        if not offers:
            hint = "the catalogue knows no certificates: give `prices` a table with the column `compliance`"
            raise ArgumentError(f"no offer states `{rule}`", argument="require", hint=hint)
    given = parse_assumptions(assume)
    wanted = _contract_names(names, owned=hours_per_year is not None or bool(descriptions))
    common = {
        "offers": offers,
        "price_notes": table.notes,
        "only": frozenset(map(_catalogue_name, only)),
        "processor": part,
        "contracts": wanted,
        "hours_per_year": hours_per_year or _USUAL_HOURS_PER_YEAR,
        "largest": largest or _USUAL_LARGEST,
        "given": given,
        "seed": seed,
        "learning": not without_learning,
    }

    def request(run_file: RunFile, source: Source | None) -> SizingRequest:
        paid = money("budget", budget) or run_file.goal.budget
        goal = SizingGoal(
            deadline_s=seconds("deadline", deadline) or run_file.goal.deadline,
            budget_usd=usd_of(paid, given),
            exchange=exchange_for(paid, run_file.cluster.hour_price, given=given),
            confidence=share("confidence", confidence) or 0.0,
            spot="spot" in names,
            to_buy=names == ("own",),
        )
        price = usd_of(run_file.cluster.hour_price, given)
        with argument("node"):
            nodes = tuple(described_node(text, price) for text in descriptions)
        is_there = run_file.cluster.engine not in ("local", "described") and run_file.cluster.of is not None
        if is_there and not (nodes or names or common["only"]):
            nodes = (existing_nodes(described_cluster(run_file, source), price),)
            common["largest"] = largest or nodes[0].there
        return SizingRequest(run_file=run_file.as_planned, goal=goal, nodes=nodes, **common)  # type: ignore[arg-type]

    if isinstance(run, list):
        loaded = [_on_scheduler(*load_run(each, settings), engine) for each in run]
        return share_capacity([(request(run_file, source), source) for run_file, source in loaded], progress)
    run_file, source = _on_scheduler(*load_run(run, settings), engine)
    return _propose(request(run_file, source), run_file, source, progress)


def _on_scheduler(run_file: RunFile, source: Source | None, engine: str | None) -> tuple[RunFile, Source | None]:
    """The run on its scheduler, checked as `submit` does; a cluster that the run file has there stays described."""
    own = run_file.cluster.engine
    name = engine or own
    if engine is None and own in ("local", "described"):
        return run_file, source
    with argument("engine") if engine else nullcontext():
        backend = None if name in ("local", "described") else backend_class(name)
    if backend is None or backend.needs_program:
        hint = "name the scheduler of the nodes: `slurm` or `kubernetes`"
        if name == "local":
            hint += "; `trainworks submit` runs a goal on this machine as it is"
        message = f"`{name}` is not a scheduler that trains a workload"
        if engine is None:
            raise UsageError(message, place=source.place(("cluster",)) if source else None, hint=hint)
        raise ArgumentError(message, argument="engine", hint=hint)
    update: dict[str, object] = {"engine": name} | ({"of": None} if own in ("local", "described") else {})
    run_file = run_file.model_copy(update={"cluster": run_file.cluster.model_copy(update=update)})
    trainable(run_file, source)
    try:
        backend.check_trains(run_file.cluster)
    except UsageError as error:
        error.place = source.place(("cluster", name)) if source else None
        raise
    return run_file, source


def _propose(request: SizingRequest, run_file: RunFile, source: Source | None, progress: Progress) -> Proposal:
    plans = PlanCache(request.run_file, source, learning=request.learning)
    sized = _alternatives(request, plans, progress)
    chosen = choose(sized.alternatives, request.goal)
    if chosen is None:
        raise _unmet(sized.alternatives, request.goal)
    plan = plans.exactly(chosen.candidate.cluster(chosen.num_nodes))
    details = details_of(chosen, sized.runs[chosen.candidate.node, chosen.num_nodes], plan, request, plans)
    written = source.parse() if source and not source.settings else run_file.model_dump(mode="json", exclude_unset=True)
    return Proposal(request, chosen, sized, details, smallest_clusters(request, plans), written)


def _catalogue_name(name: str) -> str:
    """The name of an accelerator or node in the catalogue."""
    if has("systems", name):
        return system(name).node
    is_node = has("nodes", name) and not has("accelerators", name)
    return find_row(name, "nodes" if is_node else "accelerators").name


def _contract_names(names: Sequence[str], *, owned: bool) -> frozenset[str]:
    for name in names:
        if name not in CONTRACTS:
            hint = f"there are {', '.join(CONTRACTS)}"
            raise ArgumentError(f"unknown contract `{name}`", argument="contract", hint=hint)
    if names:
        return frozenset(names)
    return frozenset({"on-demand", "spot"} | ({"own"} if owned else set()))


def _unmet(alternatives: list[Alternative], goal: SizingGoal) -> EnvironmentProblem:
    """The error where no alternative meets the goal, with those that come nearest."""
    surest = max(alternatives, key=lambda item: (item.chance(goal), -item.price_usd(goal)))
    cheapest = min(alternatives, key=lambda item: item.price_usd(goal))
    to_buy = " to buy" if goal.to_buy else ""
    chance = f"with a chance of {surest.chance(goal):.0%} " if goal.deadline_s else ""
    others = (
        "" if surest is cheapest else (f"the surest is {surest.name} {chance}for {_rounded(surest, goal)}{to_buy}, ")
    )
    return EnvironmentProblem(
        f"none of {len(alternatives)} alternatives meets the goal; {others}the cheapest is {cheapest.name} for "
        f"{_rounded(cheapest, goal)}{to_buy}",
        hint="allow more time, more money, more nodes (`--largest`) or a smaller `--confidence`",
    )


def _rounded(alternative: Alternative, goal: SizingGoal) -> str:
    return f"{alternative.price_usd(goal) * goal.exchange.per_usd:,.0f} {goal.exchange.currency}"


def _alternatives(request: SizingRequest, plans: PlanCache, progress: Progress) -> SizedAlternatives:
    """Try every kind of node at the smallest number that meets the goal, and at a few more."""
    precision = workload_of(request.run_file).precision
    if request.nodes:
        nodes = [each for each in request.nodes if precision in each.one.accelerator.peak_flops_per_s]
        skipped = [without_units(each.node, precision) for each in request.nodes if each not in nodes]
    else:
        nodes, skipped = candidates(load_catalog(), request.offers, precision=precision, only=request.only)
    if request.has_scheduler:
        without = [each for each in nodes if each.one.accelerator.vendor not in PYTORCH_VENDORS]
        skipped += [Skipped(each.node, "Trainworks has no worker for it") for each in without]
        nodes = [each for each in nodes if each not in without]
    nodes = _affordable(nodes, request, plans, skipped)
    sized = SizedAlternatives([], skipped, {})
    planned: list[Planned] = []
    for index, candidate in enumerate(nodes):
        progress(index / len(nodes), f"planning {candidate.node}")
        if reason := _try_candidate(candidate, request, plans, planned):
            sized.skipped.append(Skipped(candidate.node, reason))
    add_alternatives(planned, request, sized)
    if not sized.alternatives:
        raise _no_alternative(sized.skipped)
    return sized


def _affordable(
    nodes: Sequence[Candidate], request: SizingRequest, plans: PlanCache, skipped: list[Skipped]
) -> list[Candidate]:
    """The kinds of node that may do the work for the budget: those that would at the peak of their accelerators."""
    budget_usd = request.goal.budget_usd
    if budget_usd is None:
        return [*nodes]
    least = {each.node: least_usd(each, request, plans.flops(each.one)) for each in nodes}
    priced = {node: usd for node, usd in least.items() if usd < math.inf}  # the others have no price to compare
    too_dear = {node for node, usd in priced.items() if usd > budget_usd}
    reason = "its accelerators at their peak already cost more than the budget"
    skipped += [Skipped(node, reason) for node in priced if node in too_dear]
    if priced and len(too_dear) == len(priced):
        node, money_text = min(priced, key=lambda name: priced[name]), request.goal.exchange.format
        raise EnvironmentProblem(
            f"a budget of {money_text(budget_usd)} is too small: even at the peak of its accelerators the cheapest "
            f"kind of node, {node}, costs {money_text(priced[node])}",
            hint="allow more money, or leave `--budget` out to see what the run costs",
        )
    return [each for each in nodes if each.node not in too_dear]


def _no_alternative(skipped: Sequence[Skipped]) -> EnvironmentProblem:
    reasons = Counter(item.reason for item in skipped).most_common(3)
    counted = "; ".join(f"{count} of them: {reason}" for reason, count in reasons)
    return EnvironmentProblem(
        f"no kind of node trains this workload in time ({counted or 'none is offered'})",
        hint="allow more nodes with `--largest`, a later `--deadline`, or other nodes with `--only`",
    )


def _try_candidate(candidate: Candidate, request: SizingRequest, plans: PlanCache, planned: list[Planned]) -> str:
    """Plan a candidate at the numbers of nodes to compare; returns the reason where there are none."""
    owned = candidate.there is not None or (candidate.for_sale and "own" in request.contracts)
    if not owned and (reason := _why_not_offered(candidate, request.contracts)):
        return reason
    largest = candidate.largest or min(request.largest, candidate.there or request.largest)
    least = _least(candidate, largest, request, plans)
    if least is None:
        return _why_not(candidate, largest, plans)
    if not owned and not candidate.offers_of(least):
        return "several are needed, and no offer says what network joins them"
    paid_for = 0
    for count in _counts(candidate, least, largest, request):
        plan = plans.on(candidate.cluster(count))
        if plan is not None:
            planned.append(Planned(candidate, count, plan))
            paid_for += not owned and may_afford(candidate, plan, request)
        if request.goal.is_budget_alone and paid_for == _TRIED_COUNTS:
            break  # from the largest on: fewer nodes are slower
    return ""


def _least(candidate: Candidate, largest: int, request: SizingRequest, plans: PlanCache) -> int | None:
    """The smallest number of nodes to consider that may meet the goal; None where none may."""
    too_few = _too_few(candidate, request, plans.flops(candidate.one))

    def meets(count: int) -> bool:
        if count <= too_few:
            return False
        plan = plans.on(candidate.cluster(count))
        return plan is not None and may_meet(plan, request)

    least = smallest(largest, meets, too_many=lambda count: plans.is_too_large(candidate.cluster(count)))
    if least is None and candidate.there == largest and meets(largest):  # no power of two, and not three of them
        return largest
    return least


def _counts(candidate: Candidate, least: int, largest: int, request: SizingRequest) -> list[int]:
    """Numbers of nodes to compare, from the smallest that may do; from the largest on where only money limits them."""
    if request.goal.is_budget_alone:
        return [*(count for count in reversed(powers(largest)) if count > least), least]
    counts = {*node_counts(largest), *([largest] if candidate.there == largest else [])}
    tried = _TRIED_COUNTS if request.goal.deadline_s else _TRIED_COUNTS + 2
    return sorted(count for count in counts if count >= least)[:tried]


def _why_not_offered(candidate: Candidate, wanted: frozenset[str]) -> str:
    """The reason why a kind of node cannot be rented under any of these contracts; empty if it can."""
    if not candidate.offers:
        return "it can be bought, and not rented"
    if not wanted.isdisjoint(each for offer in candidate.offers for each in contracts(offer)):
        return ""
    rented = " or ".join(sorted(wanted - {"own"}))
    return f"no offer is {rented}" if rented else "it can be rented, and not bought"


def _too_few(candidate: Candidate, request: SizingRequest, flops: float) -> int:
    """Largest number of nodes that misses the deadline even at the peak of every accelerator."""
    if request.goal.deadline_s is None:
        return 0
    part = load_catalog().accelerators[candidate.base.accelerator]
    peak = part.peak_flops_per_s[workload_of(request.run_file).precision] * candidate.base.accelerators
    return int(flops / (peak * request.goal.deadline_s))


def _why_not(candidate: Candidate, largest: int, plans: PlanCache) -> str:
    if candidate.largest == 1:
        return "one node is too few, and no offer says what network joins several"
    counts = powers(largest)
    usable = next((n for n in reversed(counts) if not plans.is_too_large(candidate.cluster(n))), counts[-1])
    if plans.on(candidate.cluster(usable)) is None:
        return plans.why_not(candidate.cluster(usable)).splitlines()[0]
    is_limited = usable < counts[-1]
    limit = ", and the batch and the model do not divide among more" if is_limited else ""
    tried = largest if candidate.there == largest else node_counts(largest)[-1]
    usable = usable if is_limited else tried
    return f"{usable:,} node{'s' if usable > 1 else ''} would take too long{limit}"
