"""`trainworks review`: files in, findings out, as people and as programs read them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainworks
from trainworks.cli.app import app
from trainworks.config.slurm.sbatch import parse_batch_script
from trainworks.errors import ArgumentError, RunFileError, UsageError

BAD = "export NCCL_SOCKET_IFNAME=^lo,^docker0\nib_send_bw mlx5_0\n"
KEYS = {"file", "line", "column", "rule", "severity", "message", "why", "fix", "source"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(BAD, encoding="utf-8")
    return path


def command(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["review", *map(str, arguments)])
    if isinstance(done.exception, UsageError):
        raise done.exception
    return done.exit_code, done.stdout


def rules(path: Path, **options: list[str]) -> list[str]:
    return [finding.rule for finding in trainworks.review(path, **options).findings]


def test_pipes_and_broken_links_of_a_folder_are_left_out(script: Path) -> None:
    os.mkfifo(script.parent / "pipe.sh")
    (script.parent / "gone.sh").symlink_to("nowhere")
    assert rules(script.parent) == rules(script)


def test_findings_exit_with_1_and_name_their_place(script: Path) -> None:
    code, text = command(script)
    assert code == 1
    assert f"{script}:1:8: TW207 error" in text
    assert "2 findings in 1 file (2 can be corrected with `--fix`)" in text


def test_a_clean_file_exits_with_0(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("torchrun --standalone --nproc-per-node=8 train.py\n")
    assert command(tmp_path) == (0, "Use it as it is: nothing found in 1 file.\n")


def test_json_has_the_documented_keys(script: Path) -> None:
    found = json.loads(command(script, "--format", "json")[1])["findings"]
    assert [each["rule"] for each in found] == ["TW207", "TW210"]
    assert all(set(each) == KEYS for each in found)


def test_sarif_names_the_rule_and_the_place(script: Path) -> None:
    (run,) = json.loads(command(script, "--format", "sarif")[1])["runs"]
    first = run["results"][0]
    place = first["locations"][0]["physicalLocation"]
    assert (first["ruleId"], first["level"]) == ("TW207", "error")
    assert place["region"] == {"startLine": 1, "startColumn": 8}
    assert "TW207" in {rule["id"] for rule in run["tool"]["driver"]["rules"]}


@pytest.mark.parametrize("is_absolute", [True, False])
def test_sarif_names_files_below_this_folder_relative_to_it(
    script: Path, monkeypatch: pytest.MonkeyPatch, *, is_absolute: bool
) -> None:
    monkeypatch.chdir(script.parent)
    named = script if is_absolute else Path(script.name)
    (run,) = json.loads(command(named, "--format", "sarif")[1])["runs"]
    address = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert address == {"uri": "run.sh", "uriBaseId": "%SRCROOT%"}
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{script.parent.as_uri()}/"
    assert command(named, "--format", "github")[1].startswith("::error file=run.sh,")


def test_github_gets_a_workflow_command_per_finding(script: Path) -> None:
    lines = command(script, "--format", "github")[1].splitlines()
    assert lines[0].startswith(f"::error file={script},line=1,col=8,title=TW207::")


def test_a_safe_correction_is_written_and_changes_nothing_else(script: Path) -> None:
    code, text = command(script, "--fix")
    said = "Use it as it is: nothing found in 1 file.\n\ncorrected 2; nothing found in 1 file\n"
    assert (code, text) == (0, said)
    assert script.read_text() == "export NCCL_SOCKET_IFNAME=^lo,docker0\nib_send_bw -d mlx5_0\n"


def test_missing_backslashes_are_added(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nnodes=1 \n--nproc-per-node=8\n--max-restarts=3 train.py\n")
    trainworks.review(path, fix=True)
    assert path.read_text() == "torchrun --nnodes=1 \\\n--nproc-per-node=8 \\\n--max-restarts=3 train.py\n"


def test_a_correction_keeps_other_bytes_and_permissions(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(b"# \xff\xfe\r\nib_send_bw mlx5_0\r\n")
    path.chmod(0o755)
    trainworks.review(path, fix=True)
    assert path.read_bytes() == b"# \xff\xfe\r\nib_send_bw -d mlx5_0\r\n"
    assert path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"select": ["TW207"]}, ["TW207"]),
        ({"ignore": ["TW207"]}, ["TW210"]),
        ({"select": ["TW2"], "ignore": ["TW21"]}, ["TW207"]),
        ({"select": ["TW210"], "ignore": ["TW2"]}, ["TW210"]),
    ],
)
def test_rules_are_chosen_by_the_start_of_their_ids(
    script: Path, options: dict[str, list[str]], expected: list[str]
) -> None:
    assert rules(script, **options) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ib_send_bw mlx5_0  # trainworks: ignore[TW210]\n",
        "ib_send_bw mlx5_0  # trainworks: ignore\n",
        "# trainworks: ignore[TW210]\nib_send_bw mlx5_0\n",
        "# trainworks: ignore-file[TW210]\n\nib_send_bw mlx5_0\n",
    ],
)
def test_a_comment_silences_a_finding(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.sh").write_text(text)
    assert rules(tmp_path) == []


def test_a_comment_about_another_rule_silences_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("ib_send_bw mlx5_0  # trainworks: ignore[TW207]\n")
    assert rules(tmp_path) == ["TW210"]


def test_pyproject_leaves_out_rules_and_files(script: Path) -> None:
    section = '[tool.trainworks.review]\nignore = ["TW207"]\nexclude = ["old/*"]\n'
    (script.parent / "pyproject.toml").write_text(section)
    (script.parent / "old").mkdir()
    (script.parent / "old" / "run.sh").write_text(BAD)
    report = trainworks.review(script.parent)
    assert ([finding.rule for finding in report.findings], report.files) == (["TW210"], 1)


def test_a_typo_in_pyproject_is_refused_with_its_place(script: Path) -> None:
    (script.parent / "pyproject.toml").write_text('[tool.trainworks.review]\nignored = ["TW207"]\n')
    with pytest.raises(UsageError) as refused:
        trainworks.review(script)
    assert refused.value.hint == "did you mean `ignore`?"


@pytest.mark.parametrize("argument", ["select", "ignore"])
def test_an_unknown_rule_is_refused(script: Path, argument: str) -> None:
    with pytest.raises(ArgumentError, match="no rule `TW999`"):
        trainworks.review(script, **{argument: ["TW999"]})


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        trainworks.review(tmp_path / "missing.sh")


def test_data_and_binary_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_text("[" + "0," * 600_000 + "0]")
    (tmp_path / "core.txt").write_bytes(b"\0ib_send_bw mlx5_0\n")
    assert trainworks.review(tmp_path).files == 0


def test_explain_prints_the_page_of_a_rule() -> None:
    code, text = command("--explain", "TW210")
    assert code == 0
    assert "TW210: The adapter is taken for a host" in text
    assert "https://github.com/linux-rdma/perftest" in text


def test_nothing_to_review_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing to review"):
        command()


@pytest.mark.parametrize("line", ["--checkpoint=30", "--checkpoint 30", "--checkpoint-dir=/tmp", "--restart-dir=/tmp"])
def test_checkpoints_of_slurm_are_found_and_refused(tmp_path: Path, line: str) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH {line}\nsrun python train.py\n")
    (found,) = [each for each in trainworks.review(script).findings if each.severity == "error"]
    assert (found.rule, found.line) == ("TW302", 3)
    assert "was removed from Slurm with 20.02" in found.message
    with pytest.raises(RunFileError, match=r"was removed from Slurm with 20\.02"):
        parse_batch_script(script.read_text(), name=str(script))
