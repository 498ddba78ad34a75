"""What a notebook shows of the public functions: errors, lists of runs, rows as they come, and completion."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainworks
from tests.report.conftest import RunWriter, make_plan
from trainworks.api.run_handle import Run
from trainworks.config.run_file import RunFile
from trainworks.errors import RunFileError, TrainworksError, UsageError

ROOT = Path(__file__).parents[2]


def writer(folder: Path, name: str = "lm") -> RunWriter:
    """A run of a supervisor on another machine, which counts as alive."""
    written = RunWriter(folder, make_plan(), None, name).launch()
    return written.status("RUNNING", supervisor_host="another")


def test_an_error_shows_the_line_of_the_caller_and_its_hint_without_frames() -> None:
    with pytest.raises(UsageError) as refused:
        trainworks.plan(ROOT / "examples/plan-llama-2-7b.yaml", on="64x H1000")
    first, _, message, place, _, hint, *_, last = refused.value._render_traceback_()
    assert first.startswith(f"{__file__}, line ")
    assert first.endswith('trainworks.plan(ROOT / "examples/plan-llama-2-7b.yaml", on="64x H1000")')
    assert message.startswith("error: `64x H1000` does not describe a cluster")
    assert place == "  --> on"
    assert hint.startswith("hint: write it like ")
    assert last == "frames: %tb Verbose"


def test_every_problem_of_a_run_file_is_shown() -> None:
    problems: list[TrainworksError] = [UsageError("one", place="a.yaml:1"), UsageError("two", hint="mend it")]
    shown = RunFileError(problems)._render_traceback_()
    assert shown == ["error: one", "  --> a.yaml:1", "", "error: two", "", "hint: mend it", "", "frames: %tb Verbose"]


def test_runs_come_newest_first_and_show_as_a_table(tmp_path: Path) -> None:
    for _ in range(3):
        writer(tmp_path).steps(2)
    listed = trainworks.runs(tmp_path)
    assert [run.id for run in listed] == ["lm-3", "lm-2", "lm-1"]
    assert repr(listed) == "<RunList: 3 runs>"
    assert [line.split()[:3] for line in str(listed).splitlines()[1:]] == [
        [f"lm-{number}", "RUNNING", "2"] for number in (3, 2, 1)
    ]
    assert "<table" in listed._repr_mimebundle_()["text/html"]


def test_a_folder_without_runs_has_none(tmp_path: Path) -> None:
    assert trainworks.runs(tmp_path / "none") == []


def test_a_followed_run_yields_each_row_once_and_waits_for_the_next(tmp_path: Path) -> None:
    written = writer(tmp_path).steps(2)
    seen = Run(written.run_dir).follow(poll_s=0.001)
    assert [row["step"] for row in next(seen).new_rows] == [1, 2]
    written.steps(3)
    assert [row["step"] for row in next(seen).new_rows] == [3, 4, 5]
    written.steps(1).status("SUCCEEDED")
    rest = list(seen)
    assert [row["step"] for progress in rest for row in progress.new_rows] == [6]
    assert [str(progress.state) for progress in rest][-1] == "SUCCEEDED"


def test_a_run_that_has_ended_is_followed_in_one_snapshot(tmp_path: Path) -> None:
    written = writer(tmp_path).steps(4).status("SUCCEEDED")
    (only,) = Run(written.run_dir).follow()
    assert ([row["step"] for row in only.new_rows], only.state) == ([1, 2, 3, 4], "SUCCEEDED")


def test_a_run_has_its_metrics_as_columns(tmp_path: Path) -> None:
    written = writer(tmp_path).steps(4)
    assert Run(written.run_dir).metrics["step"].tolist() == [1, 2, 3, 4]


def test_completion_shows_the_names_of_a_model_and_none_of_pydantic() -> None:
    names = dir(RunFile.model_validate({"name": "a", "run": "true"}))
    assert {"name", "run", "cluster", "with_ranks"} <= {*names}
    assert [name for name in names if name.startswith("model_")] == []
    assert not {"json", "dict", "copy", "parse_obj", "schema"} & {*names}


def test_the_resolved_run_of_a_command_shows_what_it_runs_and_has_no_figures(tmp_path: Path) -> None:
    resolved = trainworks.run(["true"], folder=tmp_path).resolved
    assert repr(resolved) == "<ResolvedRun: true-1>"
    assert str(resolved).startswith("command  true")
    with pytest.raises(UsageError, match="run true-1 has no plan: it runs a command"):
        _ = resolved.step_time_s
