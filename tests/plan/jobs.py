"""Jobs on described clusters, and layouts for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.plan.families import CONFIGS
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.models import preset
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape

A100S = "4 nodes of 8x A100-SXM-80GB over 8x HDR"
H100S = "16 nodes of DGX H100"
BATCH = 256
UNFUSED = Software(attention="unfused", overlap=False, gradient_bytes=2)


def known(name: str) -> ModelShape:
    """The shape of a model of the catalogue."""
    return shape_of_hf_config(preset(name))


def tiny(family: str = "llama") -> ModelShape:
    """A model of 3 layers and 6 heads."""
    return shape_of_hf_config(CONFIGS[family])


def job(model: ModelShape | str = "llama2-7b", cluster: str = A100S, **changes: Any) -> TrainingJob:
    """2048 tokens of a model in bf16 with current software."""
    shape = known(model) if isinstance(model, str) else model
    fields = {"sequence_length": 2048, "precision": "bf16", "software": Software()} | changes
    return TrainingJob(shape=shape, cluster=parse_cluster(cluster), **fields)


JOBS = {
    "dense": job(),
    "old": job("megatron-gpt-18.4b", precision="fp16", software=UNFUSED),
    "experts": job("qwen3-30b-a3b", H100S),
    "latent": job("deepseek-v2", H100S, precision="fp8", sequence_length=4096),
    "encoder": job("bert-large", sequence_length=512),
    "rack": job("llama3-8b", "64x GB200", sequence_length=8192),
}


def layouts(global_batch: int = BATCH, **degrees: Any) -> Layouts:
    """Layouts of a batch of 256 sequences."""
    return Layouts.of(global_batch=global_batch, **degrees)


def random_layouts(n: int, *, seed: int = 0) -> Layouts:
    """Layouts with every degree and option, that divide a batch of 256 sequences; small enough for any of `JOBS`."""
    rng = np.random.default_rng(seed)

    def powers(most: int, *, up_to: Any = None) -> np.ndarray:
        drawn = 2.0 ** rng.integers(0, most + 1, n)
        return drawn if up_to is None else np.minimum(drawn, up_to)

    dp, cp, tp, pp = powers(5), powers(2), powers(3), powers(3)
    zero = rng.integers(0, 4, n)
    interleave = np.where(pp > 1, powers(1), 1.0)
    return layouts(
        dp=dp,
        dp_shard=np.where(zero == 3, powers(5, up_to=dp), np.where(zero > 0, dp, 1.0)),
        zero=zero,
        tp=tp,
        sequence_parallel=np.where(tp > 1, rng.integers(0, 2, n), 0),
        pp=pp,
        interleave=interleave,
        cp=cp,
        ep=powers(5, up_to=dp * cp * tp),
        micro_batch=powers(3, up_to=BATCH / dp),
        recompute=rng.choice([int(kind) for kind in Recompute], n),
        zero_bubble=np.where((pp > 1) & (interleave == 1), rng.integers(0, 2, n), 0),
        offload=rng.integers(0, 2, n),
        offload_optimizer=rng.integers(0, 2, n),
    )
