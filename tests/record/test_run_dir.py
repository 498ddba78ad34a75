"""The run directory: who makes it, who finds it, what stands in it."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tests.fakes import LAUNCH_AT, resolved_command
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnknownRunError
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir, find_run, list_runs
from trainworks.record.status import RunStatus

CREATE_TEN = """
import sys
from pathlib import Path
from trainworks.record.runs_folder import create_run_dir
for _ in range(10):
    print(create_run_dir(Path(sys.argv[1]), "demo").run_id)
"""


def test_runs_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert [create_run_dir(tmp_path, "demo").run_id for _ in range(3)] == ["demo-1", "demo-2", "demo-3"]


def test_a_number_is_not_given_twice_after_a_run_was_deleted(tmp_path: Path) -> None:
    first, _ = create_run_dir(tmp_path, "demo"), create_run_dir(tmp_path, "demo")
    first.logs.rmdir()
    first.checkpoints.rmdir()
    first.path.rmdir()
    assert create_run_dir(tmp_path, "demo").run_id == "demo-3"


def test_a_name_that_ends_in_a_number_is_counted_by_itself(tmp_path: Path) -> None:
    create_run_dir(tmp_path, "demo-7")
    assert create_run_dir(tmp_path, "demo").run_id == "demo-1"


def test_a_file_in_the_way_is_stepped_over(tmp_path: Path) -> None:
    (tmp_path / "demo-1").touch()
    assert create_run_dir(tmp_path, "demo").run_id == "demo-2"


def test_concurrent_creators_get_different_folders(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CREATE_TEN, tmp_path]
    creators = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    names = [name for creator in creators for name in creator.communicate()[0].split()]
    assert sorted(names, key=lambda name: int(name[5:])) == [f"demo-{number}" for number in range(1, 41)]


def test_a_new_run_has_folders_for_logs_and_checkpoints(run_dir: RunDir) -> None:
    assert sorted(path.name for path in run_dir.path.iterdir()) == ["checkpoints", "logs"]


def test_every_path_lies_in_the_run_directory(run_dir: RunDir) -> None:
    properties = [name for name, value in vars(RunDir).items() if isinstance(value, property) and name != "run_id"]
    paths = [getattr(run_dir, name) for name in properties]
    paths += [run_dir.node_log(0), run_dir.rank_log(0), run_dir.checkpoint(1)]
    assert len(set(paths)) == len(properties) + 3
    assert all(path.is_relative_to(run_dir.path) for path in paths)


def test_checkpoint_folders_come_in_order_of_their_steps(run_dir: RunDir) -> None:
    for step in (200, 100_000_000, 30):
        run_dir.checkpoint(step).mkdir()
    (run_dir.checkpoints / "step-200.tmp").mkdir()
    assert [step for step, _ in run_dir.checkpoint_folders()] == [30, 200, 100_000_000]


def test_a_resolved_run_is_read_as_it_was_written(run_dir: RunDir) -> None:
    run_dir.write_resolved(resolved_command())
    assert run_dir.read_resolved() == resolved_command()


def test_a_folder_that_is_no_run_is_an_environment_problem(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"has no resolved\.json") as refused:
        RunDir(tmp_path).read_resolved()
    assert refused.value.hint == "is it a run directory?"


def test_a_resolved_run_of_another_version_is_an_environment_problem(run_dir: RunDir) -> None:
    run_dir.resolved_file.write_text('{"format_version": 2}')
    with pytest.raises(EnvironmentProblem, match="fields differ") as refused:
        run_dir.read_resolved()
    assert refused.value.hint == "read it with the version of Trainworks that wrote it"


def test_a_status_is_read_as_it_was_written(run_dir: RunDir) -> None:
    status = RunStatus(state="RUNNING", supervisor_pid=7, supervisor_started_at=1.5)
    run_dir.write_status(status)
    assert run_dir.read_status() == status


@pytest.mark.parametrize("content", [None, "", "{", '{"state": 1}'])
def test_a_run_without_a_readable_status_was_never_launched(run_dir: RunDir, content: str | None) -> None:
    if content is not None:
        run_dir.status_file.write_text(content)
    assert run_dir.read_status().state == "CREATED"


def test_a_run_is_found_by_its_id_or_its_path(run_dir: RunDir) -> None:
    root = run_dir.path.parent
    assert find_run(root, "demo-1").path == find_run(root, str(run_dir.path)).path == run_dir.path


def test_a_name_finds_its_last_run_and_a_number_none(tmp_path: Path) -> None:
    for name in [*["demo"] * 10, "demo-2", "7"]:
        create_run_dir(tmp_path, name)
    assert [find_run(tmp_path, name).run_id for name in ("demo", "demo-2")] == ["demo-10", "demo-2"]
    with pytest.raises(UnknownRunError):
        find_run(tmp_path, "7")  # the number of a job


def test_the_newest_run_is_found_without_a_name(tmp_path: Path) -> None:
    for at, name in enumerate(("b", "a")):
        create_run_dir(tmp_path, name).write_resolved(resolved_command(created_at=LAUNCH_AT + at))
    assert find_run(tmp_path, None).run_id == "a-1"


def test_writing_to_an_old_run_does_not_make_it_the_newest(tmp_path: Path) -> None:
    old, new = create_run_dir(tmp_path, "demo"), create_run_dir(tmp_path, "demo")
    for at, run_dir in enumerate((old, new)):
        run_dir.write_resolved(resolved_command(created_at=LAUNCH_AT + at))
    old.report_file.touch()
    assert [run.run_id for run in list_runs(tmp_path)] == [old.run_id, new.run_id]
    assert find_run(tmp_path, None).run_id == new.run_id


def test_an_unknown_run_names_the_known_ones(run_dir: RunDir) -> None:
    with pytest.raises(UnknownRunError, match="no run `demo-9`") as refused:
        find_run(run_dir.path.parent, "demo-9")
    assert refused.value.hint == "known runs: demo-1"


def test_where_there_are_no_runs_the_hint_is_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError, match="no runs in") as refused:
        find_run(tmp_path / "nowhere", None)
    assert refused.value.hint == "start one: trainworks run run.yaml"


def test_other_folders_are_no_runs(run_dir: RunDir) -> None:
    (run_dir.path.parent / "notes").mkdir()
    assert [run.run_id for run in list_runs(run_dir.path.parent)] == ["demo-1"]


@pytest.mark.parametrize(
    ("envs", "secrets", "mode"),
    [
        ({"LR": "1", "HF_TOKEN": None}, (), 0o644),
        ({"WANDB_API_KEY": ""}, (), 0o644),
        ({"WANDB_API_KEY": "x"}, (), 0o600),
        ({"db_password": "x"}, (), 0o600),
        ({"WORD": "x"}, ("WORD",), 0o600),
    ],
)
def test_a_run_with_the_value_of_a_secret_is_readable_by_its_user_alone(
    envs: dict[str, str | None], secrets: tuple[str, ...], mode: int, tmp_path: Path
) -> None:
    skypilot = {"engine": "skypilot", "skypilot": {"secrets": secrets}} if secrets else {}
    run_file = RunFile.model_validate({"name": "a", "run": "true", "envs": envs, "cluster": skypilot})
    run_dir = create_run_dir(tmp_path, "a")
    resolved = resolved_command(run_dir.run_id, run_file=run_file)
    run_dir.write_run_file("run: 'true'", resolved)
    run_dir.write_resolved(resolved)
    run_dir.write_edited(resolved)
    files = (run_dir.run_file, run_dir.resolved_file, run_dir.edited_file)
    assert [file.stat().st_mode & 0o777 for file in files] == [mode] * 3
    assert run_dir.read_resolved().run_file.envs == envs


def test_a_run_with_a_name_in_another_script_is_found_in_either_encoding_of_its_letters(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "entraîné") for form in ("NFC", "NFD"))
    run = create_run_dir(tmp_path, composed)
    assert find_run(tmp_path, f"{decomposed}-1").path == find_run(tmp_path, decomposed).path == run.path
    assert create_run_dir(tmp_path, "训练").run_id == "训练-1"
    assert find_run(tmp_path, "训练").run_id == "训练-1"


def test_the_longest_name_leaves_room_for_the_number_of_the_run(tmp_path: Path) -> None:
    name = RunFile(name="训" * 63, run="true").name
    assert create_run_dir(tmp_path, name).path.is_dir()
