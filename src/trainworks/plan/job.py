"""A job that can be planned, with any model, and the times of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients, Slowdowns
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.programs import mixture_nearness, mixture_quantile
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape
from trainworks.record.step_time import StepTimeTerms


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step by term, shape [n]; the terms add up."""

    forward_s: Array
    backward_s: Array
    recompute_s: Array
    head_s: Array
    """Embedding, logits and loss on the slowest stage."""
    tp_s: Array
    """Exposed tensor-parallel communication."""
    cp_s: Array
    ep_s: Array
    offload_s: Array
    """Offloading of activations that computing does not hide."""
    pp_s: Array
    """Exposed transfers between stages."""
    bubble_s: Array
    dp_s: Array
    """Exposed gradient and weight communication of the data-parallel group."""
    optimizer_s: Array
    host_s: Array
    """Work per step that no accelerator does: data, logging."""
    straggle_s: Array
    """Waiting for the slowest of many nodes."""

    @property
    def total_s(self) -> Array:
        """Sum of the terms."""
        total: Array = sum(_TERMS(self))
        return total

    def terms(self, index: int = 0) -> StepTimeTerms:
        """Time of one layout."""
        return StepTimeTerms(**{name: float(getattr(self, name)[index]) for name in _NAMES})

    @classmethod
    def mixed(cls, times: Sequence[StepTimes], shares: Sequence[float]) -> StepTimes:
        """Medians of the totals by their shares, with the terms of those programs that are near them."""
        logs = np.log([each.total_s for each in times])
        median = mixture_quantile(logs, shares, 0.5)
        weights = mixture_nearness(logs, shares, median) * np.exp(median - logs)
        return cls(*(np.sum(weights * np.stack(term), axis=0) for term in zip(*map(_TERMS, times), strict=True)))

    def take(self, chosen: NDArray[np.generic] | slice) -> StepTimes:
        """The times of the layouts at these positions, or where a mask is true."""
        return StepTimes(*(term[chosen] for term in _TERMS(self)))


_NAMES = tuple(field.name for field in fields(StepTimes))
_TERMS = attrgetter(*_NAMES)


def unit_of(shape: ModelShape | ConvNetShape) -> Literal["tokens", "images", "videos"]:
    """What the throughput of a model counts."""
    if not isinstance(shape, ConvNetShape) and not shape.patch_values:
        return "tokens"
    return "videos" if isinstance(shape, ModelShape) and shape.diffusion and shape.diffusion.frames > 1 else "images"


class AnyJob(Protocol):
    """Everything about a training job except its layout; an immutable dataclass, such as `TrainingJob` or `ConvJob`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    complication: ClassVar[float]
    """Share of the step that a layout has to save for each thing that it does beyond plain data parallelism."""
    context_pieces: ClassVar[int]
    """Pieces of a sequence per context-parallel rank; 2, one early and one late, balance a causal mask."""

    @property
    def shape(self) -> ModelShape | ConvNetShape:
        """The model."""

    @property
    def sequence_length(self) -> int:
        """Tokens of a sequence; 1 for the image of a convolutional network."""

    @property
    def precision(self) -> str:
        """Format of the products with weights."""

    @property
    def cluster(self) -> ClusterDescription:
        """Hardware that the job runs on."""

    @property
    def software(self) -> Software:
        """Framework that trains it."""

    @property
    def slowdowns(self) -> Slowdowns:
        """What measurements of this kind of cluster taught."""

    @property
    def largest_micro_batch(self) -> int:
        """Samples of one rank that a search tries at most."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence, or patches of an image; 1 for the image of a convolutional network."""

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs of one sample, forward and backward."""

    def runnable(self, layouts: Layouts) -> NDArray[np.bool_] | slice:
        """The layouts that the software can run."""

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout.

        Raises:
            UsageError: the accelerator cannot compute in the job's precision.
        """

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout."""
