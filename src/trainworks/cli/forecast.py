"""What `run` and `submit` print about a run before it starts elsewhere, or costs money."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.runs import PreparedRun


def show_forecast(prepared: PreparedRun, times: int, console: Console) -> None:
    """Print the plan of a job for another cluster, and the expected cost of so many jobs where there is a price."""
    from trainworks.report.forecast import cost_text
    from trainworks.report.rendering.renderer import build_document
    from trainworks.report.rendering.text import print_document

    if prepared.resolved.forecast is not None:
        print_document(build_document(prepared.resolved.forecast), console)
    if times and (cost := prepared.expected_cost(times if prepared.spec.array else 1)) is not None:
        console.print(f"expected cost: {cost_text(cost)}", highlight=False, markup=False, soft_wrap=True)
