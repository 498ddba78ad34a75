"""Teams in words, and the jobs that are sampled from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainworks.errors import TrainworksError
from trainworks.plan.capacity.teams import Teams, parse_teams, sampled_jobs

VISION = "vision: {jobs_per_week: 50, accelerators: 8, duration: {median: 2h, spread: 3}}"
TEXT = f"weeks: 40\nteams:\n  {VISION}\n"


def teams(text: str = TEXT) -> Teams:
    return parse_teams(text, name="teams.yaml")


def test_the_same_seed_samples_the_same_jobs() -> None:
    assert sampled_jobs(teams(), seed=1) == sampled_jobs(teams(), seed=1) != sampled_jobs(teams(), seed=2)


def test_a_team_submits_the_same_whoever_else_does() -> None:
    both = sampled_jobs(teams(TEXT + "  other: {jobs_per_week: 9, accelerators: 1, duration: {median: 5m}}\n"), seed=1)
    assert [job for job in both if job.team == "vision"] == sampled_jobs(teams(), seed=1)


def test_jobs_come_at_their_rate_and_have_the_median_and_spread_that_was_asked_for() -> None:
    jobs = sampled_jobs(teams(), seed=1)
    logs = np.log([job.duration_s for job in jobs])
    assert len(jobs) == pytest.approx(2000, abs=4 * math.sqrt(2000))
    assert np.median(logs) == pytest.approx(math.log(7200), abs=0.1)
    assert np.std(logs) == pytest.approx(math.log(3), abs=0.06)


def test_a_spread_of_one_makes_all_jobs_equally_long() -> None:
    jobs = sampled_jobs(teams(TEXT.replace("spread: 3", "spread: 1")), seed=1)
    assert {job.duration_s for job in jobs} == {7200}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_jobs_of_working_hours_are_submitted_monday_to_friday_nine_to_six(share: float) -> None:
    text = TEXT.replace("accelerators: 8", f"accelerators: 8, working_hours_share: {share}")
    hours = [job.submit_s / 3600 % 168 for job in sampled_jobs(teams(text), seed=1)]
    assert {hour < 120 and 9 <= hour % 24 < 18 for hour in hours} == {share == 1.0}


def test_left_out_jobs_come_evenly_over_the_week() -> None:
    hours = [job.submit_s / 3600 % 168 for job in sampled_jobs(teams(), seed=1)]
    counts = np.histogram(hours, bins=7, range=(0, 168))[0]
    assert np.all(np.abs(counts - len(hours) / 7) < 4 * math.sqrt(len(hours) / 7))


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "teams.yaml:1", "no teams"),
        ("weeks: 4", "teams.yaml:1  teams", "`teams` is missing"),
        ("teams: {}", "teams.yaml:1  teams", "invalid `teams`"),
        (TEXT.replace("weeks: 40", "weeks: 0"), "teams.yaml:1  weeks", "`weeks` must be at least 1, got `0`"),
        (TEXT.replace("weeks:", "week:"), "teams.yaml:1  week", "unknown key `week`"),
        (TEXT.replace("jobs_per_week", "jobs"), "teams.yaml:3  teams.vision.jobs", "unknown key `jobs`"),
        (TEXT.replace("2h", "2"), "teams.yaml:3  teams.vision.duration.median", "`2` has no unit"),
        (TEXT.replace("spread: 3", "sigma: 3"), "teams.yaml:3  teams.vision.duration.sigma", "unknown key `sigma`"),
        (
            TEXT.replace("accelerators: 8", "accelerators: 0"),
            "teams.yaml:3  teams.vision.accelerators",
            "must be at least 1",
        ),
        (TEXT.replace(": 50", ": 1e6"), "teams.yaml:1  weeks", "40,000,000 jobs; at most 200,000"),
        ("teams: [", "teams.yaml:1", "invalid YAML"),
    ],
)
def test_an_error_says_what_and_where(text: str, place: str, message: str) -> None:
    with pytest.raises(TrainworksError) as found:
        teams(text)
    problems = getattr(found.value, "problems", [found.value])
    assert any(message in problem.message and problem.place == place for problem in problems)


def test_too_few_weeks_for_a_single_job_is_an_error() -> None:
    with pytest.raises(TrainworksError, match="no team submits a job in 1 weeks"):
        sampled_jobs(teams(TEXT.replace("40", "1").replace(": 50", ": 0.001")), seed=1)
