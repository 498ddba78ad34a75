"""What a rank held when it ran out of memory, as it, or its node agent, measured it."""

from __future__ import annotations

from trainworks.config.quantities import Spec

__all__ = ["MemoryAtFailure"]


class MemoryAtFailure(Spec):
    """One rank at the moment of the failure; None is what could not be measured."""

    limited_by: str
    """What was exhausted: `accelerator`, `address space`, `cgroup` or `machine`."""
    peak_bytes: int
    """Largest so far: allocated on an accelerator, resident on a CPU."""
    held_bytes: int | None = None
    """At the failure, in the same sense."""
    requested_bytes: int | None = None
    """Size of the allocation that failed."""
    free_bytes: int | None = None
    """What the limit still left."""
    reserved_bytes: int | None = None
    """Of an accelerator, by the caching allocator, allocated ones included."""
    weights_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    """Of the tensors themselves, on this rank's device."""

    @property
    def room_bytes(self) -> int:
        """What the rank could have held at most: held + free; the peak where nothing else is known."""
        held = self.peak_bytes if self.held_bytes is None else self.held_bytes
        return max(self.peak_bytes, held + (self.free_bytes or 0))

    @property
    def needed_bytes(self) -> int:
        """What it would have held after the allocation that failed; it may have wanted more after that."""
        held = self.peak_bytes if self.held_bytes is None else self.held_bytes
        return max(self.peak_bytes, held + (self.requested_bytes or 0))
