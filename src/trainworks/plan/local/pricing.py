"""Memory and step time of a layout, from a calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.plan.local.memory import predict_memory
from trainworks.plan.local.step_time import predict_step_time
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import MemoryTerms, StepTimeTerms

__all__ = ["LayoutPrediction", "Pricing", "pricing"]


@dataclass(frozen=True, slots=True)
class LayoutPrediction:
    """Predicted memory and time of a layout on its fullest rank."""

    memory: MemoryTerms
    step_time: StepTimeTerms


Pricing = Callable[[ResolvedLayout], LayoutPrediction]


def pricing(workload: Workload, shape: ModelShape, calibration: Calibration) -> Pricing:
    """Prices of this workload on this machine."""
    length = workload.data.sequence_length

    def price(layout: ResolvedLayout) -> LayoutPrediction:
        memory = predict_memory(
            shape,
            layout,
            sequence_length=length,
            precision=workload.precision,
            baseline_bytes=calibration.baseline_bytes,
            dropout=workload.model.dropout,
            device=calibration.device,
        )
        return LayoutPrediction(memory, predict_step_time(shape, layout, calibration, sequence_length=length))

    return price
