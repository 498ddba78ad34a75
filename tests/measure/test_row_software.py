"""Software of a measured run: what the words of a row say of its time and memory."""

from __future__ import annotations

import pytest

from trainworks.catalog.catalog import accelerator
from trainworks.catalog.models import preset
from trainworks.measure.measured_runs import read_run
from trainworks.measure.row_settings import read_programs
from trainworks.measure.scoring import PredictedRun, predict_memory, predict_run
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software, planned_software
from trainworks.plan.space import Fixed

LLAMA = {
    "model": "llama3-8b", "seq_len": "8192", "global_batch": "8", "micro_batch": "1", "gpu": "H100-SXM-80GB",
    "num_gpus": "8", "dp": "8", "tp": "1", "pp": "1", "zero_stage": "3", "recompute": "full", "precision": "bf16",
    "memory_gb_per_gpu": "40", "memory_kind": "peak allocated GiB", "source": "pytorch/torchtitan",
}  # fmt: skip


def memory(**changes: str) -> float:
    predicted = predict_memory({**LLAMA, **changes})
    assert isinstance(predicted, PredictedRun), predicted
    return predicted.memory_bytes


def software(zero: int = 1, tp: int = 1, pp: int = 1, **cells: str) -> Software:
    """The likeliest."""
    layout: Fixed = {"zero": zero, "tp": tp, "pp": pp, "sequence_parallel": 1}
    shape = shape_of_hf_config(preset(cells.get("model", "llama3-8b")))
    return read_programs(cells, shape, "bf16", accelerator(cells.get("gpu", "H100-SXM-80GB")), layout)[0][0]


@pytest.mark.parametrize(
    ("source", "native"),
    [
        ("pytorch/torchtitan", True),
        ("Lightning-AI/litgpt", True),
        ("NVIDIA/Megatron-LM", False),
        ("MaxText on H100", True),
        ("huggingface/nanotron", False),
    ],
)
def test_the_name_of_a_framework_decides_whose_parallelism_it_is(source: str, native: bool) -> None:
    assert software(source=source).native is native
    assert software(framework=source) == software(source=source)


def test_a_row_that_names_nothing_has_the_software_that_its_layout_suggests() -> None:
    assert software(zero=1, source="a table") == Software()
    assert software(zero=3, source="a table") == Software.of("torch")


@pytest.mark.parametrize(
    "words",
    [{"zero_stage": "3 (FSDP)"}, {"notes": "FSDP2"}, {"notes": "HSDP"}, {"source": "ZeRO"}, {"framework": "FSDP2"}],
)
@pytest.mark.parametrize(("zero", "tp", "pp"), [(1, 1, 1), (3, 1, 1), (3, 8, 16), (3, 1, 16)])
def test_a_word_about_sharding_names_no_program(words: dict[str, str], zero: int, tp: int, pp: int) -> None:
    assert software(zero, tp, pp, **words) == software(zero, tp, pp)


@pytest.mark.parametrize(("zero", "tp", "pp"), [(1, 1, 1), (3, 1, 1), (1, 8, 4)])
def test_a_row_of_a_new_model_that_names_no_program_is_priced_as_a_plan(zero: int, tp: int, pp: int) -> None:
    model = "llama3.1-70b"
    layout: Fixed = {"zero": zero, "tp": tp, "pp": pp, "sequence_parallel": 1}
    shape, part = shape_of_hf_config(preset(model)), accelerator("A100-SXM-80GB")
    row = dict(read_programs({"model": model}, shape, "bf16", part, layout))
    plan = planned_programs(planned_software(None, compiled=None), Shown.of(shape, "bf16", part, layout, model=model))
    assert [software for software, _ in plan] == list(row)[: len(plan)]
    ratios = [share / row[software] for software, share in plan]
    assert ratios == pytest.approx([ratios[0]] * len(plan))


def test_a_framework_that_is_named_counts_before_words_of_the_source() -> None:
    assert software(framework="MaxText 2024", source="compared with NVIDIA/Megatron-LM").framework == "jax"


@pytest.mark.parametrize("notes", ["torch.compile", "compiled", "chunked cross entropy", "pure bf16", "8-bit AdamW"])
def test_what_saves_memory_in_fact_saves_it_in_the_prediction(notes: str) -> None:
    assert memory(recompute="none", notes=notes) < memory(recompute="none", notes="eager")


def test_logits_of_eager_pytorch_take_fourteen_bytes_each() -> None:
    """8,192 tokens and 16,032 more columns."""
    more = memory(vocab="144288", compiled="no") - memory(compiled="no")
    logits = 8192 * (144_288 - 128_256)
    assert more == pytest.approx(14 * logits, rel=0.25)


def test_a_tensor_parallel_rank_has_all_logits_unless_the_loss_is_parallel() -> None:
    cut = {"dp": "1", "tp": "8", "zero_stage": "0", "source": "litgpt"}
    whole, parallel = (memory(**cut, notes=notes) for notes in ("", "loss parallel"))
    assert whole - parallel == pytest.approx(14 * 8192 * 128_256 * 7 / 8, rel=0.2)


@pytest.mark.parametrize(
    ("cells", "recipe"),
    [
        ({"precision": "MXFP8"}, "blockwise"),
        ({"precision": "FP8-CS"}, "tensorwise"),
        ({"precision": "fp8 rowwise"}, "rowwise"),
        ({"precision": "fp8", "fp8_recipe": "rowwise"}, "rowwise"),
        ({"precision": "fp8"}, "tensorwise"),
    ],
)
def test_the_recipe_of_8_bits_is_read_from_its_column_or_from_the_precision(cells: dict[str, str], recipe: str) -> None:
    assert software(**cells).fp8_recipe == recipe


def test_a_silent_row_of_ibm_s_fms_is_compiled_and_an_eager_one_is_not() -> None:
    assert software(source_key="fms-fsdp", zero_stage="3 (HSDP)").fused_kernels
    assert not software(source_key="fms-fsdp", compiled="no").fused_kernels
    assert not software(source_key="fms-fsdp", notes="eager").fused_kernels


@pytest.mark.parametrize(
    ("model", "source", "attention"),
    [
        ("gpt2", "HF, 4 accumulation", "unfused"),
        ("gpt2", "HF with flash attention 2", "flash-2"),
        ("gpt2", "torchtune", "flash-2"),
        ("llama2-7b", "HF, 4 accumulation", "flash-2"),
    ],
)
def test_hugging_face_writes_the_scores_of_plain_models_out(model: str, source: str, attention: str) -> None:
    assert software(model=model, source=source).attention == attention


def test_a_model_of_late_2023_was_trained_by_no_earlier_program() -> None:
    row = {"gpu": "A100-SXM-80GB", "source": "PyTorch"}
    assert software(model="llama-7b", **row).attention == "flash-1"
    assert software(model="llama2-7b", **row).attention == "flash-2"


@pytest.mark.parametrize(
    ("recompute", "kept"),
    [
        ("selective (save_qkv_proj)", "queries"),
        ("selective (save_dot_except_mlpwi)", "projections"),
        ("selective (SAVE_QKV_OUT_PROJ)", "projections"),
        ("selective (custom: qkv and out projections kept)", "projections"),
    ],
)
def test_a_remat_policy_names_what_is_kept(recompute: str, kept: str) -> None:
    assert software(framework="MaxText 2025", recompute=recompute).selective == kept


SINGLE = {
    "model": "llama3.2-3b", "seq_len": "4096", "global_batch": "2", "micro_batch": "2", "gpu": "A100-80GB",
    "num_gpus": "1", "dp": "1", "tp": "1", "pp": "1", "zero_stage": "0", "recompute": "none", "precision": "bf16",
}  # fmt: skip
"""torchtune's README: it ran, and 16 bytes per parameter leave no room for its activations."""


@pytest.mark.parametrize(
    ("cells", "loss_bytes", "optimizer_bytes"),
    [({}, 2, 12), ({"model": "llama3-8b", "recompute": "full"}, 2, 4)],
    ids=["a loss in one kernel", "and states in 16 bits"],
)
def test_a_run_that_fitted_is_supposed_to_save_what_it_must(
    cells: dict[str, str], loss_bytes: int, optimizer_bytes: int
) -> None:
    found = read_run({**SINGLE, **cells}).job.software
    assert (found.loss_bytes, found.optimizer_bytes) == (loss_bytes, optimizer_bytes)
    assert predict_run({**SINGLE, **cells}).fits


def test_a_run_that_ran_out_of_memory_is_supposed_to_save_nothing() -> None:
    run = read_run({**SINGLE, "outcome": "OOM"})
    assert run.job.software.optimizer_bytes >= 8
    assert not predict_memory({**SINGLE, "outcome": "OOM"}).fits


@pytest.mark.parametrize(
    ("cells", "zero"),
    [
        ({"framework": "Megatron-DeepSpeed 2023", "precision": "bf16"}, 1),
        ({"source": "meg-ds/experiments", "precision": "bf16"}, 1),
        ({"framework": "Megatron-DeepSpeed 2023", "precision": "fp16"}, 0),
        ({"framework": "Megatron-LM 2023", "precision": "bf16"}, 0),
    ],
)
def test_deepspeed_shares_bf16_states_unasked(cells: dict[str, str], zero: int) -> None:
    run = read_run({**LLAMA, "zero_stage": "0", "source": "a table", **cells})
    assert run.layout["zero"] == zero
