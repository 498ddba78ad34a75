"""The optimizer of a workload and its learning-rate schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainworks.config.quantities import FieldError, TrainForField
from trainworks.config.spec import Spec


class Optimizer(Spec):
    """AdamW and its learning-rate schedule."""

    name: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: TrainForField | None = None
    """Linear warm-up, in steps."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Final learning rate divided by the peak."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0

    @model_validator(mode="after")
    def _warmup_in_steps(self) -> Optimizer:
        if self.warmup is not None and self.warmup.unit != "steps":
            raise FieldError(f"`warmup` must be in steps, got `{self.warmup}`")
        return self
