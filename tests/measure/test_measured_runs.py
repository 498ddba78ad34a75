"""From the words of a table to a job, a layout and a step time."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.measure.rows import RUN, run_row
from trainworks.errors import TrainworksError, UsageError
from trainworks.measure.measured_clusters import read_accelerator, read_cluster
from trainworks.measure.measured_runs import COLUMNS, read_memory, read_run
from trainworks.plan.layouts import Recompute

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "data" / "step_times.csv"


def test_a_full_row_is_read_as_it_says() -> None:
    run = read_run(RUN)
    assert (run.id, run.source, run.kind, run.step_time_s) == ("korthikanti-4", "korthikanti22", "yes", 13.75)
    degrees = {"tp": 8, "pp": 8, "interleave": 3, "zero": 0, "recompute": Recompute.SELECTIVE, "sequence_parallel": 1}
    assert degrees.items() <= run.layout.items()
    assert run.job.cluster.node_bytes_per_s == 200e9


@pytest.mark.parametrize("column", COLUMNS)
def test_any_cell_may_be_empty(column: str) -> None:
    try:
        assert read_run(run_row(**{column: ""})).num_accelerators == 64
    except UsageError as error:
        assert error.message == f"{column} is empty"


@pytest.mark.parametrize("column", COLUMNS)
def test_any_column_may_be_missing(column: str) -> None:
    row = {name: text for name, text in RUN.items() if name != column}
    try:
        assert read_run(row).num_accelerators == 64
    except UsageError as error:
        assert error.message == f"{column} is empty"


def test_a_row_with_every_cell_empty_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is empty|are empty"):
        read_run(dict.fromkeys(COLUMNS, ""))


@pytest.mark.parametrize(
    ("written", "name"),
    [("A100-SXM4-40GB", "A100-SXM-40GB"), ("nvidia h100 pcie", "H100-PCIE-80GB"), ("AMD MI300X", "MI300X-192GB")],
)
def test_an_accelerator_is_found_by_the_names_people_use(written: str, name: str) -> None:
    assert read_cluster({"gpu": written}, num_accelerators=8).accelerator.name == name


@pytest.mark.parametrize(
    ("written", "gigabytes", "watts"),
    [
        ("A100-SXM (HBM2e, 500W)", 80, 500),
        ("A100 64GB (HBM2e, 500W)", 64, 500),
        ("NVIDIA A100 64GB (350W cap)", 64, 350),
        ("A100 64GB at 300 W", 64, 300),
        ("A100 64GB", 64, 400),
    ],
)
def test_a_power_is_read_with_and_without_another_memory(written: str, gigabytes: int, watts: float) -> None:
    part = read_accelerator({"gpu": written})
    assert (part.memory_bytes // 2**30, part.power_w) == (gigabytes, watts)


def test_an_unknown_accelerator_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no accelerator `H10`") as raised:
        read_run(run_row(gpu="H10"))
    assert raised.value.hint is not None and "H100-SXM-80GB" in raised.value.hint


@pytest.mark.parametrize(
    ("written", "network", "gigabytes_per_s"),
    [
        ("8x NDR400 IB per node", "InfiniBand", 400),
        ("Omni-Path 4x100Gb/s per node", "Omni-Path", 50),
        ("800 Gb/s per node", "InfiniBand", 100),
        ("p5 EFA 32x100 Gb/s per node", "EFA", 400),
        ("8x 400GbE RoCE", "RoCE", 400),
        ("100 GB/s per node", "InfiniBand", 100),
        ("400 Gb/s per GPU", "InfiniBand", 400),
        ("1.6 Tb/s per node", "InfiniBand", 200),
        ("HDR", "InfiniBand", 200),
        ("not printed", "InfiniBand", 200),
    ],
)
def test_a_network_is_read_in_bits_or_bytes_per_node_or_port(
    written: str, network: str, gigabytes_per_s: float
) -> None:
    cluster = read_cluster({"gpu": "A100-80GB", "inter_node_net": written}, num_accelerators=16)
    assert (cluster.network, cluster.node_bytes_per_s) == (network, gigabytes_per_s * 1e9)


def test_a_last_node_that_is_not_full_makes_all_nodes_smaller() -> None:
    cluster = read_cluster({"gpu": "A100", "gpus_per_node": "8"}, num_accelerators=12)
    assert (cluster.num_nodes, cluster.accelerators_per_node) == (2, 6)


def test_a_smaller_node_has_interfaces_in_proportion() -> None:
    cluster = read_cluster({"gpu": "A100", "gpus_per_node": "4"}, num_accelerators=8)
    assert cluster.node_bytes_per_s == 100e9


@pytest.mark.parametrize(
    ("written", "zero", "shard"),
    [
        ("", 1, 64),
        ("0", 0, 1),
        ("3", 3, 64),
        ("ZeRO-2", 2, 64),
        ("3 (HSDP)", 3, 8),
        ("1 (group of 0)", 1, 64),
        ("3 (FSDP 16)", 3, 16),
        ("FSDP2", 3, 64),
        ("DDP", 0, 1),
    ],
)
def test_sharding_is_a_stage_and_a_group(written: str, zero: int, shard: int) -> None:
    layout = read_run(run_row(zero_stage=written, dp="64", tp="1", pp="1", interleave="")).layout
    assert (layout["zero"], layout["dp_shard"]) == (zero, shard)


@pytest.mark.parametrize(
    ("written", "precision"),
    [("fp8 TE", "fp8"), ("MXFP8", "fp8"), ("NVFP4", "fp4"), ("BF16", "bf16"), ("bfloat16", "bf16"), ("", "bf16")],
)
def test_a_precision_is_that_of_the_products(written: str, precision: str) -> None:
    assert read_run(run_row(precision=written, gpu="B200")).job.precision == precision


@pytest.mark.parametrize(
    ("written", "recompute"),
    [
        ("Full", Recompute.FULL),
        ("none", Recompute.NONE),
        ("selective (minimal_flash)", Recompute.SELECTIVE),
        ("", None),
    ],
)
def test_recomputation_is_named_or_open(written: str, recompute: Recompute | None) -> None:
    assert read_run(run_row(recompute=written)).layout.get("recompute") is recompute


def test_degrees_that_do_not_multiply_to_the_world_are_refused() -> None:
    with pytest.raises(UsageError, match=r"dp 2 \* tp 8 \* pp 8 \* cp 1 = 128, not 64 accelerators"):
        read_run(run_row(dp="2"))


@pytest.mark.parametrize(("batch", "micro"), [("8", "1"), ("8", ""), ("64", "2")])
def test_a_global_batch_without_a_micro_batch_for_each_rank_is_refused(batch: str, micro: str) -> None:
    reason = f"global_batch {batch} is smaller than dp 64 x micro_batch {micro or 1}"
    with pytest.raises(UsageError, match=reason):
        read_run(run_row(global_batch=batch, micro_batch=micro, dp="64", tp="1", pp="1", interleave=""))


def test_data_parallel_ranks_may_be_counted_with_those_of_the_context() -> None:
    layout = read_run(run_row(dp="8", tp="8", pp="1", cp="2", interleave="")).layout
    assert (layout["dp"], layout["cp"]) == (4, 2)


def test_a_row_without_a_layout_gets_the_planners_own() -> None:
    run = read_run(run_row(dp="", tp="", pp="", interleave="", micro_batch="", zero_stage=""))
    assert run.num_accelerators == 64


def test_layers_follow_from_the_size_where_they_are_not_printed() -> None:
    shape = read_run(run_row(model="GPT-175B (ours)", layers="", params_b="175")).job.shape
    assert shape.layers == 96


STEP_TIME_COLUMNS = dict.fromkeys(
    ("step_time_s_eval", "iteration_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"), ""
)


def test_a_step_time_follows_from_tokens_per_second() -> None:
    run = read_run(run_row(**STEP_TIME_COLUMNS | {"tokens_per_s_per_gpu": "1024"}))
    assert run.step_time_s == 64 * 2048 / (1024 * 64)


def test_recomputation_counts_in_hardware_flops_only() -> None:
    def step_s(kind: str, recompute: str) -> float:
        row = run_row(**STEP_TIME_COLUMNS | {"tflops_per_gpu": "150", "tflops_kind": kind, "recompute": recompute})
        return read_run(row).step_time_s or 0.0

    assert step_s("model", "full") == step_s("model", "none") == step_s("hardware", "none")
    assert step_s("hardware", "full") == pytest.approx(4 / 3 * step_s("model", "full"), rel=0.01)


def test_published_flops_give_the_published_step_time() -> None:
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["tflops_per_gpu"] and row["usable_for_step_eval"] == "yes"]
    for row in rows:
        if row["source_key"] in ("megatron_bridge", "nemo_automodel", "xtuner_longseq", "lumi_mi250x", "tpu_v6e"):
            continue  # count otherwise than their column says: half of the attention, no window, or no output
        try:
            derived = read_run(row | {"step_time_s_eval": "", "iteration_time_s": "", "tokens_per_s_per_gpu": ""})
        except TrainworksError:
            continue
        assert derived.step_time_s == pytest.approx(float(row["step_time_s_eval"]), rel=0.04), row["id"]


def test_a_memory_table_needs_no_batch_and_says_what_ran_out() -> None:
    measured = read_memory(run_row(global_batch="", outcome="OOM"))
    assert (measured.out_of_memory, measured.run.global_batch) == (True, 8)


@pytest.mark.parametrize(
    ("words", "kind", "num_bytes"),
    [
        ("peak allocated GiB (torch)", "allocated", 40 * 2**30),
        ("Max GPU RAM GB (torch reserved)", "reserved", 40e9),
        ("max over GPUs, nvidia-smi GB", "device", 40e9),
        ("", "device", 40e9),
    ],
)
def test_memory_is_allocated_reserved_or_the_devices(words: str, kind: str, num_bytes: float) -> None:
    run = read_run(run_row(memory_gb_per_gpu="40", memory_kind=words))
    assert (run.memory_kind, run.memory_bytes) == (kind, num_bytes)


@pytest.mark.parametrize("micro", ["", "4"])
@pytest.mark.parametrize("degrees", [{"tp": "8"}, {"zero_stage": "3"}, {}])
def test_a_memory_without_a_global_batch_has_a_micro_batch_for_each_rank(micro: str, degrees: dict[str, str]) -> None:
    opened = dict.fromkeys(("global_batch", "dp", "tp", "pp", "interleave", "recompute"), "") | degrees
    run = read_memory(
        run_row(model="llama2-7b", layers="", hidden="", heads="", vocab="", micro_batch=micro, **opened)
    ).run
    assert run.global_batch >= run.layout["dp"] * int(micro or 1)
