"""`trainworks capacity` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import trainworks_program
from trainworks.cli.planning.capacity import capacity_command
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.capacity.teams import parse_teams, sampled_jobs

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACE = str(EXAMPLES / "jobs-trace.csv")
TEAMS = str(EXAMPLES / "capacity" / "teams.yaml")
ON_NODES = ("--node", "DGX H100")
SMALL = "submit_s,accelerators,duration_s,team,preemptible\n0,8,3600,a,1\n60,16,7200,b,0\n90000,8,60,a,1\n"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A trace of three jobs that is replayed in no time."""
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    return str(path)


def answer_of(*arguments: str) -> dict[str, Any]:
    done = trainworks_program("capacity", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_example_trace_is_answered_in_full(golden) -> None:
    done = trainworks_program("capacity", TRACE, *ON_NODES)
    assert (done.returncode, done.stderr) == (0, "")
    golden("capacity.txt", done.stdout)


def test_teams_in_words_give_the_answer_of_the_trace_that_is_sampled_from_them(tmp_path: Path) -> None:
    fixed = (*ON_NODES, "--fixed", "20", "--on-demand-max", "0", "--spot-max", "0")
    sampled = answer_of(TEAMS, *fixed, "--save-trace", str(tmp_path / "jobs.csv"))
    assert (tmp_path / "jobs.csv").read_text() == Path(TRACE).read_text()
    replayed = answer_of(TRACE, *fixed)
    assert sampled | {"trace": ""} == replayed | {"trace": ""}


def test_another_seed_samples_other_jobs() -> None:
    one, other = (sampled_jobs(parse_teams(Path(TEAMS).read_text(), name=TEAMS), seed=seed) for seed in (1, 2))
    assert [job.duration_s for job in one] != [job.duration_s for job in other]


def test_json_has_all_policies_the_front_and_what_is_best(small: str) -> None:
    answer = answer_of(small, *ON_NODES)
    front = [policy for policy in answer["policies"] if policy["on_front"]]
    assert answer["jobs"] == 3
    assert answer["smallest_fixed"]["service"]["teams"].keys() == {"a", "b"}
    assert answer["cheapest_at_target"]["cost_usd_per_week"] == min(
        policy["cost_usd_per_week"] for policy in answer["policies"] if policy["worst_team_wait_p90_s"] <= 4 * 3600
    )
    assert len({policy["cost_usd_per_week"] for policy in front}) == len(front)


def test_given_prices_replace_those_of_the_catalogue(small: str) -> None:
    given = ("--price", "5", "--spot-price", "2", "--own-price", "1")
    answer = answer_of(small, "--accelerators-per-node", "8", *given)
    assert answer["usd_per_accelerator_hour"] == {"fixed": 1, "spot": 2, "on_demand": 5}


def test_a_figure_is_explained_down_to_its_sources(small: str, golden) -> None:
    done = trainworks_program("capacity", small, *ON_NODES, "--fixed", "3", "--explain", "cost per week")
    assert done.returncode == 0
    golden("capacity_explain.txt", done.stdout)


def test_the_page_has_a_dot_for_every_policy(small: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer = answer_of(small, *ON_NODES, "--html", str(page))
    assert page.read_text().count("<circle") == len(answer["policies"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "no node is named"),
        ({"node": "DGX H1000"}, "no node or instance `DGX H1000`"),
        ({"node": "DGX H100", "accelerators_per_node": 8}, "`--node` sets the accelerators of a node"),
        ({"accelerators_per_node": 8}, "without `--node` no price is known"),
        ({"price": -1.0}, "-1 is not between 0 and"),
        ({"wait": "4"}, "`4` has no unit"),
        ({"wait": "4h", "deadlines": 0.9}, "two targets"),
        ({"deadlines": "95"}, "`95` is not between 0 and 100 %"),
        ({"deadlines": 0.9}, "no job of the trace has a deadline that it can meet"),
        ({"spot_life": "1s"}, "`1s` is below 1m 0s"),
        ({"fixed": 0, "on_demand_max": 1}, "the limits leave too few nodes for every job"),
        ({"html": Path("/nowhere/page.html")}, "`/nowhere` is not a folder"),
        ({"html": Path()}, "`.` is not a file"),
        ({"save_trace": Path("jobs.csv")}, "is a trace already"),
        ({"explain": "happiness"}, "no figure `happiness`"),
    ],
)
def test_a_wrong_request_is_one_usage_error_with_a_next_step(small: str, options: dict[str, Any], error: str) -> None:
    price = {"accelerators_per_node", "node"} & options.keys() or not options
    with pytest.raises(UsageError) as found:
        capacity_command(Path(small), **(options if price else {"node": "DGX H100"} | options))
    assert error in found.value.message
    assert found.value.hint or "html" in options


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", b"", "the trace has no jobs"),
        ("a.csv", b"\xff\xfe\x00", "cannot read"),
        ("a.csv", b"submit_s,accelerators,duration_s\n0,0,1\n", "invalid accelerators `0`"),
        ("a.yaml", b"", "no teams"),
        ("a.yaml", b"teams:\n  x: {jobs_per_week: 1}\n", "`accelerators` is missing"),
        ("b.csv", b"", "no file"),
    ],
)
def test_a_wrong_file_is_a_usage_error(tmp_path: Path, name: str, content: bytes, error: str) -> None:
    (tmp_path / name.replace("b.", "c.")).write_bytes(content)
    with pytest.raises(UsageError) as found:
        capacity_command(tmp_path / name, node="DGX H100")
    assert error in found.value.message


def test_the_place_of_a_wrong_cell_is_printed_and_the_exit_code_is_that_of_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("submit_s,accelerators,duration_s\n0,0,1\n")
    done = trainworks_program("capacity", "a.csv", *ON_NODES, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "  --> a.csv:2  accelerators" in done.stderr


def test_a_page_that_cannot_be_written_is_a_problem_of_the_machine(small: str) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        capacity_command(Path(small), node="DGX H100", html=Path("/proc/page.html"))
