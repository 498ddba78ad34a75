"""A proposal on the terminal, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from trainworks.cli.options import option_errors
from trainworks.cli.size_tables import facts, own_or_rent, sheets
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import support_networks
from trainworks.plan.sizing.facility import nodes_per_rack
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, front
from trainworks.plan.sizing.result import SHARED_WEEKS, Proposal, SharedCapacity
from trainworks.plan.trace import tornado
from trainworks.report.explain import trace_json, trace_lines
from trainworks.report.network_drawing import network_svg
from trainworks.report.parts import fact_table, note_lines, plain_table, print_parts, title
from trainworks.report.proposal_page import ProposalPage, Sheet, write_proposal_page
from trainworks.report.scatter import Dot
from trainworks.units import DAY_S, format_duration, format_usd

__all__ = ["print_proposal", "print_shared", "proposal_as_json", "shared_as_json", "write_proposal"]

_SHARED_ROWS = 10
_NARROW = 120
"""Columns of a terminal below which tables leave out what they can spare."""


def print_proposal(proposal: Proposal, console: Console) -> None:
    """What is proposed and why, what else there is, and everything that goes with it."""
    parts: list[Sequence[RenderableType]] = [[fact_table(facts(proposal))]]
    parts.append([title("why"), *(Text(f"- {reason}") for reason in proposal.reasons)])
    parts += [_printed(sheet, narrow=console.width < _NARROW) for sheet in sheets(proposal)]
    lines = own_or_rent(proposal.details.ownership, proposal.request)
    parts.append([title("own or rent"), *(Text(line) for line in lines)])
    parts.append(note_lines([*proposal.details.plan.notes, *proposal.request.price_notes]))
    print_parts(parts, console)


def _printed(sheet: Sheet, *, narrow: bool) -> list[RenderableType]:
    """A table whose last column alone is wrapped."""
    shown = [index for index, head in enumerate(sheet.heads) if not (narrow and head in sheet.spared)]
    table = plain_table(*(sheet.heads[index] for index in shown))
    for row in sheet.rows:
        table.add_row(*(Text(row[index]) for index in shown))
    return [title(sheet.title), table, *([Text(sheet.about)] if sheet.about else [])]


def proposal_as_json(proposal: Proposal) -> dict[str, Any]:
    """Everything that the tables show, in base units, and every figure with its inputs."""
    details, goal = proposal.details, proposal.request.goal
    return {
        "proposal": _as_json(proposal.chosen, goal),
        "reasons": proposal.reasons,
        "alternatives": [_as_json(item, goal) for item in proposal.sized.alternatives],
        "not_proposed": [asdict(item) for item in proposal.sized.skipped],
        "smallest": [
            {
                "accelerator": item.accelerator.name,
                "count": item.count,
                "run_time_s": item.run_time_s,
                "usd_per_hour": item.usd_per_hour,
            }
            for item in proposal.minima
        ],
        "layout": details.plan.best[0].model_dump(mode="json"),
        "networks": [
            {
                "over": item.option.over,
                "step_time_s": item.best.step_time_s,
                "exposed_s": item.exposed_s,
                "enough": item is details.enough,
            }
            for item in details.fabrics
        ],
        "hosts": [asdict(item) for item in details.findings],
        "storage": [{"storage": item.name, "enough": item.enough, "reason": item.reason} for item in details.storage],
        "figures": {figure.name: trace_json(figure) for figure in proposal.figures},
        "notes": details.plan.notes,
    }


def _as_json(item: Alternative, goal: SizingGoal) -> dict[str, Any]:
    return {
        "node": item.candidate.node,
        "num_nodes": item.num_nodes,
        "accelerators": item.accelerators,
        "spares": item.spares,
        "contract": item.contract,
        "seller": item.seller,
        "p50_s": item.p50_s,
        "p90_s": item.p90_s,
        "chance": item.chance(goal) if goal.deadline_s else None,
        "cost_usd": item.cost.value,
        "meets_goal": item.meets(goal),
    }


def write_proposal(plot: Path, proposal: Proposal) -> None:
    """Write the page, atomically."""
    with option_errors("--plot", plot):
        write_proposal_page(plot, _page(proposal))


def _drawing(design: NetworkDesign | None) -> str:
    if design is None:
        return ""
    return network_svg(design, support_networks(design, nodes_per_rack=nodes_per_rack(design.cluster)))


def _page(proposal: Proposal) -> ProposalPage:
    chosen, details, best = proposal.chosen, proposal.details, front(proposal.sized.alternatives)
    return ProposalPage(
        title=proposal.request.run_file.name,
        facts=facts(proposal),
        reasons=proposal.reasons,
        dots=[
            Dot(
                item.p90_s / DAY_S,
                item.cost.value,
                f"{item.name}: {format_duration(item.p90_s)}, {format_usd(item.cost.value)}",
                front=item in best,
                chosen=item is chosen,
            )
            for item in proposal.sized.alternatives
        ],
        sheets=[*sheets(proposal)],
        terms_s=details.plan.best[0].terms_s,
        finishes_s=list(chosen.outcome.wall_s),
        shares=chosen.outcome.shares(),
        deadline_s=proposal.request.goal.deadline_s,
        cost=chosen.cost,
        swings=tornado(chosen.cost),
        drawing=_drawing(details.network),
        owning=own_or_rent(details.ownership, proposal.request),
        traces=["\n".join(trace_lines(figure)) for figure in proposal.figures],
        notes=list(details.plan.notes),
    )


def print_shared(shared: SharedCapacity, console: Console) -> None:
    """One row for every kind of node."""
    promise = Text(f"promise: {shared.promise}; {SHARED_WEEKS} weeks of starts replayed")
    table = plain_table("nodes", "used", "spare", "wait of 90 %", "USD a week", "node and what one job of each takes")
    for item in shared.clusters[:_SHARED_ROWS]:
        answer = item.answer
        table.add_row(
            f"{answer.nodes.value:,.0f}",
            f"{answer.utilisation.value:.0%}",
            f"{answer.spare_share.value:.0%}",
            format_duration(answer.wait.value),
            "no offer" if item.usd_per_week is None else format_usd(item.usd_per_week).removesuffix(" USD"),
            f"{item.candidate.node}: " + ", ".join(f"{name} {_shared_job(*job)}" for name, job in item.jobs.items()),
        )
    print_parts([[promise], [table], [Text(f"not {node}: {why}") for node, why in shared.skipped.items()]], console)


def _shared_job(nodes: int, seconds: float) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''} for {format_duration(seconds)}"


def shared_as_json(shared: SharedCapacity) -> dict[str, Any]:
    """Everything that the table shows, in base units."""
    return {
        "promise": shared.promise,
        "clusters": [
            {
                "node": item.candidate.node,
                "nodes": item.answer.nodes.value,
                "accelerators": item.answer.capacity.value,
                "mean_load": item.answer.load.mean.value,
                "utilisation": item.answer.utilisation.value,
                "spare_share": item.answer.spare_share.value,
                "wait_p90_s": item.answer.wait.value,
                "usd_per_week": item.usd_per_week,
                "jobs": {name: {"nodes": count, "run_time_s": time} for name, (count, time) in item.jobs.items()},
            }
            for item in shared.clusters
        ],
        "not_proposed": shared.skipped,
    }
