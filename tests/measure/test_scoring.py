"""Tables are predicted row by row, and scored."""

from __future__ import annotations

import csv
import io
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.rows import RUN, collective_row, run_row
from trainworks.catalog.cluster import parse_cluster
from trainworks.measure.measured_clusters import remarks_left_out
from trainworks.measure.scoring import (
    TABLES,
    PredictedCollective,
    PredictedRun,
    Refusal,
    excess_notes,
    predict_collective,
    predict_memory,
    predict_run,
    predictions_csv,
    score_collectives,
    score_memory,
    score_runs,
)
from trainworks.measure.tables import read_table
from trainworks.units import format_bytes

ODD = ("", "0", "1", "7", "64", "nan", "none", "-1", "1e400", "0.5", "1,536", "abc", "3 (HSDP)", "fp8 TE", "A100-40GB")


def predicted(**changes: str) -> PredictedRun:
    result = predict_run(run_row(**changes))
    assert isinstance(result, PredictedRun)
    return result


def as_measured(result: PredictedRun, factor: float = 1.0) -> PredictedRun:
    """A row whose measurement is what was predicted, times a factor."""
    return replace(result, run=replace(result.run, step_time_s=result.step_time_s * factor))


def test_rows_that_do_not_fit_are_named_with_the_memory_that_they_lack() -> None:
    small, large = predicted(), predicted(id="large", tp="1", pp="1", recompute="none", zero_stage="0")
    assert small.fits and not large.fits
    assert excess_notes([small]) == []
    (note,) = excess_notes([small, large])
    assert f"of the accelerator: large, by up to {format_bytes(large.excess_bytes)} (large)" in note


def test_what_happens_as_predicted_has_no_error_and_is_inside_of_its_interval() -> None:
    group = score_runs([as_measured(predicted(micro_batch=size)) for size in ("1", "2", "4")]).kinds["yes"]
    assert (group.rows.mape, group.rows.bias, group.rows.coverage) == (0.0, 0.0, 1.0)
    assert group.calibrated[3].rows.mape == pytest.approx(0.0, abs=1e-12)


def test_what_takes_half_as_long_as_predicted_is_a_bias_of_100_per_cent() -> None:
    group = score_runs([as_measured(predicted(), 0.5)]).kinds["yes"]
    assert (group.rows.mape, group.rows.bias, group.rows.coverage) == (1.0, 1.0, 0.0)


def test_a_measurement_of_a_cluster_corrects_the_others() -> None:
    rows = [as_measured(predicted(micro_batch=size), 1.2) for size in ("1", "2", "4")]
    group = score_runs(rows).kinds["yes"]
    assert group.calibrated[3].rows.mape < group.calibrated[1].rows.mape < group.rows.mape


def test_sources_count_the_same_whatever_their_size() -> None:
    many = [as_measured(predicted(), 0.5) for _ in range(9)]
    one = as_measured(predicted(source_key="other"))
    assert score_runs([*many, one]).kinds["yes"].macro.mape == 0.5


def test_rows_that_are_no_measurement_are_predicted_and_not_scored() -> None:
    assert score_runs([predicted(usable_for_step_eval="no"), predicted(step_time_s_eval="")]).kinds == {}


def test_models_with_experts_are_scored_apart() -> None:
    assert list(score_runs([predicted(usable_for_step_eval="moe"), predicted()]).kinds) == ["yes", "moe"]


def test_layouts_of_one_job_are_ranked_from_four_on() -> None:
    sizes = ("1", "2", "4", "8")
    rows = [as_measured(predicted(micro_batch=size, global_batch="512")) for size in sizes]
    (sweep,) = score_runs(rows).sweeps
    assert (sweep.layouts, sweep.rank_correlation, sweep.regret) == (4, 1.0, 0.0)
    assert score_runs(rows[:3]).sweeps == []


def test_a_layout_that_was_measured_twice_counts_once() -> None:
    rows = [predicted(micro_batch=size, global_batch="512") for size in ("1", "2", "4", "4")]
    assert score_runs(rows).sweeps == []


def test_an_empty_table_has_no_score() -> None:
    assert score_runs([]).kinds == {} and score_memory([]).kinds == {}
    assert score_collectives([]).every is None


def test_a_refusal_says_which_row_and_why() -> None:
    refusal = predict_run(run_row(seq_len=""))
    assert refusal == Refusal("korthikanti-4", "korthikanti22", "yes", "seq_len is empty")


def test_a_refusal_of_an_unknown_accelerator_names_the_nearest() -> None:
    refusal = predict_run(run_row(gpu="A100-SMX"))
    assert isinstance(refusal, Refusal) and "`A100-SXM-80GB`" in refusal.reason


def test_no_row_is_too_odd_to_be_predicted_or_refused() -> None:
    chance = random.Random(7)
    for _ in range(150):
        row = RUN | {name: chance.choice(ODD) for name in chance.sample(list(RUN), 3)}
        assert isinstance(predict_run(row), PredictedRun | Refusal), row


def test_predictions_have_a_line_per_row_in_the_tables_order() -> None:
    lines = list(csv.DictReader(io.StringIO(predictions_csv([predict_run(run_row(gpu="")), predicted()]))))
    assert list(lines[0]) == ["id", "step_time_s", "low_s", "high_s", "memory_bytes", "refused"]
    assert (lines[0]["step_time_s"], lines[0]["refused"]) == ("", "gpu is empty")
    assert float(lines[1]["low_s"]) < float(lines[1]["step_time_s"]) < float(lines[1]["high_s"])


def test_memory_is_scored_by_its_kind_and_rejections_are_counted() -> None:
    rows = [
        predict_memory(run_row(memory_gb_per_gpu="40", memory_kind="torch reserved", outcome="ok")),
        predict_memory(run_row(num_gpus="8", pp="1", interleave="", outcome="OOM")),
    ]
    score = score_memory(rows)
    assert list(score.kinds) == ["reserved"]
    assert (score.rejections.out_of_memory_rejected, score.rejections.fitting_rejected) == (1, 0)


def test_collectives_are_scored_by_group_and_from_64_kib_on() -> None:
    rows = [predict_collective(collective_row(size_bytes=size)) for size in ("1024", "1073741824")]
    score = score_collectives(rows)
    assert score.every is not None and score.large is not None
    assert (score.every.rows.n, score.large.rows.n) == (2, 1)


def test_a_collective_time_follows_from_its_bus_bandwidth() -> None:
    result = predict_collective(collective_row(time_us="", busbw="350"))
    assert isinstance(result, PredictedCollective)
    assert result.measured.time_s == pytest.approx(2**30 * 1.75 / 350e9)


def test_a_collective_that_is_not_planned_is_refused() -> None:
    refusal = predict_collective(collective_row(collective="gossip"))
    assert isinstance(refusal, Refusal) and refusal.reason.startswith("collective `gossip` is not planned")


def test_a_row_above_a_limit_is_refused_with_its_line_and_the_next_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [RUN | {"id": "huge", "num_gpus": "1000000000"}, RUN]
    path.write_text("\n".join(",".join(cells) for cells in (RUN.keys(), *(row.values() for row in rows))) + "\n")
    refused, good = (predict_run(row) for row in read_table(path, TABLES["runs"].columns))
    assert isinstance(refused, Refusal) and isinstance(good, PredictedRun)
    assert (refused.id, refused.line) == ("huge", 2)
    assert refused.reason.startswith("num_gpus is 1,000,000,000, above the limit of 10,000,000")


@pytest.mark.parametrize("name", ["H100-80GB (SXM, air cooled)", "NVIDIA H100 [80 GB]"])
def test_a_remark_behind_an_accelerator_is_left_out_and_noted(name: str) -> None:
    row = run_row(gpu=name, precision="bf16")
    assert predicted(gpu=name, precision="bf16").run.job.cluster.accelerator.name == "H100-SXM-80GB"
    note = f"`{name}` is read as `H100-SXM-80GB`: remarks in brackets are left out"
    assert remarks_left_out([row, row, run_row(gpu="H10 (typo)")]) == [note]


def test_the_note_on_a_remark_with_a_power_says_that_the_power_is_kept() -> None:
    (note,) = remarks_left_out([run_row(gpu="A100-80GB (350W cap)")])
    assert note.startswith("`A100-80GB (350W cap)` is read as `A100-SXM-80GB at 350 W`: ")
    assert note.endswith("left out, but for the power")


def test_a_bare_generation_means_as_many_ports_as_in_a_description() -> None:
    table = predicted(inter_node_net="HDR100").run.job.cluster
    described = parse_cluster("8 nodes of 8x A100-80GB over HDR100")
    assert table.node_bytes_per_s == described.node_bytes_per_s == 8 * 12.5e9


def test_a_model_without_a_published_shape_is_explained() -> None:
    refused = predict_run(run_row(model="GPT-4", hidden="", layers=""))
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("`GPT-4` has no published shape")
