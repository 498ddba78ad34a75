"""What `run` and `submit` print about a run before it starts elsewhere, or costs money."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.launching.prepared_run import PreparedRun


def show_forecast(prepared: PreparedRun, times: int, console: Console) -> None:
    """Print the plan of a job for another cluster, and the expected cost of so many jobs where there is a price."""
    if prepared.resolved.forecast is not None:
        from trainworks.report.rendering.renderer import build_document
        from trainworks.report.rendering.text import print_document

        print_document(build_document(prepared.resolved.forecast), console)
    if times and (cost := prepared.expected_cost(times if prepared.spec.array else 1)) is not None:
        from trainworks.report.forecast import cost_text

        console.print(f"expected cost: {cost_text(cost)}", highlight=False, markup=False, soft_wrap=True)


def confirmed(prepared: PreparedRun, times: int, console: Console) -> bool:
    """Whether the user agrees to submit so many of these jobs; True without a terminal, where no question is asked."""
    if not _is_at_a_terminal(console):
        return True
    from trainworks.report.request_text import request_text

    jobs = f"{times} jobs, each requests" if times > 1 else "the job requests"
    console.print(f"{prepared.backend.name}: {jobs} {request_text(prepared.spec)}", highlight=False)
    return typer.confirm("submit?", default=True, err=True)


def _is_at_a_terminal(console: Console) -> bool:
    return sys.stdin.isatty() and console.is_terminal
