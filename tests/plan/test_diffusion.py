"""Diffusion transformers: sizes of diffusers' models, FLOPs of their layers, and what text and conditioning cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measure.rows import run_row
from tests.plan.jobs import H100S, job, known, layouts
from trainworks.api.anchor import trainable
from trainworks.api.planning.described import planned_model
from trainworks.catalog.models import preset
from trainworks.config.finetune import Adapter
from trainworks.config.load import parse_run_file
from trainworks.errors import UsageError
from trainworks.measure.scoring import PredictedRun, predict_run
from trainworks.plan.flops import hardware_flops_per_token, model_flops_per_token
from trainworks.plan.job import unit_of
from trainworks.plan.layouts import Recompute
from trainworks.plan.parameters import layers_parameters, num_sublayers, resized, stage_parameters
from trainworks.plan.run.adapters import adapter_parameters
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.space import Space
from trainworks.record.model_shape import ModelShape

HEADS = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2}
DIT = {"_class_name": "DiT", **HEADS, "in_channels": 3, "out_channels": 6, "sample_size": 16, "num_embeds_ada_norm": 10}
SD3 = {"_class_name": "SD3Transformer2DModel", **HEADS, "num_layers": 3, "sample_size": 16, "joint_attention_dim": 24}
SD3 |= {"caption_projection_dim": 64, "pooled_projection_dim": 12}
FLUX = {"_class_name": "FluxTransformer2DModel", **HEADS, "num_single_layers": 3, "in_channels": 12}
FLUX |= {"joint_attention_dim": 20, "pooled_projection_dim": 9, "image_size": 256}
WAN = {"_class_name": "WanTransformer3DModel", **HEADS, "ffn_dim": 100, "text_dim": 24, "freq_dim": 32}
WAN |= {"in_channels": 5, "out_channels": 7, "image_size": 128, "image_height": 64, "frames": 9}
CONFIGS = {"dit": DIT, "sd3": SD3, "flux": FLUX, "wan": WAN}
DIFFUSERS = {
    749_826_464: preset("dit-xl-2") | {"_class_name": "DiTTransformer2DModel"},
    298_136: DIT | {"_class_name": "DiTTransformer2DModel", "num_layers": 3, "attention_bias": False},
    8_056_627_520: preset("sd3-medium")
    | {"num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432, "qk_norm": "rms_norm"},
    11_891_178_560: preset("flux-dev") | {"guidance_embeds": False},
    542_700: FLUX | {"guidance_embeds": True},
    134_052: WAN | {"cross_attn_norm": False},
}
"""Configs by the parameters that diffusers 0.42.1 gives them on the meta device; the presets' own are in the
catalogue."""
RUN = """\
name: video
workload:
  task: diffusion
  model: {preset: wan2.1-1.3b}
  data: {image_size: 832, image_height: 480, frames: 81}
  global_batch: 32
  train_for: 100 steps
cluster: 4x p5.48xlarge
"""


def shape(name: str) -> ModelShape:
    return shape_of_hf_config(CONFIGS[name])


@pytest.mark.parametrize(("parameters", "config"), DIFFUSERS.items())
def test_a_config_has_the_parameters_that_diffusers_builds(parameters: int, config: dict[str, Any]) -> None:
    assert shape_of_hf_config(config).num_parameters == parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_flops_are_those_of_a_model_of_the_same_layers(name: str) -> None:
    """Products of a forward pass as PyTorch counts them, and weights, of a model that is written out in a test."""
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    from torch.utils.flop_counter import FlopCounterMode

    from tests.plan.denoiser import Denoiser

    config, batch = CONFIGS[name], 2
    with torch.device("meta"):
        model = Denoiser(config)
        inputs = model.inputs(batch, shape(name))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    length = shape(name).max_sequence_length
    assert shape(name).num_parameters == sum(parameter.numel() for parameter in model.parameters())
    forward = batch * length * model_flops_per_token(shape(name), length) / 3
    assert forward == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_dit_has_its_published_multiply_adds() -> None:
    """118.64 G for 256 patches (Peebles and Xie 2023, table 4)."""
    assert 256 * model_flops_per_token(known("dit-xl-2"), 256) / 6e9 == pytest.approx(118.64, rel=0.002)


def test_a_sample_has_the_patches_of_its_resolution_and_frames() -> None:
    wan = preset("wan2.1-14b")
    assert shape_of_hf_config(wan).max_sequence_length == 21 * 30 * 52
    assert known("sd3-medium").max_sequence_length == 64 * 64 + 77 + 256
    high = shape_of_hf_config(wan | {"image_size": 1280, "image_height": 720, "frames": 1})
    assert (high.max_sequence_length, unit_of(high), unit_of(known("wan2.1-14b"))) == (45 * 80, "images", "videos")
    assert shape_of_hf_config(preset("flux-dev") | {"image_size": 512}).max_sequence_length == 32 * 32 + 512


def test_sublayers_are_counted_by_kind() -> None:
    """Two a layer; one where attention and MLP stand side by side, three with cross-attention."""
    assert [num_sublayers(shape(name)) for name in CONFIGS] == [4, 6, 2 * 2 + 3, 3 * 2]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cut_model_keeps_its_share_of_every_part(name: str) -> None:
    whole = known({"dit": "dit-xl-2", "sd3": "sd3-medium", "flux": "flux-dev", "wan": "wan2.1-14b"}[name])
    half = resized(whole, layers=whole.layers // 2)
    assert layers_parameters(half) == pytest.approx(layers_parameters(whole) / 2, rel=0.03)


def test_stages_together_have_all_layers_and_modulation_is_whole_on_every_rank() -> None:
    dit, two = known("dit-xl-2"), layouts(dp=[1, 1], tp=[1, 2])
    whole, cut = stage_parameters(dit, two, np.array([28.0, 28.0]), embeddings=0.0).dense
    assert whole == layers_parameters(dit)
    assert dit.diffusion is not None
    assert 2 * cut - whole == pytest.approx(dit.diffusion.modulation)


DEGREES = layouts(
    global_batch=128,
    dp=[128, 64, 64, 64, 128],
    tp=[1, 2, 1, 1, 1],
    cp=[1, 1, 2, 1, 1],
    pp=[1, 1, 1, 2, 1],
    recompute=[0, 0, 0, 0, 2],
    zero=[3, 3, 3, 1, 3],
    dp_shard=[128, 64, 64, 64, 128],
)


@pytest.mark.parametrize("name", ["sd3-medium", "flux-dev", "wan2.1-14b"])
def test_every_degree_splits_a_diffusion_transformer(name: str) -> None:
    """tp, cp and recomputation leave fewer activations; recomputation takes a forward more."""
    one = job(name, H100S, sequence_length=known(name).max_sequence_length)
    times, memories = one.step_times(DEGREES), one.memories(DEGREES)
    activations = memories.activations_bytes
    assert (activations[[1, 2, 4]] < activations[0]).all()
    assert memories.weights_bytes[3] < memories.weights_bytes[0] * 128
    assert times.tp_s[1] > 0 and times.cp_s[2] > 0 and times.bubble_s[3] > 0
    assert 0.8 < times.recompute_s[4] / times.forward_s[4] <= 1
    assert np.isfinite(times.total_s).all()
    peak = one.cluster.accelerator.peak_flops_per_s["bf16"]
    assert (times.total_s > 128 * one.flops_per_sequence / (128 * peak)).all()


def test_text_beside_the_patches_costs_time_and_memory_in_proportion() -> None:
    """A cross-attention to 512 tokens has a sixth of the FLOPs of a layer of 1,560 patches, and more traffic."""
    wan = known("wan2.1-1.3b")
    assert wan.diffusion is not None
    without = wan.model_copy(update={"diffusion": wan.diffusion.model_copy(update={"cross_layers": 0})})
    one = layouts(global_batch=128, dp=128)
    ours, plain = (job(each, H100S, sequence_length=1560) for each in (wan, without))
    more = ours.step_times(one).forward_s / plain.step_times(one).forward_s
    assert 1.1 < more[0] < 1.6
    assert 1.1 < (ours.memories(one).activations_bytes / plain.memories(one).activations_bytes)[0] < 1.6
    flops = (hardware_flops_per_token(each, 1560, Recompute.FULL) for each in (wan, without))
    assert next(flops) > 1.1 * next(flops)


def test_context_parallelism_needs_no_pairs_of_chunks_without_a_mask() -> None:
    """32,760 tokens divide by 8, and not by 16; those of an encoder are not cut at all."""
    wan = Space(job("wan2.1-14b", H100S, sequence_length=32760), 128, 128, fixed={"tp": 2, "pp": 1})
    assert {mesh["cp"] for mesh in wan.meshes(lambda reason, mesh: None)} == {1, 2, 4, 8}
    bert = Space(job("bert-large", H100S, sequence_length=512), 128, 128, fixed={"tp": 2, "pp": 1})
    assert {mesh["cp"] for mesh in bert.meshes(lambda reason, mesh: None)} == {1}


WAN_ROW = run_row(
    id="wan21-002",
    source_key="wan21",
    source="NVIDIA-NeMo/Megatron-Bridge examples/models/wan/performance-summary.md",
    model="Wan2.1-14B",
    **dict.fromkeys(("layers", "hidden", "heads", "vocab", "micro_batch", "zero_stage", "recompute", "interleave"), ""),
    **dict.fromkeys(("gpus_per_node", "inter_node_net", "dp", "seqpar", "step_time_s_eval"), ""),
    seq_len="37440",
    gpu="GB200-192GB",
    num_gpus="32",
    tp="1",
    pp="1",
    cp="2",
    precision="bf16",
    tflops_per_gpu="899.62",
    tflops_kind="model",
    usable_for_step_eval="vision",
)


def test_a_published_row_is_predicted_with_nothing_fitted_to_its_kind() -> None:
    """64 videos of 37,440 patches: 3 L (12 T h^2 + 4 S h^2 + 4 T^2 h + 4 T S h + 4 T h f) FLOPs, and their ends."""
    predicted = predict_run(WAN_ROW)
    assert isinstance(predicted, PredictedRun)
    t, s, h, f = 37440, 512, 5120, 13824
    layer = 12 * t * h * h + 4 * s * h * h + 4 * t * t * h + 4 * t * s * h + 4 * t * h * f
    assert predicted.run.step_time_s == pytest.approx(3 * 40 * layer * 64 / (32 * 899.62e12), rel=1e-3)
    assert abs(predicted.step_time_s / predicted.run.step_time_s - 1) < 0.25


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SD3 | {"dual_attention_layers": [0, 1]}, "a diffusion transformer with `dual_attention_layers"),
        (WAN | {"image_dim": 1280, "added_kv_proj_dim": 64}, "a diffusion transformer with `image_dim: 1280`"),
        (WAN | {"frames": 8}, "8 frames are not 1 and a multiple of 4"),
        (WAN | {"patch_size": [2, 2, 2]}, "patches of"),
        (DIT | {"sample_size": 15}, "a latent of 15 x 15 has no whole patches of 2"),
        (DIT | {"image_size": 100}, "the VAE makes 8 pixels one, which do not divide 100 x 100"),
        (DIT | {"num_attention_heads": 0}, "has `num_attention_heads: 0`"),
        ({"_class_name": "UNet2DConditionModel"}, "model type `UNet2DConditionModel` cannot be planned yet"),
    ],
)
def test_what_is_not_planned_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shape_of_hf_config(config)


def test_adapters_are_refused() -> None:
    with pytest.raises(UsageError, match="adapters of diffusion transformers cannot be planned yet"):
        adapter_parameters(shape("wan"), Adapter(rank=4))


def test_a_run_is_refused_and_a_plan_is_not(tmp_path: Path) -> None:
    run_file, source = parse_run_file(RUN, name="run.yaml")
    model = planned_model(run_file, source)
    assert (model.sequence_length, model.steps) == (32760, 100)
    with pytest.raises(UsageError, match="can be planned for a described cluster, not trained") as refused:
        trainable(run_file, source)
    assert str(refused.value.place).startswith("run.yaml:3")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("diffusion", "image-classification", "needs `data.image_size`, and no other size"),
        ("wan2.1-1.3b", "vit-b16", "`vit-b16` does not denoise latents, and `task` is diffusion"),
        ("wan2.1-1.3b", "resnet-50", "`resnet-50` does not denoise latents, and `task` is diffusion"),
        ("image_size: 832, ", "", "`image_height` needs `image_size`, the width"),
        ("100 steps", "1B tokens", "`task: diffusion` has no tokens to count"),
    ],
)
def test_a_run_file_that_does_not_fit_its_task_is_refused(before: str, after: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned_model(*parse_run_file(RUN.replace(before, after), name="run.yaml"))
    text = RUN.replace("diffusion", "causal-lm").replace("{image_size: 832, image_height: 480, frames: 81}", "{}")
    with pytest.raises(UsageError, match=r"`wan2\.1-1\.3b` denoises latents, and `task` is causal-lm"):
        planned_model(*parse_run_file(text.replace("data: {}", "data: {sequence_length: 64}"), name="run.yaml"))
