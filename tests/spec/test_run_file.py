"""Run files as frozen values: what is read can be written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainworks.spec.load import load_run_file
from trainworks.spec.quantities import CheckpointInterval, TrainFor
from trainworks.spec.run_file import RunFile

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
WORKLOAD = {
    "task": "causal-lm",
    "model": {"layers": 2, "hidden": 64, "heads": 4},
    "data": {"source": "python-stdlib", "sequence_length": 64},
    "global_batch": 8,
    "train_for": "300 steps",
}
RUN_FILES = st.fixed_dictionaries(
    {"name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)},
    optional={
        "cluster": st.sampled_from(["local", {"nodes": 2}, {"processes_per_node": 4}]),
        "goal": st.builds(lambda hours: {"deadline": f"{hours}h"}, st.integers(1, 99)),
        "checkpoint": st.sampled_from([{"every": "auto"}, {"every": "50 steps"}, {"every": "90 s"}, {"keep": 2}]),
        "recover": st.builds(lambda days: {"max_restarts": 1, "node_mttf": f"{days} d"}, st.integers(1, 99)),
    },
)
WORKS = st.sampled_from(
    [
        {"run": "python train.py", "setup": "true", "envs": {"A": "1"}},
        {"workload": WORKLOAD, "layout": {"dp_shard": 2}},
        {"workload": WORKLOAD | {"train_for": "2B tokens", "optimizer": {"warmup": "20 steps"}}, "layout": "auto"},
    ]
)


def run_file(**changes: Any) -> RunFile:
    """A run file of a workload with changes at its top level."""
    return RunFile.model_validate({"name": "demo", "workload": WORKLOAD} | changes)


@given(RUN_FILES, WORKS)
def test_what_is_written_as_json_is_read_as_the_same(common: dict[str, Any], work: dict[str, Any]) -> None:
    written = RunFile.model_validate(common | work)
    assert RunFile.model_validate_json(written.model_dump_json()) == written


@given(st.integers(1, 10**8))
def test_a_checkpoint_interval_in_seconds_survives_json(seconds: int) -> None:
    written = run_file(checkpoint={"every": f"{seconds} s"})
    assert RunFile.model_validate_json(written.model_dump_json()) == written


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_run_file(example: Path) -> None:
    assert load_run_file(example)[0].name


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_a_run_file_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run_file().name = "other"  # type: ignore[misc]


def test_every_field_of_every_section_is_documented_or_speaks_for_itself() -> None:
    schema = RunFile.model_json_schema()
    assert all("description" in section for section in [schema, *schema["$defs"].values()])


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("300 steps", 300, "steps"), ("2B tokens", 2 * 10**9, "tokens"), ("1 epoch", 1, "epochs")],
)
def test_the_length_of_a_run_is_a_count_and_a_noun(text: str, amount: int, unit: str) -> None:
    assert TrainFor.parse(text) == TrainFor(amount=amount, unit=unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("auto", CheckpointInterval()),
        ("50 steps", CheckpointInterval(steps=50)),
        ("1 step", CheckpointInterval(steps=1)),
        ("10m", CheckpointInterval(seconds=600.0)),
    ],
)
def test_a_checkpoint_interval_is_automatic_or_steps_or_a_time(text: str, interval: CheckpointInterval) -> None:
    assert CheckpointInterval.parse(text) == interval


def test_an_interval_is_not_both_steps_and_a_time() -> None:
    with pytest.raises(ValidationError, match="either steps or a duration"):
        CheckpointInterval(steps=1, seconds=1.0)


@pytest.mark.parametrize("deadline", [3, "3", "-3h"])
def test_a_deadline_without_a_unit_is_refused(deadline: Any) -> None:
    with pytest.raises(ValidationError):
        run_file(goal={"deadline": deadline})


@pytest.mark.parametrize("node_mttf", [-1.0, 0.0, float("nan"), "0 s"])
def test_a_time_to_failure_is_positive(node_mttf: Any) -> None:
    with pytest.raises(ValidationError):
        run_file(recover={"node_mttf": node_mttf})


def test_a_checkpoint_interval_is_positive() -> None:
    with pytest.raises(ValidationError):
        run_file(checkpoint={"every": "0 s"})


@pytest.mark.parametrize("name", ["", "-a", ".hidden", "a/b", "a b", "x" * 64, "ü"])
def test_a_name_is_a_plain_folder_name(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        run_file(name=name)


def test_a_cluster_may_be_given_by_its_engine() -> None:
    assert run_file(cluster="local") == run_file(cluster={"engine": "local"})


def test_an_automatic_layout_is_none() -> None:
    assert run_file(layout="auto").layout is None


@pytest.mark.parametrize("work", [{}, {"run": "true", "workload": WORKLOAD}])
def test_a_run_is_a_workload_or_a_command(work: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one of `workload`"):
        RunFile.model_validate({"name": "demo"} | work)


@pytest.mark.parametrize("extra", [{"layout": {"dp_shard": 2}}, {"setup": "true", "run": None, "workload": WORKLOAD}])
def test_keys_of_the_other_kind_of_run_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunFile.model_validate({"name": "demo", "run": "true"} | extra)
