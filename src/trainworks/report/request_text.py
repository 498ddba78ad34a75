"""The resources a job requests, in a line."""

from __future__ import annotations

from trainworks.jobs.job_spec import JobSpec
from trainworks.units import format_bytes, format_duration


def request_text(spec: JobSpec) -> str:
    """`2 node(s) of 8 h100, at most 1h`."""
    node, least, most = spec.node, spec.min_nodes, spec.max_nodes
    number = f"{most}" if least == most else f"{least} to {most}"
    parts = [f"{node.cores:g} cores"] if node.cores else []
    parts += [f"{node.accelerators} {node.accelerator or 'accelerators'}"] if node.accelerators else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    limit = f", at most {format_duration(spec.time_limit_s)}" if spec.time_limit_s else ", no time limit"
    return f"{number} node(s) of {', '.join(parts) or 'anything'}{limit}"
