"""What changes in a run before it is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.resuming.changes import UNCHANGED, ResumeChanges, changed_run
from trainworks.errors import UsageError


def test_another_answer_to_bad_steps_is_in_the_resolved_run(tmp_path: Path) -> None:
    run_dir = RunWriter(tmp_path, make_plan(), None).run_dir
    wanted = ResumeChanges(settings={"guard.nonfinite": "rollback"})
    resolved, changes = changed_run(run_dir, wanted, node_planner="")
    assert (resolved.run_file.guard.nonfinite, resolved.run_file.guard.spike) == ("rollback", "ignore")
    assert list(map(str, changes)) == ["guard.nonfinite: skip -> rollback"]
    assert resolved.plan == run_dir.read_resolved().plan


def test_the_schedule_changes_with_the_short_names_of_its_keys(tmp_path: Path) -> None:
    run_dir = RunWriter(tmp_path, make_plan(), None).run_dir
    wanted = ResumeChanges(settings={"optimizer.lr": "1e-5", "workload.optimizer.schedule": "constant"})
    resolved, changes = changed_run(run_dir, wanted, node_planner="")
    assert resolved.run_file.workload is not None
    assert (resolved.run_file.workload.optimizer.lr, resolved.run_file.workload.optimizer.schedule) == (
        1e-5,
        "constant",
    )
    assert [change.key for change in changes] == ["workload.optimizer.lr", "workload.optimizer.schedule"]


def test_a_run_without_changes_stays_as_it_is(tmp_path: Path) -> None:
    run_dir = RunWriter(tmp_path, make_plan(), None).run_dir
    assert changed_run(run_dir, UNCHANGED, node_planner="") == (run_dir.read_resolved(), [])


@pytest.mark.parametrize("key", ["guard.nonfinite", "optimizer.lr", "train_for", "layout.tp"])
def test_a_command_has_no_workload(tmp_path: Path, key: str) -> None:
    run_dir = RunWriter(tmp_path, None, "sleep 1").run_dir
    with pytest.raises(UsageError, match="runs a command"):
        changed_run(run_dir, ResumeChanges(settings={key: "skip"}), node_planner="")


@pytest.mark.parametrize("key", ["workload.model.layers", "data.source", "name", "cluster.nodes", "workload", "seed"])
def test_what_makes_another_run_cannot_change(key: str) -> None:
    with pytest.raises(UsageError, match=f"`{key}` cannot change in a resumed run"):
        ResumeChanges(settings={key: 1}).by_key()
