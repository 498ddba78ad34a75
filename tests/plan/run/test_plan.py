"""The plan of one run: how many steps, on which ranks, for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fakes import processes
from tests.plan.shapes import calibration, layout, shape, workload
from trainworks.catalog.catalog import accelerator
from trainworks.config.data import Evaluation
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.processes import choose_processes
from trainworks.plan.run.steps import num_steps, planned_evaluation, samples_left_out
from trainworks.record.processes import Processes
from trainworks.record.resolved import Plan


def plan(steps: int = 300, **sections: Any) -> Plan:
    """On one rank."""
    run_file = RunFile.model_validate({"name": "demo", "workload": workload()} | sections)
    ranks = layout(micro_batch=8, accumulate=4)
    return make_plan(run_file, shape(), ranks, processes(), calibration(), steps=steps)


def chosen(num_cores: int, num_accelerators: int = 0, **cluster: Any) -> Processes:
    """Processes of a command on a machine."""
    run_file = RunFile.model_validate({"name": "demo", "run": "true", "cluster": cluster})
    return choose_processes(run_file, num_cores=num_cores, num_accelerators=num_accelerators)


@pytest.mark.parametrize(
    ("train_for", "steps"),
    [("300 steps", 300), ("4096 tokens", 1), ("4097 tokens", 2), ("1 token", 1), ("1 epoch", 7), ("3 epochs", 23)],
)
def test_the_length_of_a_run_in_steps(train_for: str, steps: int) -> None:
    """A step takes 32 sequences of 128 tokens; the data has 250 sequences and the token after the last."""
    assert num_steps(workload(train_for=train_for), tokens_in_data=250 * 128 + 1) == steps


def test_an_epoch_shorter_than_a_step_is_one_step() -> None:
    assert num_steps(workload(train_for="1 epoch"), tokens_in_data=1000) == 1


def test_an_epoch_of_unknown_data_is_refused() -> None:
    with pytest.raises(UsageError, match="once the data is prepared"):
        num_steps(workload(train_for="1 epoch"), tokens_in_data=None)


@given(st.integers(1, 128), st.integers(0, 16), st.integers(1, 8))
def test_threads_never_outnumber_the_cores_unless_ranks_do(cores: int, accelerators: int, nodes: int) -> None:
    assume(accelerators == 0 or nodes <= accelerators)
    ranks = chosen(cores, accelerators, nodes=nodes)
    assert ranks.threads_per_process * ranks.world_size <= max(cores, ranks.world_size)


@pytest.mark.parametrize(("accelerators", "cluster"), [(1, {"nodes": 2}), (2, {"processes_per_node": 4})])
def test_more_ranks_than_accelerators_are_refused(accelerators: int, cluster: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="are more than the"):
        chosen(4, accelerators, **cluster)


@pytest.mark.parametrize(
    ("accelerators", "cluster", "world_size", "device"),
    [
        (0, {}, 1, "cpu"),
        (8, {}, 8, "cuda"),
        (8, {"nodes": 2}, 8, "cuda"),
        (8, {"processes_per_node": 2}, 2, "cuda"),
        (0, {"nodes": 2, "processes_per_node": 2}, 4, "cpu"),
    ],
)
def test_there_is_one_rank_per_accelerator(
    accelerators: int, cluster: dict[str, int], world_size: int, device: str
) -> None:
    ranks = chosen(16, accelerators, **cluster)
    assert (ranks.world_size, ranks.device) == (world_size, device)


def test_a_plan_counts_the_tokens_of_its_step() -> None:
    assert plan().tokens_per_step == 32 * 128


def test_a_longer_run_takes_longer() -> None:
    assert plan(301).run_time_s > plan(300).run_time_s


@given(st.integers(1, 10**6))
def test_a_run_takes_at_least_its_steps(steps: int) -> None:
    assert plan(steps).run_time_s >= steps * plan().step_time.total_s


def test_the_peak_is_the_fastest_product_and_says_so() -> None:
    assert plan().peak_flops_per_s == 1e12
    assert "measured on this machine" in plan().peak_source


@pytest.mark.parametrize(("every", "steps", "seconds"), [("50 steps", 50, None), ("10m", None, 600.0)])
def test_checkpoints_come_as_often_as_asked(every: str, steps: int | None, seconds: float | None) -> None:
    made = plan(checkpoint={"every": every})
    assert (made.checkpoint_every_steps, made.checkpoint_every_s) == (steps, seconds)


def test_automatic_checkpoints_come_more_often_on_worse_nodes() -> None:
    good, bad = plan(recover={"node_mttf": "30d"}), plan(recover={"node_mttf": "1d"})
    assert bad.checkpoint_every_s < good.checkpoint_every_s


def test_automatic_checkpoints_count_with_the_fleet_of_the_accelerator() -> None:
    run_file = RunFile.model_validate({"name": "demo", "workload": workload()})
    ranks, steps = layout(micro_batch=8, accumulate=4), 300
    frequent, rare = (
        make_plan(run_file, shape(), ranks, processes(), calibration(), steps=steps, accelerator=accelerator(name))
        for name in ("A100", "H100")
    )
    rates = [usual_node_mttf(accelerator(name)).value for name in ("A100", "H100")]
    assert (frequent.checkpoint_every_s < rare.checkpoint_every_s) == (rates[0] < rates[1])
    assert frequent.checkpoint_every_s != rare.checkpoint_every_s


def test_metrics_are_written_about_once_a_second_and_at_least_every_50_steps() -> None:
    assert 1 <= plan().log_every_steps <= 50


def evaluated(**settings: Any) -> Plan:
    """A plan of a run that evaluates every 100 of 350 steps."""
    evaluation = {"split": 0.05, "every": "100 steps"} | settings
    return plan(350, workload=workload().model_dump() | {"eval": evaluation})


def test_evaluations_are_counted_and_their_time_is_part_of_the_run_time() -> None:
    with_evaluation = evaluated(steps=10)
    planned = with_evaluation.evaluation
    assert planned is not None
    assert (planned.count, planned.batches) == (4, 10)
    assert with_evaluation.run_time_s == pytest.approx(plan(350).run_time_s + planned.total_s)
    assert with_evaluation.step_time == plan(350).step_time


def test_an_evaluation_of_several_sets_and_its_texts_take_the_time_of_all() -> None:
    one, two = evaluated(steps=10), evaluated(split=None, data={"wiki": "wiki.txt", "code": "code.txt"}, steps=10)
    texts = evaluated(steps=10, generate={"prompts": ["a", "b"], "tokens": 30})
    assert one.evaluation is not None and two.evaluation is not None and texts.evaluation is not None
    assert two.evaluation.batches == 2 * one.evaluation.batches == 20
    assert two.evaluation.evaluation_s == pytest.approx(2 * one.evaluation.evaluation_s)
    samples, chosen = workload().global_batch, texts.layout
    forward_s = one.evaluation.batch_s * chosen.dp * chosen.pp / samples
    assert texts.evaluation.evaluation_s == pytest.approx(one.evaluation.evaluation_s + 60 * forward_s)
    counted = planned_evaluation(
        Evaluation.model_validate(
            {"every": "100 steps", "steps": 10, "data": {"wiki": "wiki.txt", "code": "code.txt"}}
        ),
        two.step_time,
        global_batch=samples,
        layout=chosen,
        num_steps=350,
        held_out_samples=(3 * samples - 1, 50 * samples),
    )
    assert counted is not None and counted.batches == 13


def test_a_batch_of_an_evaluation_takes_less_than_half_of_a_step_and_at_least_its_forward() -> None:
    planned = evaluated()
    assert planned.evaluation is not None
    assert planned.evaluation.batch_s < planned.step_time.total_s / 2
    assert planned.evaluation.batch_s > planned.step_time.groups.compute_s / 4


def test_a_run_without_evaluation_plans_none() -> None:
    assert plan().evaluation is None


@pytest.mark.parametrize(
    ("train_for", "samples", "left_out"),
    [("1 epoch", 250, 26), ("2 epochs", 250, 20), ("1 epoch", 256, 0), ("100 steps", 250, 0), ("1 epoch", 5, 0)],
)
def test_samples_that_do_not_fill_a_batch_of_the_last_epoch_are_counted(
    train_for: str, samples: int, left_out: int
) -> None:
    """Of a global batch of 32: an epoch's rest goes on with the next epoch, so that only the last one's is left out."""
    run_file = RunFile.model_validate({"name": "demo", "workload": workload().model_dump() | {"train_for": train_for}})
    assert run_file.workload is not None
    assert run_file.workload.global_batch == 32
    assert samples_left_out(run_file.workload, samples=samples) == left_out
