"""The sentence that a result begins with: what to do, the figure that decides, and what would change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import trainworks
from trainworks.config.run_file import RunFile
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BenchVerdict, Judged, verdict_on
from trainworks.plan.cluster.plan import ClusterPlan, LayoutComparison
from trainworks.record.step_time import TIE
from trainworks.results import ResultVerdict
from trainworks.review.finding import Finding, ReviewReport, Severity

RunStart = Callable[..., Any]
RUN = RunFile.model_validate(
    {
        "name": "small",
        "workload": {
            "task": "causal-lm",
            "model": {"architecture": "llama", "layers": 8, "hidden": 1024, "heads": 8},
            "data": {"sequence_length": 512, "vocabulary": 32000},
            "precision": "bf16",
            "global_batch": 64,
            "train_for": "1000 steps",
        },
    }
)


@pytest.fixture(scope="module")
def plan() -> ClusterPlan:
    """A plan with layouts of several kinds, and no goal."""
    found = trainworks.plan(RUN, on="2 nodes of 8x A100-SXM-80GB over 8x HDR", sizes=True)
    assert isinstance(found, ClusterPlan) and len(found.best) > 1
    return found


def with_second(plan: ClusterPlan, ratio: float) -> ClusterPlan:
    """The plan with one other kind of layout, whose step is `ratio` times that of the best."""
    second = plan.best[1].model_copy(update={"step_time_s": ratio * plan.best[0].step_time_s})
    return replace(plan, best=[plan.best[0], second])


def test_the_three_parts_are_one_sentence() -> None:
    assert ResultVerdict("Rent it", "9 USD").sentence == "Rent it: 9 USD."
    assert ResultVerdict("Rent it", "9 USD", "spot is half").sentence == "Rent it: 9 USD; spot is half."


def test_text_page_and_json_begin_with_the_same_sentence(plan: ClusterPlan) -> None:
    sentence = plan.verdict.sentence
    assert " ".join(str(plan).split()).startswith(sentence)
    page = plan.to_html()
    assert page.index("<h1>") < page.index('<p class="verdict') < page.index("<section")
    facts = plan.to_json()
    assert next(iter(facts)) == "verdict" and facts["verdict"]["sentence"] == sentence


@pytest.mark.parametrize(
    ("ratio", "is_tie"),
    [(TIE * 1.01, False), (TIE * 0.99, True), (1.0, True), (0.99, True)],
    ids=["beyond", "within", "equal", "faster and more complicated"],
)
def test_a_gap_within_what_a_plan_is_sure_of_has_no_winner(plan: ClusterPlan, ratio: float, is_tie: bool) -> None:
    verdict = with_second(plan, ratio).verdict
    assert ("no clear winner" in verdict.unless, verdict.signal == "check") == (is_tie, is_tie)


def test_the_only_kind_of_layout_that_fits_is_no_winner_of_a_comparison(plan: ClusterPlan) -> None:
    assert replace(plan, best=plan.best[:1]).verdict.unless == "no other kind of layout fits"


def test_a_goal_that_is_missed_comes_before_the_layout(plan: ClusterPlan) -> None:
    missed = replace(plan, goal="1h: met with a chance of 4 % on 2 nodes", chance=0.04)
    scale = replace(plan.scales[-1], num_nodes=8, chance=0.95)
    more, none = replace(missed, scales=[scale]), replace(missed, scales=[])
    assert more.verdict.action == "Take 8 nodes instead of 2" and more.verdict.signal == "stop"
    assert more.verdict.figure == "the goal of 1h is met with a chance of 4 % on 2 nodes"
    assert none.verdict.action.startswith("Give the run more time or money")
    fewer = replace(plan, goal="9h: ...", chance=0.95, scales=[replace(scale, num_nodes=1)])
    assert fewer.verdict.unless == "1 node would meet the goal as well"


def test_two_layouts_that_are_too_near_are_to_be_timed(plan: ClusterPlan) -> None:
    slow, near, best = (with_second(plan, ratio) for ratio in (1.5, 1.01, 1.0))
    slow, near = (replace(each, best=[each.best[1]]) for each in (slow, near))
    assert LayoutComparison(near, best).verdict.action == "Time both layouts"
    assert LayoutComparison(slow, best).verdict.figure.endswith(": 33% less")
    assert LayoutComparison(best, best).verdict.action == "Keep this layout"


def test_a_network_says_what_serves_as_well_and_what_has_more_room() -> None:
    chosen = trainworks.network(on="16 nodes of DGX A100").verdict
    assert chosen.action == "Build a star network of 4 x Quantum QM8700 and 128 cables"
    assert "beyond 40 nodes" in chosen.unless
    larger = trainworks.network(on="16 nodes of DGX A100", topology="spine-leaf").verdict
    assert larger.unless == "a star of 4 switches serves as well"
    ring = trainworks.network(on="16 nodes of DGX A100", topology="ring").verdict
    assert ring.signal == "check" and "cuts a ring" in ring.unless


def judged(verdict: BenchVerdict, share: float = 1.0, subject: str = "node1") -> Judged:
    """A figure with its verdict."""
    return Judged(Measurement(Quantity.GEMM, 1e12, subject, "torch"), verdict, "a reason", 1e12, share)


@pytest.mark.parametrize(
    ("verdicts", "action", "signal"),
    [
        ([BenchVerdict.PASS, BenchVerdict.IMPOSSIBLE, BenchVerdict.FAIL], "Measure node1 again", "stop"),
        ([BenchVerdict.PASS, BenchVerdict.FAIL, BenchVerdict.BUSY], "Repair node1", "stop"),
        ([BenchVerdict.PASS, BenchVerdict.BUSY, BenchVerdict.WEAK], "Measure again without other programs", "check"),
        ([BenchVerdict.PASS, BenchVerdict.WEAK], "Train, and keep an eye on node1", "check"),
        ([BenchVerdict.PASS, BenchVerdict.NO_EXPECTATION], "Train on them", "go"),
        ([BenchVerdict.NO_EXPECTATION], "Name the hardware with `--expect`", "check"),
    ],
)
def test_the_worst_figure_decides(verdicts: list[BenchVerdict], action: str, signal: str) -> None:
    found = verdict_on([judged(each) for each in verdicts])
    assert (found.action[: len(action)], found.signal) == (action, signal)


def test_of_two_that_fail_the_weaker_one_is_repaired_first() -> None:
    found = verdict_on([judged(BenchVerdict.FAIL, 0.7), judged(BenchVerdict.FAIL, 0.2, "node2")])
    assert found.action == "Repair node2 before you train"


@pytest.mark.parametrize(
    ("severities", "action", "signal"),
    [
        ([], "Use it as it is", "go"),
        (["note", "warning"], "Use it, and look at stack.yaml:2:1", "check"),
        (["warning", "error"], "Mend stack.yaml:2:1 first", "stop"),
        (["error"], "Mend stack.yaml:1:1", "stop"),
    ],
)
def test_the_worst_finding_of_a_review_decides(severities: list[Severity], action: str, signal: str) -> None:
    findings = [
        Finding("stack.yaml", line, 1, "TW731", each, "a message", "why", "fix", "source")
        for line, each in enumerate(severities, 1)
    ]
    found = ReviewReport(findings, 1).verdict
    assert (found.action, found.signal) == (action, signal)


def test_a_run_as_planned_says_to_trust_the_plan(start_run: RunStart) -> None:
    verdict = start_run().launch().steps(40, communication_s=0.012, memory=1_000_000_000).report().verdict
    assert verdict.action == "Trust the plan" and "agreed with the plan" in verdict.figure


def test_what_to_do_is_about_the_difference_that_is_named(start_run: RunStart) -> None:
    verdict = start_run().launch().steps(40, communication_s=0.02, memory=1_500_000_000).report().verdict
    assert verdict.action == "Leave more memory free in the next plan"
    assert verdict.figure.startswith("memory peak was 50 % higher")


def test_a_slower_run_says_whom_to_ask(start_run: RunStart) -> None:
    verdict = start_run().launch().steps(40, communication_s=0.5).finish().report().verdict
    assert (verdict.action, verdict.signal) == ("Ask `trainworks why stdlib-lm-1` what to mend", "check")


def test_a_faster_run_says_to_plan_with_what_it_measured(start_run: RunStart) -> None:
    verdict = start_run().launch().steps(40, compute_s=0.02, communication_s=0.001).report().verdict
    assert verdict.action == "Plan the next run with what this one measured"


@pytest.mark.parametrize(
    ("state", "action", "signal"),
    [
        ("STOPPED", "Continue it with `trainworks resume stdlib-lm-1`", "check"),
        ("FAILED", "Mend the cause, then `trainworks resume stdlib-lm-1`", "stop"),
        ("LOST", "Mend the cause, then `trainworks resume stdlib-lm-1`", "stop"),
    ],
)
def test_a_run_that_did_not_end_well_says_how_it_goes_on(
    start_run: RunStart, state: str, action: str, signal: str
) -> None:
    report = start_run().launch().steps(5).status(state, hint="free some space.").report(state=state)
    assert (report.verdict.action, report.verdict.signal) == (action, signal)
    assert report.verdict.unless == ("" if state == "STOPPED" else "free some space")


def test_a_run_before_its_first_step_is_to_be_waited_for(start_run: RunStart) -> None:
    verdict = start_run().launch().report().verdict
    assert (verdict.action, verdict.figure) == ("Let it run", "no step is recorded yet")


def test_a_command_without_a_plan_has_a_verdict(start_run: RunStart) -> None:
    run = start_run(command="true").launch().wait(9.0)
    assert run.finish().report().verdict.action == "Use what it left"
