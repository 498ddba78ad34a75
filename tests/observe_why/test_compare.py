"""Two runs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainworks
from tests.observe_why.conftest import Planned
from tests.report.conftest import RunWriter
from trainworks.api.run_handle import Run
from trainworks.report.runs.run_comparison import RunComparison


@pytest.fixture
def compared(planned: Planned) -> RunComparison:
    """A run, and one with another layout, slower communication and a lower loss that stopped earlier."""
    first = planned().train(100, communication_s=0.1, loss=2.0)
    second = planned(layout={"dp_shard": 2, "micro_batch": 4}).train(60, communication_s=9.0, loss=1.5)
    first.finish()
    second.finish()
    return trainworks.compare(Run(first.run_dir), Run(second.run_dir))


def test_only_settings_that_differ_are_named(compared: RunComparison) -> None:
    names = {setting.name for setting in compared.settings}
    assert {"layout.dp_replicate", "layout.dp_shard", "layout.micro_batch"} <= names
    assert not {name for name in names if name.startswith(("workload", "packages", "host"))}


def test_the_term_that_differs_most_is_named(compared: RunComparison) -> None:
    assert "most by communication: 100 ms and 9 s" in compared.finding
    step = next(figure for figure in compared.figures if figure.name == "step time")
    assert step.relative is not None and step.relative > 0


def test_losses_are_compared_at_steps_that_both_have(compared: RunComparison) -> None:
    assert compared.losses[0] == (1, 2.0, 1.5)
    assert compared.losses[-1][0] == 60


def test_text_and_page_have_both_runs(compared: RunComparison) -> None:
    assert all(run in str(compared) and run in compared.to_html() for run in compared.runs)


def test_a_command_and_a_workload_can_be_compared(planned: Planned, tmp_path: Path) -> None:
    command = RunWriter(tmp_path, None, "train")
    command.launch().wait(9.0).finish()
    workload = planned().train(20)
    workload.finish()
    found = trainworks.compare(Run(command.run_dir), Run(workload.run_dir))
    assert found.finding == "at least one of the runs has no measured step"
    assert {"run", "workload.task"} <= {setting.name for setting in found.settings}


def test_equal_runs_have_no_difference(planned: Planned) -> None:
    run = planned().train(20)
    run.finish()
    found = trainworks.compare(Run(run.run_dir), Run(run.run_dir))
    assert found.settings == ()
    assert found.finding == "the steps of both runs take the same time within 2%"


def test_a_secret_variable_differs_without_its_value(planned: Planned) -> None:
    runs = []
    for token in ("hunter22", "swordfish"):
        run = planned().train(5)
        resolved = run.run_dir.read_resolved()
        changes = {
            "envs": {"HF_TOKEN": token, "NCCL_ALGO": token[:2], "SALT": token},
            "cluster": {"engine": "skypilot", "skypilot": {"secrets": ["SALT"]}},
        }
        run_file = resolved.run_file.model_validate(resolved.run_file.model_dump(exclude_unset=True) | changes)
        run.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
        runs.append(Run(run.run_dir))
    found = trainworks.compare(*runs)
    values = {each.name: (each.first, each.second) for each in found.settings if each.name.startswith("envs")}
    assert values["envs.NCCL_ALGO"] == ("hu", "sw")
    for name in ("envs.HF_TOKEN", "envs.SALT"):
        assert [value[:3] for value in values[name] if value] == ["***", "***"]
