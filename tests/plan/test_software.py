"""Software as an input: what a plan makes of what is said of the program that trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.jobs import job
from trainworks.config.software import TrainingSoftware
from trainworks.plan.layouts import Layouts
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.software import Software, describe_software, planned_software, worker_software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import prior_of

LAYOUT = Layouts.of(global_batch=64, dp=64, zero=3, dp_shard=64, micro_batch=1)


def planned(**block: object) -> Software:
    return planned_software(TrainingSoftware.model_validate(block), compiled=None)


def step_s(precision: str = "bf16", **block: object) -> float:
    return float(_job(precision, **block).step_times(LAYOUT).total_s[0])


def _job(precision: str = "bf16", **block: object) -> TrainingJob:
    return job("llama3-8b", precision=precision, sequence_length=8192, software=planned(**block), cluster="64x H100")


def memory_bytes(**block: object) -> float:
    return float(_job(**block).memories(LAYOUT).allocated_bytes[0])


@pytest.mark.parametrize("framework", ["torchtitan 2025", "PyTorch FSDP 2024", "Hugging Face Trainer"])
def test_a_compiled_program_is_faster_and_smaller_than_an_eager_one(framework: str) -> None:
    assert 1.05 < step_s(framework=framework, compiled=False) / step_s(framework=framework, compiled=True) < 1.4
    assert memory_bytes(framework=framework, compiled=False) > memory_bytes(framework=framework, compiled=True)


def test_scales_of_rows_cost_a_part_of_what_8_bits_save() -> None:
    whole, blocks, rows = (
        step_s("fp8", framework="torchtitan", fp8_recipe=recipe) for recipe in ("tensorwise", "blockwise", "rowwise")
    )
    assert whole == blocks < rows < step_s("bf16", framework="torchtitan")
    assert step_s("fp8", framework="torchtitan") == whole


def test_the_recipe_of_8_bits_does_not_change_16_bits() -> None:
    assert step_s("bf16", fp8_recipe="rowwise") == step_s("bf16")


def test_a_newer_attention_kernel_is_faster() -> None:
    times = [step_s(framework="torchtitan", attention=kernel) for kernel in ("unfused", "flash-2", "cudnn", "flash-3")]
    assert times == sorted(times, reverse=True)


def test_attention_under_a_mask_computes_all_pairs_but_writes_no_scores() -> None:
    def seconds(kernel: str) -> float:
        of = job("llama2-7b", sequence_length=4096, software=planned(framework="Hugging Face 2024", attention=kernel))
        return float(of.step_times(LAYOUT).total_s[0])

    assert 1.1 * seconds("flash-2") < seconds("efficient") < 0.9 * seconds("unfused")


def test_gelu_of_hugging_face_s_gpt_2_is_written_out_and_llama_has_none() -> None:
    def step(model: str, framework: str) -> tuple[float, float]:
        of = job(
            model, sequence_length=1024, software=planned(framework=framework, compiled=False, attention="flash-2")
        )
        alone = Layouts.of(global_batch=8, micro_batch=8)
        return float(of.step_times(alone).total_s[0]), float(of.memories(alone).allocated_bytes[0])

    names = ("Hugging Face 2024", "PyTorch 2024")
    (slow, large), (fast, small) = (step("gpt2-xl", name) for name in names)
    assert slow > 1.1 * fast
    assert large - small == pytest.approx(48 * 8 * 1024 * 3 * 2 * 6400, rel=0.01)  # 3 values of 2 bytes more
    assert step("llama3-8b", names[0]) == step("llama3-8b", names[1])


def test_an_older_release_is_slower() -> None:
    assert step_s(framework="Megatron-LM 2021") > step_s(framework="Megatron-LM 2023") > step_s(framework="Megatron-LM")


@pytest.mark.parametrize(
    ("framework", "compiled"),
    [("fms-fsdp 2024", True), ("torchtitan 2025", True), ("fms-fsdp 2023", False), ("PyTorch FSDP 2024", False)],
)
def test_a_silent_pytorch_program_is_compiled_where_its_published_runs_are(framework: str, compiled: bool) -> None:
    assert planned(framework=framework).fused_kernels is compiled


@pytest.mark.parametrize(
    ("framework", "in_bf16", "in_fp16"),
    [("Megatron-LM", 4, 2), ("Megatron-DeepSpeed 2022", 6, 2), ("torchtitan", 4, 4), ("Trainworks", 4, 4)],
)
def test_megatron_sums_gradients_of_fp16_in_16_bits(framework: str, in_bf16: int, in_fp16: int) -> None:
    block = TrainingSoftware(framework=framework)
    found = [planned_software(block, compiled=None, precision=each).gradient_bytes for each in ("bf16", "fp16")]
    assert found == [in_bf16, in_fp16]


@pytest.mark.parametrize("framework", ["Megatron-LM", "MaxText"])
def test_kernels_that_a_program_fuses_itself_stay_fused(framework: str) -> None:
    assert planned(framework=framework, compiled=False).fused_kernels


def test_a_guess_of_the_compiler_widens_the_interval() -> None:
    def spread(**block: object) -> float:
        known = _job(framework="PyTorch FSDP", **block)
        shown = Shown.of(known.shape, "bf16", known.cluster.accelerator, {}, program=known.software.name)
        found = planned_programs(known.software, shown)
        return prior_of(replace(known, programs=found)).software

    assert spread() > 1.3 * spread(compiled=True)
    assert spread(compiled=True) == spread(compiled=False)


def test_trainworks_plans_as_its_own_worker() -> None:
    own = planned(framework="Trainworks", compiled=True)
    assert own == replace(worker_software("cuda", compiled=True), overlap=True)


def test_the_compiler_of_the_workload_holds_where_the_block_is_silent() -> None:
    assert planned_software(None, compiled=True).fused_kernels
    assert planned_software(TrainingSoftware(framework="DeepSpeed"), compiled=True).fused_kernels
    assert not planned_software(TrainingSoftware(compiled=False), compiled=True).fused_kernels


def test_what_was_said_and_what_was_assumed_are_told_apart() -> None:
    said = planned(framework="MaxText 2025", attention="cudnn")
    assert describe_software(said, "bf16") == "MaxText 2025, fused kernels, cudnn attention (assumed: compiled)"
    assert describe_software(said, "fp8").endswith("tensorwise scales (assumed: compiled, fp8_recipe)")
    every = planned(framework="torchtitan", compiled=False, attention="flash-3")
    assert describe_software(every, "bf16") == "torchtitan, a kernel per operation, flash-3 attention"
