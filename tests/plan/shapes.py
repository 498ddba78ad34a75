"""Models and workloads that planning is tested with."""

from __future__ import annotations

from typing import Any

from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.config.model import Model
from trainworks.config.run_file import Workload
from trainworks.plan.shapes.transformer import shape_of_model
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.model_shape import ModelShape


def shape(vocabulary: int = 1000, sequence_length: int = 128, **dimensions: Any) -> ModelShape:
    """A small llama with changes."""
    model = Model.model_validate({"layers": 4, "hidden": 64, "heads": 4} | dimensions)
    return shape_of_model(model, vocabulary=vocabulary, sequence_length=sequence_length)


def layout(dp_shard: int = 1, dp_replicate: int = 1, *, micro_batch: int = 1, accumulate: int = 1) -> ResolvedLayout:
    """Data parallel ranks."""
    ranks = dp_shard * dp_replicate
    degrees = Layout(dp_shard=dp_shard, dp_replicate=dp_replicate)
    return resolve_layout(
        degrees, world_size=ranks, global_batch=ranks * micro_batch * accumulate, micro_batch=micro_batch
    )


def workload(**changes: Any) -> Workload:
    """32 sequences of 128 tokens per step."""
    fields = {
        "task": "causal-lm",
        "model": {"layers": 4, "hidden": 64, "heads": 4},
        "data": {"source": "python-stdlib", "sequence_length": 128},
        "global_batch": 32,
        "train_for": "300 steps",
    }
    return Workload.model_validate(fields | changes)


def calibration(**changes: Any) -> Calibration:
    """A machine of round figures: 1 TFLOP/s products, 10 GB/s memory and network, no latency."""
    measured = Calibration(
        device="cpu",
        precision="fp32",
        num_ranks=1,
        threads_per_rank=1,
        gemms=tuple(GemmRate(m=1, n=1, k=1, flops_per_s=1e12) for _ in range(3)),
        attention_flops_per_s=1e12,
        memory_bytes_per_s=1e10,
        optimizer_params_per_s=1e9,
        op_overhead_s=0.0,
        all_reduce_latency_s=0.0,
        all_reduce_bytes_per_s=1e10,
        baseline_bytes=10**8,
        seconds=2.0,
    )
    return measured.model_copy(update=changes)
