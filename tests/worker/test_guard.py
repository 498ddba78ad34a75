"""A step that cannot be right is left out, gone back from, or ends the run; a healthy run never notices."""

from __future__ import annotations

import math

import pytest
import torch

from tests.fakes import read_rows
from tests.lanes import cases
from tests.worker.harness import events
from tests.worker.poison import (
    bad_steps,
    break_with_always_nan,
    break_with_nan,
    break_with_spike,
    poisoned_run,
    write_poisoned_corpus,
)
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.record.manifest import complete_checkpoints, write_manifest
from trainworks.worker.guard import StepJudge, reason_of
from trainworks.worker.loss import spread_nonfinite
from trainworks.worker.mesh import Mesh
from trainworks.worker.optimizer import StepOptimizer

BEHIND_A_CHECKPOINT = range(11, 16)
SPIKES = {"guard__window": 16, "guard__sigmas": 10, "workload__optimizer__lr": 1e-3}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    return write_poisoned_corpus(tmp_path_factory.mktemp("poisoned") / "text")


@pytest.fixture
def make(tmp_path, poisoned, cache):
    """A run with one bad batch, and its step."""

    def run(broken=break_with_nan, name="a", at=BEHIND_A_CHECKPOINT, **changes):
        return poisoned_run(tmp_path / name, poisoned, cache, at=at, broken=broken, **changes)

    return run


def continued_behind(run, num_batches, *, from_step=8):
    """Train `run` to a checkpoint, and go on from it as if that many batches did not exist; returns its curve."""
    run.train(until=lambda: any(m.step == from_step for m, _ in complete_checkpoints(run.run_dir)))
    for manifest, folder in complete_checkpoints(run.run_dir):
        if manifest.step == from_step:
            consumed = manifest.samples_consumed + 8 * num_batches
            write_manifest(folder, manifest.model_copy(update={"samples_consumed": consumed}))
        else:
            (folder / "manifest.json").unlink()
    assert run.train() == [0] * run.world_size
    assert events(run, "attempt")[-1]["resumed_from_step"] == from_step
    return run.curve()


LAYOUTS = [
    pytest.param({}, id="replicas"),
    pytest.param({"layout": {"dp_shard": 2}}, id="shards"),
    pytest.param(
        {"layout": {"dp_replicate": 2, "micro_batch": 2}}, id="accumulation", marks=pytest.mark.lane("nightly")
    ),
    pytest.param({"cluster__processes_per_node": 1}, id="one-rank"),
]


@pytest.mark.parametrize("changes", LAYOUTS)
def test_after_a_skipped_step_the_curve_is_as_if_its_batch_did_not_exist(make, changes):
    run, bad = make(**changes)
    assert run.train() == [0] * run.world_size
    curve = run.curve()
    assert [row["step"] for row in run.rows() if not math.isfinite(row["loss"])] == [bad]
    straight, _ = make(name="b", **changes, checkpoint__every=f"{bad - 1} steps")
    without_it = continued_behind(straight, 1, from_step=bad - 1)
    assert curve[: bad - 1] + curve[bad:] == without_it[:-1]


def test_a_skipped_step_is_an_event_with_the_ranks_values(make):
    run, bad = make()
    run.train()
    (skipped,) = events(run, "skipped")
    assert (skipped["step"], skipped["reason"]) == (bad, "nonfinite")
    assert [math.isfinite(loss) for loss in skipped["losses"]].count(False) == 1
    assert [row["step"] for row in run.rows() if row.get("skipped") == "nonfinite"] == [bad]


@pytest.mark.parametrize("dropout", cases([0.1, 0.0], at_night=[0.0]))
def test_a_rollback_gives_the_curve_of_a_run_without_the_batches_since_the_checkpoint(make, dropout):
    run, bad = make(guard__nonfinite="rollback", dropout=dropout)
    assert run.train() == [0, 0]
    (rollback,) = events(run, "rollback")
    assert (rollback["step"], rollback["to_step"], rollback["batches_left_out"]) == (bad, 8, bad - 8)
    reference, _ = make(name="b", dropout=dropout)
    assert run.curve() == continued_behind(reference, bad - 8)


@pytest.mark.parametrize("dropout", cases([0.1, 0.0], at_night=[0.0]))
def test_a_run_killed_after_a_rollback_goes_on_behind_the_bad_batches(make, dropout):
    whole, _ = make(guard__nonfinite="rollback", dropout=dropout)
    whole.train()
    run, _ = make(name="b", guard__nonfinite="rollback", dropout=dropout)
    run.train(until=lambda: bool(events(run, "rollback")))
    assert run.train() == [0, 0]
    assert len(events(run, "rollback")) == 1
    assert run.curve() == whole.curve()


def test_a_rollback_without_a_checkpoint_is_a_skip(make):
    run, bad = make(at=range(3, 8), guard__nonfinite="rollback")
    assert run.train() == [0, 0]
    assert not events(run, "rollback")
    assert [event["step"] for event in events(run, "skipped")] == [bad]
    assert [row["step"] for row in run.rows()] == list(range(1, 25))


def test_too_many_rollbacks_end_the_run(make):
    run, bad = make(guard__nonfinite="rollback", guard__max_rollbacks=0)
    assert run.train() == [1, 1]
    failure = events(run, "failure")[0]
    assert failure["cause"] == "diverged"
    assert failure["message"].startswith(
        f"step {bad} is not finite, after 0 rollbacks (`guard.max_rollbacks`): loss nan"
    )
    assert failure["hint"].endswith("trainworks resume tiny-1 --nonfinite skip")


def test_stop_names_the_step_and_the_rank_and_leaves_the_last_good_checkpoint(make):
    run, bad = make(guard__nonfinite="stop", checkpoint__every="4 steps")
    assert run.train() == [1, 1]
    failure = events(run, "failure")[0]
    assert f"step {bad} is not finite" in failure["message"]
    assert "loss of rank" in failure["message"]
    assert failure["hint"].endswith("trainworks resume tiny-1 --nonfinite skip")
    assert max(manifest.step for manifest, _ in complete_checkpoints(run.run_dir)) < bad


def test_too_many_skipped_steps_in_a_row_end_the_run(make):
    run, _ = make(break_with_always_nan, guard__max_skips=2)
    assert run.train() == [1, 1]
    assert events(run, "failure")[0]["message"].startswith("step 3 is not finite, the 3rd in a row (`guard.max_skips`)")


def test_a_spike_is_skipped_when_asked_for(make):
    run, bad = make(break_with_spike, guard__spike="skip", at=range(17, 22), **SPIKES)
    assert run.train() == [0, 0]
    assert [(event["step"], event["reason"]) for event in events(run, "skipped")] == [(bad, "spike")]


def test_a_spike_is_rolled_back_from_when_asked_for(make):
    run, _ = make(break_with_spike, guard__spike="rollback", at=range(17, 22), **SPIKES)
    assert run.train() == [0, 0]
    assert [event["to_step"] for event in events(run, "rollback")] == [16]
    assert [row["step"] for row in run.rows()] == list(range(1, 25))
    assert not any(row.get("skipped") for row in run.rows())
    assert any(row.get("skipped") == "spike" for row in read_rows(run.run_dir.metrics_file))


def test_a_resumed_run_finds_the_same_spikes(make):
    whole, bad = make(break_with_spike, guard__spike="skip", at=range(17, 19), **SPIKES)
    whole.train()
    run, _ = make(break_with_spike, name="b", guard__spike="skip", at=range(17, 19), **SPIKES)
    run.train(until=lambda: any(m.step == 16 for m, _ in complete_checkpoints(run.run_dir)), before=24)
    assert run.train() == [0, 0]
    assert events(run, "attempt")[-1]["resumed_from_step"] == 16
    assert {event["step"] for event in events(run, "skipped")} == {bad}
    assert run.curve() == whole.curve()


def test_watching_spikes_does_not_change_a_healthy_curve(new_run, undisturbed):
    watched = new_run(guard__spike="skip")
    assert watched.train() == [0, 0]
    assert watched.curve() == undisturbed().curve()


def test_a_loss_scale_that_was_too_high_is_no_fault(undisturbed):
    run = undisturbed(workload__precision="fp16")
    assert not events(run, "skipped")
    assert {row.get("skipped") for row in run.rows()} <= {None, "loss_scale"}


# The judge, by itself


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def judged(values, **settings):
    judge = StepJudge(Guard.model_validate({"spike": "skip", "window": 8, "sigmas": 3} | settings), torch.device("cpu"))
    one = torch.ones(())
    return [judge.judge(torch.tensor(value), one * value).item() for value in values]


STEADY = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_found_from_the_first_step_on(alone, value):
    assert judged([value, 1.0]) == [1.0, 0.0]


def test_a_spike_is_found_once_half_of_the_window_is_filled(alone):
    assert judged([*STEADY[:3], 5.0]) == [0, 0, 0, 0]
    assert judged([*STEADY[:4], 5.0]) == [0, 0, 0, 0, 2]


def test_a_spike_does_not_make_the_next_one_look_usual(alone):
    assert judged([*STEADY, 5.0, 5.0, 5.0])[-3:] == [2, 2, 2]


def test_a_fall_is_no_spike(alone):
    assert judged([*STEADY, 0.0])[-1] == 0


def test_only_the_last_steps_count(alone):
    noisy = [1.0, 9.0] * 4
    assert judged([*noisy, 5.0])[-1] == 0
    assert judged([*noisy, *STEADY, 5.0])[-1] == 2


@pytest.mark.parametrize("masks_on_device", [True, False])
@pytest.mark.parametrize("first", [True, False], ids=["first-step", "later-step"])
def test_a_refused_step_leaves_every_bit_of_weights_and_optimizer_state(alone, masks_on_device, first):
    """Both the way of accelerators and that of CPUs."""
    module = torch.nn.Linear(4, 4)
    device = torch.device("cpu")
    one = resolve_layout(Layout(), world_size=1, global_batch=1, micro_batch=1)
    optimizer = StepOptimizer(
        [module], Mesh(one, "cpu"), Optimizer(), num_steps=9, precision="fp32", device=device, guard=Guard()
    )
    optimizer.masks_on_device = masks_on_device

    def step(number, value):
        module(torch.full((2, 4), value)).sum().backward()
        optimizer.step(number, torch.tensor(value))
        state = [tensor.clone() for of in optimizer.adamw.state.values() for tensor in of.values()]
        return [parameter.detach().clone() for parameter in module.parameters()] + state

    before = [parameter.detach().clone() for parameter in module.parameters()] if first else step(0, 1.0)
    after = step(1, math.nan)
    assert all(torch.equal(was, now) for was, now in zip(before, after, strict=False))
    assert not any(tensor.any() for tensor in after[len(before) :])
    assert not torch.equal(step(2, 1.0)[0], before[0])


def test_an_infinite_loss_with_finite_gradients_makes_them_nan():
    weight = torch.zeros(2, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(weight + torch.tensor([0.0, -math.inf]), torch.tensor(1))
    spread_nonfinite(loss, 1.0).backward()
    assert math.isinf(loss.item()) and weight.grad.isnan().any()


@pytest.mark.parametrize("scale", [1.0, 0.25, 1 / 3])
def test_a_finite_loss_is_scaled_to_the_last_bit(scale):
    loss = torch.tensor(2.7182818)
    assert torch.equal(spread_nonfinite(loss, scale), loss * scale)


@pytest.mark.parametrize(
    ("verdict", "loss", "loss_scaling", "reason"),
    [
        (0.0, 1.0, False, None),
        (1.0, 1.0, False, "nonfinite"),
        (1.0, 1.0, True, "loss_scale"),
        (1.0, math.nan, True, "nonfinite"),
        (2.0, 9.0, True, "spike"),
    ],
)
def test_the_reason_of_a_skipped_step(verdict, loss, loss_scaling, reason):
    assert reason_of(verdict, loss, loss_scaling=loss_scaling) == reason


def test_the_rare_token_stands_in_one_batch(make):
    run, bad = make()
    seed = run.run_dir.read_resolved().run_file.workload.seed
    assert bad_steps(run, seed=seed) == [bad]
