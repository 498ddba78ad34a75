"""Checks of what earlier jobs have seen of a node."""

from __future__ import annotations

from datetime import UTC, datetime

from trainworks.measure.health.check import ASSUMPTION, Reading, check
from trainworks.measure.health.node import NodeView, NotApplicable
from trainworks.recover.node_history import AVOID_FROM, NodeHistory
from trainworks.units import DAY_S


@check(
    limit=f"score below {AVOID_FROM:g}: its failure rate over the one that the plan assumes",
    action="drain the node and test it; have it replaced (RMA) if its hardware fails again",
    source=ASSUMPTION,
    severity="warning",
)
def history(node: NodeView) -> Reading:
    """The hardware of the node has not failed often under the jobs of the job store."""
    found = node.history(node.name, next((gpu.name for gpu in node.driver.gpus), None))
    if found is None:
        raise NotApplicable("no job of this node is on record")
    figure = f"{found.failures} failures in {found.held_s / DAY_S:.1f} days under jobs, score {found.score:.1f}"
    return Reading(figure, [f"{figure}{_last(found)}"] if found.score >= AVOID_FROM else ())


def _last(found: NodeHistory) -> str:
    if found.last_failed_at is None:
        return ""
    return f", last `{found.last_cause}` at {datetime.fromtimestamp(found.last_failed_at, UTC):%Y-%m-%d %H:%M} UTC"
