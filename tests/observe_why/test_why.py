"""Planted slownesses: the planted cause comes first, with the seconds that were planted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.observe_why.conftest import Planned, PlannedRun
from tests.report.conftest import RunWriter
from trainworks.api.observing.why import Diagnosis, why
from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.record.metrics import CallbackTimes, SlowestRank

NCCL = "ada-1:37:41 [0] NCCL INFO "
STEPS = 200


def first(diagnosis: Diagnosis) -> LostTime:
    """What to mend first; start and causes never add up to more than the time there was."""
    start_s = diagnosis.start.lost_s if diagnosis.start else 0.0
    assert start_s + diagnosis.lost_s <= diagnosis.held_s * (1 + 1e-9)
    assert diagnosis.first is not None
    return diagnosis.first


def test_a_run_as_planned_has_only_the_causes_that_the_plan_has(planned: Planned) -> None:
    diagnosis = planned().train(STEPS).diagnose()
    assert {cause.name for cause in diagnosis.causes} <= {"communication", "small_batches"}


def test_a_slow_disk(planned: Planned) -> None:
    cause = first(planned().train(STEPS, data_s=1.0).diagnose())
    assert (cause.name, round(cause.lost_s)) == ("data", STEPS)
    assert cause.saves_s == pytest.approx(cause.lost_s, rel=0.01)


def slow_rank(run: PlannedRun, *, extra_s: float, extra_data_s: float) -> PlannedRun:
    """Rank 1 of two takes longer: half of that shows in the mean work, the other half as a wait of rank 0."""
    run.slowest = SlowestRank(rank=1, extra_s=extra_s, extra_data_s=extra_data_s)
    return run.train(
        STEPS,
        data_s=run.healthy.data_s + extra_data_s / 2,
        compute_s=run.healthy.compute_s + (extra_s - extra_data_s) / 2,
        communication_s=run.healthy.communication_s + extra_s / 2,
    )


@pytest.mark.parametrize(("extra_data_s", "words"), [(0.0, "throttled"), (1.0, "disk")], ids=["core", "disk"])
def test_a_slow_rank_is_named_with_all_the_time_that_it_costs(
    planned: Planned, extra_data_s: float, words: str
) -> None:
    diagnosis = slow_rank(planned(), extra_s=1.0, extra_data_s=extra_data_s).diagnose()
    cause = first(diagnosis)
    assert cause.name == "straggler"
    assert cause.title == "Rank 1 is slower than the others"
    assert cause.lost_s == pytest.approx(STEPS * 1.0)
    assert words in f"{cause.action} {cause.remedy}"
    assert not {"data", "slow_compute", "throttling"} & {one.name for one in diagnosis.causes}


def test_small_micro_batches(planned: Planned) -> None:
    run = planned(layout={"dp_replicate": 2, "micro_batch": 1}, small_products=0.3)
    cause = first(run.train(STEPS).diagnose())
    assert cause.name == "small_batches"
    assert cause.setting is not None and "micro_batch: " in cause.setting
    assert cause.saves_s is not None and 0 < cause.saves_s < run.at


def test_communication_that_is_not_hidden(planned: Planned) -> None:
    cause = first(planned().train(STEPS, communication_s=2.0).diagnose())
    assert (cause.name, round(cause.lost_s)) == ("communication", 2 * STEPS)


def test_frequent_checkpoints(planned: Planned) -> None:
    run = planned()
    for _ in range(STEPS // 2):
        run.train(1, checkpoint_s=3.0).checkpoint()
        run.train(1)
    cause = first(run.diagnose())
    assert (cause.name, round(cause.lost_s)) == ("checkpoints", 3 * STEPS // 2)
    assert cause.setting is not None and cause.setting.startswith("checkpoint: {every: ")
    assert cause.saves_s is not None and 0.5 * cause.lost_s < cause.saves_s < cause.lost_s


def test_a_rate_of_failures_that_needs_more_checkpoints(planned: Planned) -> None:
    run = planned().train(100).checkpoint().train(900, checkpoint_s=0.0)
    run.fail().wait(5.0).attempt(from_step=100)
    cause = first(run.train(20).diagnose())
    assert cause.name == "lost_steps"
    assert cause.setting is not None and cause.setting.startswith("checkpoint: {every: ")


def test_clocks_that_fall_during_the_run(planned: Planned) -> None:
    run = planned()
    cause = first(run.train(STEPS).train(STEPS, compute_s=3 * run.healthy.compute_s).diagnose())
    assert cause.name == "throttling"
    assert cause.lost_s == pytest.approx(2 * run.healthy.compute_s * STEPS, rel=0.1)
    assert f"to {2 * STEPS:,} " in cause.evidence[0]


def test_compute_that_is_slow_from_the_beginning(planned: Planned) -> None:
    run = planned()
    cause = first(run.train(STEPS, compute_s=3 * run.healthy.compute_s).diagnose())
    assert cause.name == "slow_compute"
    assert cause.lost_s == pytest.approx(2 * run.healthy.compute_s * STEPS, rel=0.01)


@pytest.mark.parametrize(("others_s", "said"), [(None, False), (1.0, False), (12.0, True)])
def test_programs_that_the_plan_does_not_know_are_noted(planned: Planned, others_s: float | None, said: bool) -> None:
    run = planned().train(20)
    run.others(others_s, of_s=20.0)
    assert ("Other programs used 60% of the cores" in " ".join(run.diagnose().notes)) == said


def test_restarts(planned: Planned) -> None:
    run = planned().train(100).checkpoint()
    for _ in range(3):
        run.wait(1.0).fail().wait(500.0).attempt().train(20).checkpoint()
    cause = first(run.diagnose())
    assert (cause.name, round(cause.lost_s)) == ("restarts", 1503)
    assert cause.evidence[0] == "failures: 3 x killed"


def test_frequent_evaluations(planned: Planned) -> None:
    run = planned(eval={"split": 0.1, "every": "10 steps"})
    for _ in range(STEPS // 10):
        run.train(9).train(1, evaluation=2.5, evaluation_s=20.0)
    cause = first(run.diagnose())
    assert (cause.name, round(cause.lost_s)) == ("evaluation", 20 * STEPS // 10)
    assert cause.evidence[0] == "20 evaluations, one every 10 steps, take 20 s each"
    assert cause.setting is not None and cause.setting.startswith("workload: {eval: {every: ")
    assert cause.saves_s is not None and 0.5 * cause.lost_s < cause.saves_s < cause.lost_s


@pytest.mark.parametrize("ranks_called", [1, 2], ids=["one rank", "both ranks"])
def test_a_slow_callback_is_named_with_all_the_time_that_it_costs(planned: Planned, ranks_called: int) -> None:
    run = planned(callbacks=["watching:Cheap", "watching:Slow"])
    run.callbacks = CallbackTimes(rank=0, total_s=2.2, longest=1, longest_s=2.0)
    called_s = 2.2 * ranks_called / 2
    wait_s = run.healthy.communication_s + 2.2 - called_s
    for _ in range(STEPS // 10):
        run.train(9, callback_s=called_s, communication_s=wait_s).train(1, callback_s=called_s, other_s=2.2 - called_s)
    diagnosis = run.diagnose()
    cause = first(diagnosis)
    assert (cause.name, cause.lost_s) == ("callbacks", pytest.approx(2.2 * STEPS, rel=0.02))
    assert cause.title == "The callback `watching:Slow` holds up the run"
    assert cause.evidence[0] == "`watching:Slow` takes 2 s a step"
    assert not {"other", "communication"} & {one.name for one in diagnosis.causes}


def test_a_callback_at_the_end_of_the_run_is_named(planned: Planned) -> None:
    run = planned(callbacks=["watching:Exports"])
    run.train(STEPS).wait(500.0).event("finished", step=STEPS, callbacks_s=[499.0])
    cause = first(run.diagnose())
    assert (cause.name, round(cause.lost_s)) == ("callbacks", 499)
    assert cause.evidence == ("`watching:Exports` takes 8m 19s after the last step",)


def test_a_lasting_cause_comes_before_the_start_of_a_short_run(planned: Planned) -> None:
    diagnosis = planned(start_s=90.0).train(100, data_s=1.0).diagnose()
    assert [cause.name for cause in diagnosis.causes] == ["data"]
    assert diagnosis.start is not None and "paid once" in diagnosis.start.evidence[-1]
    assert (round(diagnosis.start.lost_s), round(diagnosis.start.mendable_s)) == (90, 84)


def test_a_start_that_restarts_repeat_counts_with_its_repetitions(planned: Planned) -> None:
    run = planned(start_s=90.0)
    for _ in range(3):
        run.train(10, data_s=1.0).wait(0.1).status("STOPPED")
        run.launch(start_s=60.0)
    diagnosis = run.train(10, data_s=1.0).diagnose()
    cause = first(diagnosis)
    assert (cause.name, round(cause.lost_s), round(cause.mendable_s)) == ("start", 180, 180)
    assert diagnosis.start is not None and round(diagnosis.start.lost_s) == 90


def test_a_long_start(planned: Planned) -> None:
    cause = first(planned(start_s=900.0).train(50).diagnose())
    assert (cause.name, round(cause.lost_s)) == ("start", 900)


def test_what_can_be_mended_comes_before_what_costs_more(planned: Planned) -> None:
    run = planned(layout={"dp_replicate": 2, "micro_batch": 8, "recompute": "full"})
    diagnosis = run.train(STEPS, data_s=0.5, communication_s=1.0).diagnose()
    gains = [cause.mendable_s for cause in diagnosis.causes]
    assert len(gains) > 2 and gains == sorted(gains, reverse=True)
    needed, *others = diagnosis.causes
    needed = needed.model_copy(update={"saves_s": 0.0})
    left = diagnosis.model_copy(update={"causes": (needed, *others)})
    assert left.first == others[0] and left.verdict.action == others[0].action


def test_a_run_in_which_nothing_can_be_mended_is_left_as_it_is(planned: Planned) -> None:
    diagnosis = planned().train(STEPS).diagnose()
    left = diagnosis.model_copy(update={"causes": (), "start": None})
    assert left.first is None and left.verdict.action == "Leave it as it is"
    assert left.verdict.signal == "go"


def test_the_start_comes_first_only_if_it_costs_more_than_all_that_lasts(planned: Planned) -> None:
    run = planned(start_s=90.0)
    few, many = run.train(20, data_s=1.0).diagnose(), run.train(200, data_s=1.0).diagnose()
    assert few.first is few.start and few.verdict.action.startswith("Look at imports")
    assert many.first is many.causes[0] and "Start-up" in str(many)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["NET/IB : No device found.", "Using network Socket"], "kernel TCP"),
        (["NCCL_IB_DISABLE set by environment to 1.", "Using network Socket"], "NCCL_IB_DISABLE=1"),
        (
            [
                "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
                "Using network IB",
                "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
            ],
            "mlx5_1",
        ),
    ],
    ids=["no adapter", "switched off", "one of two adapters"],
)
def test_a_network_that_nccl_does_not_use(planned: Planned, lines: list[str], said: str) -> None:
    run = planned(nodes=2)
    run.run_dir.rank_log(0).write_text("".join(f"{NCCL}{line}\n" for line in lines), encoding="utf-8")
    cause = first(run.train(STEPS, communication_s=2.0).diagnose())
    assert cause.name == "network"
    assert said in " ".join(cause.evidence)
    assert cause.lost_s == pytest.approx((2.0 - run.healthy.communication_s) * STEPS, rel=0.01)


def test_an_adapter_is_used_if_any_rank_uses_it(planned: Planned) -> None:
    run = planned(nodes=2)
    for rank in range(2):
        lines = [
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            "Using network IB",
            f"Channel 0{rank}/0 : {rank}[{rank}] -> 8[{rank}] [send] via NET/IB/{rank}/GDRDMA",
        ]
        run.run_dir.rank_log(rank).write_text("".join(f"{NCCL}{line}\n" for line in lines), encoding="utf-8")
    assert first(run.train(STEPS, communication_s=2.0).diagnose()).name == "communication"


def test_a_pipeline_of_few_micro_batches(planned: Planned) -> None:
    run = planned(layout={"pp": 4, "micro_batch": 16}, ranks=4)
    diagnosis = run.train(STEPS, communication_s=run.healthy.communication_s + run.healthy.compute_s).diagnose()
    cause = next(one for one in diagnosis.causes if one.name == "bubble")
    assert cause.lost_s > 0.3 * diagnosis.held_s
    assert cause.setting is not None


def test_activations_that_fit_and_are_computed_again(planned: Planned) -> None:
    run = planned(layout={"dp_replicate": 2, "micro_batch": 8, "recompute": "full"})
    cause = next(one for one in run.train(STEPS).diagnose().causes if one.name == "recompute")
    assert cause.saves_s is not None and cause.saves_s > 0.1 * run.healthy.compute_s * STEPS


def test_a_command_that_records_no_steps_loses_no_time_to_its_start(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, None, "sleep 9")
    run.event("submitted").wait(9.0).finish()
    found = why(str(run.run_dir.path))
    assert found.causes == () and any("`metrics: {pattern: ...}`" in note for note in found.notes)


@pytest.mark.parametrize(("from_step", "said"), [(0, True), (8, False)])
def test_a_command_that_begins_anew_after_a_failure_is_to_load_what_it_saved(
    tmp_path: Path, from_step: int, said: bool
) -> None:
    run = RunWriter(tmp_path, None, "python train.py").launch().steps(20).fail().wait(2.0).attempt(from_step=from_step)
    run.steps(20).finish()
    cause = next(one for one in why(str(run.run_dir.path)).causes if one.name == "lost_steps")
    assert any("began at the first step again" in line for line in cause.evidence) == said
    assert ("--resume" in (cause.setting or "")) == said


def test_a_command_that_loads_its_weights_and_counts_anew_is_to_save_its_step(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, None, "python train.py").launch().steps(20).fail().wait(2.0).attempt(from_step=0)
    run.steps(20).finish()
    file = run.run_dir.metrics_file
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = (json.dumps(row | {"loss": 3.0 / (1 + index)}) + "\n" for index, row in enumerate(rows))
    file.write_text("".join(lines), encoding="utf-8")
    cause = next(one for one in why(str(run.run_dir.path)).causes if one.name == "lost_steps")
    assert "its loss went on from 0.15, so it loaded its weights" in cause.evidence[1]
    assert "save its step" in cause.action and cause.setting is None


def test_the_text_has_every_cause_and_the_json_every_figure(planned: Planned) -> None:
    diagnosis = planned().train(STEPS, data_s=1.0, communication_s=0.5).diagnose()
    text = " ".join(str(diagnosis).split())
    assert "1. The ranks wait for data" in text
    assert all(cause.title in text for cause in diagnosis.causes)
    assert [cause["name"] for cause in diagnosis.to_json()["causes"]] == [cause.name for cause in diagnosis.causes]
