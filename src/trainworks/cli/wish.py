"""What a job asks its engine for, in a line."""

from __future__ import annotations

from trainworks.jobs.ticket import Ticket
from trainworks.units import format_bytes, format_duration

__all__ = ["wish"]


def wish(ticket: Ticket) -> str:
    """`2 node(s) of 8 h100, at most 1h`."""
    node = ticket.node
    fewest, most = ticket.min_nodes, ticket.max_nodes
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    parts = [f"{node.cores:g} cores"] if node.cores else []
    parts += [f"{node.accelerators} {node.accelerator or 'accelerators'}"] if node.accelerators else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    limit = f", at most {format_duration(ticket.time_limit_s)}" if ticket.time_limit_s else ", no time limit"
    return f"{number} node(s) of {', '.join(parts) or 'anything'}{limit}"
