"""Other layouts of a run, priced by the planner with the rates that the run was calibrated with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainworks.config.layout import ANY_LAYOUT, ModelSupport, ResolvedLayout, divisors
from trainworks.config.run_file import Workload
from trainworks.plan.run.pricing import LayoutPrediction, Pricing
from trainworks.plan.run.remedies import as_written, changed_layout
from trainworks.record.model_shape import ModelShape
from trainworks.record.step_time import StepTimeTerms

_LEAST_GAIN = 0.02
"""Share of a step below which another layout is not worth a restart."""
_LARGER_BATCH = 4
"""Factor of the larger global batch that small steps are compared with."""


def compute_s(terms: StepTimeTerms) -> float:
    """Forward, backward and head of a step, recomputation included."""
    return terms.forward_s + terms.backward_s + terms.recompute_s + terms.head_s


@dataclass(frozen=True, slots=True)
class PricedLayout:
    """Another layout of the same ranks and global batch that fits their memory."""

    layout: ResolvedLayout
    predicted: LayoutPrediction
    step_ratio: float
    """Predicted step time relative to that of the run's layout; below 1 it is faster."""
    compute_ratio: float
    """The same of forward and backward alone."""

    def saves_s(self, steps_s: float, *, of_s: float) -> float:
        """Predicted gain over steps that took `steps_s`, at most the time `of_s` that its cause cost."""
        return min((1 - self.step_ratio) * steps_s, of_s)

    @property
    def setting(self) -> str:
        """The layout as a run file has it."""
        fields = as_written(self.layout).items()
        texts = (f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields)
        return f"layout: {{{', '.join(texts)}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrices:
    """Prices of the layouts of one run, near its own `layout`.

    `price` gives memory and step time of a layout, of which a rank may use `limit_bytes`. `search` finds the best
    layouts of these ranks, the best first. `support` is that of the model by the worker.
    """

    price: Pricing
    workload: Workload
    shape: ModelShape
    layout: ResolvedLayout
    limit_bytes: float
    search: Callable[[], Sequence[ResolvedLayout]]
    support: ModelSupport = ANY_LAYOUT

    @property
    def now(self) -> LayoutPrediction:
        """Prediction for the layout of the run."""
        return self.price(self.layout)

    def best_change(self, changes: Iterable[Mapping[str, Any]]) -> PricedLayout | None:
        """The fastest of these changes of the layout that fits and is at least 2 % faster; None without one."""
        changed = (changed_layout(self.workload, self.shape, self.layout, each, self.support) for each in changes)
        return self._fastest(layout for layout in changed if layout is not None)

    def best_layout(self) -> PricedLayout | None:
        """The fastest layout that the search finds, if it is at least 2 % faster; None without one."""
        return self._fastest(self.search())

    def larger_micro_batch(self) -> PricedLayout | None:
        """The fastest larger micro-batch with the same global batch."""
        per_rank = self.layout.micro_batch * self.layout.grad_accum_steps
        sizes = [size for size in divisors(per_rank) if size > self.layout.micro_batch]
        return self.best_change({"micro_batch": size} for size in sizes)

    def larger_batch_ratios(self) -> tuple[float, float]:
        """Predicted compute, and optimizer step, per token with a global batch four times as large, relative to now."""
        larger = self.layout.model_copy(update={"micro_batch": _LARGER_BATCH * self.layout.micro_batch})
        now, then = self.now.step_time, self.price(larger).step_time
        return compute_s(then) / (_LARGER_BATCH * compute_s(now)), 1 / _LARGER_BATCH

    def _fastest(self, layouts: Iterable[ResolvedLayout]) -> PricedLayout | None:
        now = self.now.step_time
        found = []
        for layout in layouts:
            then = self.price(layout)
            ratio = then.step_time.total_s / now.total_s
            if then.memory.total_bytes <= self.limit_bytes and ratio <= 1 - _LEAST_GAIN:
                found.append(PricedLayout(layout, then, ratio, compute_s(then.step_time) / compute_s(now)))
        return min(found, key=lambda one: one.step_ratio, default=None)
