"""`--env`: variables of a command beside its run file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.api.run_request import one_run, read_request, read_run, runs_of
from trainworks.errors import UsageError

COMMAND = {"name": "t", "run": "true", "envs": {"A": "1"}}


@pytest.mark.parametrize(
    ("target", "env", "message"),
    [
        (COMMAND, "1A=x", "`1A` is not the name of a variable"),
        (COMMAND, "=x", "`` is not the name of a variable"),
        (COMMAND, "A B=x", "`A B` is not the name of a variable"),
        (COMMAND, "A=x\0", "`A` cannot hold the character of code 0"),
        (COMMAND, "NOT_SET_ANYWHERE", "environment variable `NOT_SET_ANYWHERE` has no value"),
        ("examples/stdlib-lm.yaml", "A=x", "a workload reads no variables"),
    ],
)
def test_an_error_names_the_option(target: object, env: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        read_request(target, env=[env])
    assert refused.value.place == "--env"


def test_variables_are_set_in_every_task_of_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("name: chain\n---\nname: first\nrun: 'true'\n---\nname: second\nrun: 'true'\nenvs: {A: 1, B: 2}\n")
    pipeline = read_request(str(file), env=["A=3", "A=4"])
    assert [task.run_file.envs for task in runs_of(pipeline)] == [{"A": "4"}, {"A": "4", "B": "2"}]


NOTE = (
    "the record of the run keeps the value of HF_TOKEN, readable by you alone; `HF_TOKEN: null` in `envs` takes it "
    "from your shell and keeps it out"
)


def test_a_secret_that_is_written_down_is_remarked_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    file = tmp_path / "a.yaml"
    file.write_text("run: 'true'\nenvs: {HF_TOKEN: x, LR: 1}\n")
    assert one_run(read_request(COMMAND, env=["HF_TOKEN=x", "LR=1"])).notes == (NOTE,)
    assert read_run(read_run(str(file))).notes == (NOTE,)
    assert one_run(read_request(str(file), env=["HF_TOKEN"])).notes == ()
