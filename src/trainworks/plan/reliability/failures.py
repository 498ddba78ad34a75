"""What fails in a job, how often, and what a failure costs."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.plan.trace import Traced, fact

_SYNCHRONOUS = fact("checkpoint write", 0.0, "s", source="checkpoints are synchronous")
_NO_NOTICE = fact("notice", 0.0, "s", source="none given")
_NO_WAIT = fact("wait for capacity", 0.0, "s", source="none given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failure rates of a job, and the cost of each failure; times in seconds."""

    num_nodes: Traced
    node_mttf: Traced
    """Mean time to a failure that takes the node away for repair."""
    save: Traced
    """C: time that training stops for each checkpoint."""
    restart: Traced
    repair: Traced
    detection: Traced
    """Time from a failure until its detection."""
    other_mttf: Traced | None = None
    """Mean time of the job to a failure that leaves all nodes usable."""
    capacity_life: Traced | None = None
    """Mean life of preemptible capacity."""
    notice: Traced = _NO_NOTICE
    """Warning before the capacity is taken; long enough for a checkpoint, no work is lost."""
    capacity_wait: Traced = _NO_WAIT
    """Mean wait for new capacity, without accelerators."""
    write: Traced = _SYNCHRONOUS
    """Time from the stall until the checkpoint can be restored."""

    @property
    def saves_before_preemption(self) -> bool:
        """True if the notice is long enough for a checkpoint."""
        return self.capacity_life is not None and self.notice.value >= self.save.value + self.write.value
