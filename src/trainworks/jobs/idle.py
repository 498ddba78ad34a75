"""Whether a job uses what it holds: samples of every node in, a verdict out. Pure.

A stretch is what lies between two samples of a node. It is quiet if nothing in it was used, by the limits of the run
file (`job.idle`); a figure that is not known, a stretch that is far too long (the agent was stopped) and an agent
that began anew count as use. A node is quiet for the stretches up to now without one of use in between; a job, for as
long as the node that is so for the shortest time. One stretch of use on one node ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.config.engines import Idle
from trainworks.record.usage import NodeUsage

_LATE_S = 10.0
"""An agent may be so late on a busy machine, for a stretch of any length; else three times that length."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """A node that uses nothing, from one sample to the newest."""

    first: NodeUsage
    last: NodeUsage

    @property
    def seconds(self) -> float:
        """How long."""
        return self.last.monotonic_s - self.first.monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """How long a job has used nothing, and what little that was, on the node that used most."""

    seconds: float
    accelerator: float | None
    """Share of the time in which the busiest accelerator computed; None without accelerators."""
    cpu_cores: float
    io_bytes_per_s: float


def is_quiet(earlier: NodeUsage, later: NodeUsage, limits: Idle, *, on_accelerators: bool) -> bool:
    """Whether nothing was used between two samples."""
    seconds = later.monotonic_s - earlier.monotonic_s
    longest_s = limits.sample_every_s + max(3 * limits.sample_every_s, _LATE_S)
    watched = earlier.agent_pid == later.agent_pid and 0 < seconds <= longest_s
    if not watched or later.disk_waits != earlier.disk_waits:
        return False
    rates = [(_rate(earlier.cpu_s, later.cpu_s, seconds), limits.cpu)]
    rates.append((_rate(earlier.io_bytes, later.io_bytes, seconds), limits.io))
    rates.append((_rate(earlier.network_bytes, later.network_bytes, seconds), limits.network))
    if on_accelerators:
        rates.append((_rate(earlier.accelerator_s, later.accelerator_s, seconds), limits.accelerator))
    return all(rate is not None and rate <= limit for rate, limit in rates)


def quiet_after(before: Quiet | None, sample: NodeUsage, limits: Idle, *, on_accelerators: bool) -> Quiet:
    """How a node stands after one more sample; the same sample again changes nothing."""
    if before is None:
        return Quiet(sample, sample)
    if sample == before.last:
        return before
    goes_on = is_quiet(before.last, sample, limits, on_accelerators=on_accelerators)
    return Quiet(before.first if goes_on else sample, sample)


def idleness(nodes: Sequence[Quiet | None], *, at_most_s: float) -> Idleness:
    """How a job stands.

    Args:
        nodes: all of its nodes; None for one without a report.
        at_most_s: since the job runs, or made its last step.
    """
    known = [node for node in nodes if node is not None]
    seconds = min([node.seconds for node in known] + [at_most_s]) if len(known) == len(nodes) else 0.0
    used = [_mean(node) for node in known if node.seconds > 0]
    accelerators = [share for share, _, _ in used if share is not None]
    return Idleness(
        seconds=max(0.0, seconds),
        accelerator=max(accelerators, default=None),
        cpu_cores=max((cores for _, cores, _ in used), default=0.0),
        io_bytes_per_s=max((rate for _, _, rate in used), default=0.0),
    )


def _mean(node: Quiet) -> tuple[float | None, float, float]:
    first, last, seconds = node.first, node.last, node.seconds
    share = _rate(first.accelerator_s, last.accelerator_s, seconds)
    return share, (last.cpu_s - first.cpu_s) / seconds, _rate(first.io_bytes, last.io_bytes, seconds) or 0.0


def _rate(earlier: float | None, later: float | None, seconds: float) -> float | None:
    return None if earlier is None or later is None else (later - earlier) / seconds
