"""Memory of a rank: its terms as planned, and what a rank or its node agent measured when it ran out."""

from __future__ import annotations

from trainworks.config.spec import Spec


class MemoryTerms(Spec):
    """Peak memory of the fullest rank by term; the terms add up."""

    baseline_bytes: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    working_bytes: int = 0
    """Memory of the block being computed: gathered or cast weights, recomputed activations, gradients of them."""
    allocator_bytes: int = 0
    """Memory that the allocator reserves and cannot reuse."""
    checkpoint_bytes: int
    """Staging copy of an asynchronous checkpoint."""

    @property
    def allocated_bytes(self) -> int:
        """Tensors at the peak: states, activations, logits and what the block being computed takes."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.working_bytes

    @property
    def reserved_bytes(self) -> int:
        """Memory that the allocator takes for them."""
        return self.allocated_bytes + self.allocator_bytes

    @property
    def total_bytes(self) -> int:
        """Sum of the terms."""
        return self.baseline_bytes + self.reserved_bytes + self.checkpoint_bytes


class MemoryAtFailure(Spec):
    """Memory of one rank at the failure; None if it could not be measured."""

    limited_by: str
    """Exhausted resource: `accelerator`, `address space`, `cgroup` or `machine`."""
    peak_bytes: int
    """Peak: allocated on an accelerator, resident on a CPU."""
    held_bytes: int | None = None
    """Same quantity at the failure."""
    requested_bytes: int | None = None
    """Size of the allocation that failed."""
    free_bytes: int | None = None
    """Free memory below the limit."""
    reserved_bytes: int | None = None
    """Reserved on an accelerator by the caching allocator, allocated bytes included."""
    weights_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    """Size of the tensors on the device of the rank."""

    @property
    def room_bytes(self) -> int:
        """Most that the rank could have allocated: held + free, or the peak if those are unknown."""
        held = self.peak_bytes if self.held_bytes is None else self.held_bytes
        return max(self.peak_bytes, held + (self.free_bytes or 0))

    @property
    def needed_bytes(self) -> int:
        """Memory with the failed allocation; the rank may have needed more later."""
        held = self.peak_bytes if self.held_bytes is None else self.held_bytes
        return max(self.peak_bytes, held + (self.requested_bytes or 0))
