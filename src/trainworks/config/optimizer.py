"""The optimizer of a workload and its learning-rate schedule."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainworks.config.quantities import TrainForField
from trainworks.config.spec import FieldError, Spec
from trainworks.errors import UsageError, suggest

_DECAY_SHARE = 0.2


class ParameterGroup(Spec):
    """Parameters that learn at a rate, or with a weight decay, of their own."""

    parameters: str
    """Pattern of their names: `*embed*`, `*.lora_B.weight`."""
    lr: Annotated[float, Field(ge=0)] | None = None
    """Peak of their learning rate, in place of `optimizer.lr`; 0 keeps them as they are."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of all of them, also of biases and norms; by default that of the other parameters."""

    @model_validator(mode="after")
    def _changes_something(self) -> ParameterGroup:
        if self.lr is None and self.weight_decay is None:
            raise FieldError(f"the group `{self.parameters}` has neither `lr` nor `weight_decay`")
        return self


class Optimizer(Spec):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "adamw-8bit", "muon", "lion", "sgd"] = "adamw"
    """`adamw-8bit` keeps the moments of matrices in 8 bits. `muon` updates hidden matrices, which ranks that have parts
    of them exchange, and AdamW the rest. `lion` needs a third to a tenth of AdamW's rate. `sgd` has a momentum of
    the first of `betas`."""
    lr: Annotated[float, Field(gt=0)] = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse-sqrt", "range-test"] = "cosine"
    """Course of the learning rate after the warm-up; `range-test` raises it from `lr * min_lr_ratio` to `lr`."""
    warmup: TrainForField | None = None
    """Linear warm-up, in steps."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Final learning rate divided by the peak; with `range-test` the first one."""
    decay_share: Annotated[float, Field(gt=0, le=1)] = _DECAY_SHARE
    """Share of the steps, at their end, in which `wsd` (warm-up, stable, decay) lowers the rate linearly."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with a rate or a weight decay of their own, which the schedule scales alike. The first group whose
    pattern fits a name takes the parameter."""

    def group_of(self, name: str) -> int | None:
        """The first of `groups` whose pattern fits the name of a parameter."""
        fits = (index for index, group in enumerate(self.groups) if fnmatchcase(name, group.parameters))
        return next(fits, None)

    def check_groups(self, names: Collection[str]) -> None:
        """Refuse a group that none of these trained parameters belongs to.

        Raises:
            UsageError: there is one; the hint has names that are like its pattern.
        """
        taken = {self.group_of(name) for name in names}
        for index, group in enumerate(self.groups):
            if index not in taken:
                earlier = any(fnmatchcase(name, group.parameters) for name in names)
                why = "earlier groups take all that it fits" if earlier else "no trained parameter has such a name"
                listed = f"names are like `{min(names)}`; a pattern needs `*` for what it leaves out" if names else None
                others = suggest(group.parameters, sorted(names), otherwise=listed, count=3)
                raise UsageError(
                    f"`optimizer.groups` has no parameter for `{group.parameters}`: {why}",
                    hint="put it first" if earlier else others,
                )

    @model_validator(mode="after")
    def _check_schedule(self) -> Optimizer:
        if self.decay_share != _DECAY_SHARE and self.schedule != "wsd":
            raise FieldError(f"`decay_share` is of `schedule: wsd`, and the schedule is {self.schedule}")
        if self.schedule == "range-test" and not 0 < self.min_lr_ratio < 1:
            raise FieldError("`schedule: range-test` needs a `min_lr_ratio` above 0 and below 1")
        return self

    @model_validator(mode="after")
    def _one_rate_with_muon(self) -> Optimizer:
        if self.groups and self.name == "muon":
            raise FieldError("`optimizer.groups` does not go with `name: muon`", hint="take `adamw`, `lion` or `sgd`")
        return self

    @model_validator(mode="after")
    def _warmup_in_steps(self) -> Optimizer:
        if self.warmup is not None and self.warmup.unit != "steps":
            raise FieldError(f"`warmup` must be in steps, got `{self.warmup}`")
        return self
