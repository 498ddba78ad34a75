"""`track` and `notify` in a run file: short and long forms, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.config.track import TRACKERS, Track
from trainworks.errors import RunFileError


def read(lines: str) -> RunFile:
    return parse_run_file(f"name: x\nrun: 'true'\n{lines}\n", name="x.yaml")[0]


@pytest.mark.parametrize(
    "written",
    [
        "track: [tensorboard, mlflow]",
        "track: {tensorboard: , mlflow: }",
        "track: {tensorboard: {}, mlflow: {}}",
        "track: [tensorboard, {mlflow: {}}]",
    ],
)
def test_trackers_are_a_list_or_a_mapping(written: str) -> None:
    assert read(written).track.names == ("tensorboard", "mlflow")


def test_one_tracker_needs_no_list() -> None:
    assert read("track: wandb").track.names == ("wandb",)


@pytest.mark.parametrize("written", ["", "track:", "track: []"])
def test_without_a_name_there_is_no_tracker(written: str) -> None:
    assert read(written).track.names == ()


def test_the_names_are_the_fields() -> None:
    assert tuple(Track.model_fields) == TRACKERS


@pytest.mark.parametrize(
    "written", ["track: [tensorboard]", "track: {mlflow: {uri: 'http://h:5000'}}", "", "notify: json://h"]
)
def test_the_record_has_the_same_trackers_and_recipients(written: str) -> None:
    run_file = read(written)
    assert RunFile.model_validate_json(run_file.model_dump_json()) == run_file


def refusal(lines: str) -> Any:
    with pytest.raises(RunFileError) as refused:
        read(lines)
    return refused.value.problems[0]


def test_an_unknown_tracker_names_the_nearest() -> None:
    problem = refusal("track: [mlfow]")
    assert "unknown tracker `mlfow`" in problem.message
    assert "`mlflow`" in problem.hint


def test_a_password_in_an_address_is_refused() -> None:
    problem = refusal("track: {mlflow: {uri: 'http://ada:pw@host:5000'}}")
    assert "password" in problem.message
    assert "MLFLOW_TRACKING_PASSWORD" in problem.hint
    assert "pw@host" not in problem.render()


@pytest.mark.parametrize(
    "url",
    [
        "slack://TokenA/TokenB/TokenC",
        "json://ada:pw@host",
        "mailto://ada:pw@host",
        "json://ada:pw@host/${X}",
        "wecombot://key",
        "mailtos://relay?user=ada&pass=hunter22",
        "json://host/${X}?+Authorization=Bearer%20abc",
    ],
)
def test_a_secret_in_the_run_file_is_refused_and_not_repeated(url: str) -> None:
    problem = refusal(f"notify: ['{url}']")
    assert "has a secret" in problem.message
    assert url.partition("://")[2] not in problem.render()


@pytest.mark.parametrize(
    "url",
    [
        "slack://${SLACK}",
        "mailto://ada:${PW}@host",
        "${TEAM_URL}",
        "json://host:8080/hook",
        "mailto://relay?to=a@b.c&pass=${PW}",
    ],
)
def test_a_recipient_without_a_secret_is_accepted(url: str) -> None:
    notify = read(f"notify: ['{url}']").notify
    assert notify is not None
    assert notify.to == (url,)


def test_a_recipient_without_a_scheme_is_refused() -> None:
    assert "scheme" in refusal("notify: [hello]").message


def test_occasions_and_times_have_defaults() -> None:
    notify = read("notify: json://host").notify
    assert notify is not None
    assert set(notify.when) == {"finished", "failed", "recovered", "waiting", "danger"}
    assert (notify.waiting_after, notify.at_most_every) == (3600.0, 300.0)
