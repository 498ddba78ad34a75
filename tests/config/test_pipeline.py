"""Pipelines of SkyPilot: files of several tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.config.run_description import load_tasks, parse_tasks
from trainworks.errors import RunFileError

CHAIN = "name: chain\n---\nname: train\nrun: a\nresources: {use_spot: true}\n---\nname: eval\nrun: b\n"


def test_each_task_is_a_run_file_with_the_lines_of_the_file() -> None:
    (train, source), (evaluation, other) = parse_tasks(CHAIN, name="t.yaml")
    assert (train.name, train.run, evaluation.name, evaluation.run) == ("train", "a", "eval", "b")
    named = [note.split(" has no effect")[0] for note in source.unused]
    assert named == ["t.yaml:5  resources.use_spot", "t.yaml:1  name"]
    assert other.unused == [] and other.place(("run",)) == "t.yaml:8  run"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name: one\nrun: a\n", ["one"]),
        ("---\nname: one\nrun: a\n---\n", ["one"]),
        ("name: header\n---\nname: one\nrun: a\n", ["one"]),
        ("name: header\nexecution: serial\n---\nrun: a\n", ["t"]),
        ("name: one\nrun: a\n---\nname: two\nrun: b\n", ["one", "two"]),
    ],
)
def test_a_header_and_empty_documents_are_no_task(text: str, names: list[str]) -> None:
    assert [run_file.name for run_file, _ in parse_tasks(text, name="t.yaml")] == names


@pytest.mark.parametrize(
    ("text", "message", "places"),
    [
        ("name: g\nexecution: sideways\n---\nrun: a\n---\nrun: b\n", "`execution: sideways` is not", ["t.yaml:2"]),
        ("name: g\nprimary_tasks: [a]\n---\nrun: a\n", "`primary_tasks` is for a job group", ["t.yaml:2"]),
        ("run: a\nnod: 1\n---\nrun: b\nnode: 2\n", "unknown key", ["t.yaml:2", "t.yaml:5"]),
        ("---\n---\n", "must be a mapping", ["t.yaml:1"]),
    ],
)
def test_what_is_no_pipeline_is_refused_with_every_place(text: str, message: str, places: list[str]) -> None:
    with pytest.raises(RunFileError, match=message) as refused:
        parse_tasks(text, name="t.yaml")
    assert [problem.place.split()[0] for problem in refused.value.problems if problem.place] == places


def test_a_script_that_is_no_batch_script_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text("#!/bin/bash\nsbatch <<EOF\n#!/bin/bash\n#SBATCH -N 2\nEOF\n")
    with pytest.raises(RunFileError) as refused:
        load_tasks(path)
    (problem,) = refused.value.problems
    assert "no `#SBATCH` is before its first command" in problem.message and problem.place == f"{path}:1"
    assert problem.hint is not None and "trainworks run -- bash start.sh" in problem.hint
