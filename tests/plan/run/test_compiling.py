"""`compile: auto`: two numbers, one decision, and the same object for the plan, the worker and the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plan.shapes import layout, shape, workload
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.layout import Layout
from trainworks.config.run_file import RunFile
from trainworks.plan.degrees import layouts_of
from trainworks.plan.run.compiling import NO_COMPILER, compile_time, decided_compile
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.pricing import RunJob, described_job
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.resolved import CompileChoice

MODEL = {"layers": 16, "hidden": 2048, "heads": 16}
"""On an H100 the plan knows what compiling saves of its step."""


def job(device: str = "cuda", *, model: dict[str, Any] = MODEL, **changes: Any) -> RunJob:
    """On one H100."""
    data = {"source": "python-stdlib", "sequence_length": 2048} | changes.pop("data", {})
    of_run = workload(**{"compile": "auto", "model": model, "data": data} | changes)
    return described_job(of_run, shape(32000, 2048, **model), parse_cluster("1x H100-SXM-80GB"), device)


def choice(steps: int, *, one: RunJob | None = None, **degrees: Any) -> CompileChoice:
    decided = decided_compile(one or job(), layout(micro_batch=4).model_copy(update=degrees), steps=steps)
    assert decided.compile_choice is not None
    assert decided.workload.compile is decided.compile_choice.compiled is decided.software.fused_kernels
    return decided.compile_choice


def past(compile_s: float | None) -> FinishedRun:
    """A run on this kind of machine."""
    named = {"run": f"/runs/{compile_s}", "machine": "h100", "software": "trainworks", "model": "llama", "layout": ""}
    times = {"planned_s": 1.0, "low_s": 0.9, "high_s": 1.1, "measured_s": 1.0, "spread": 0.1}
    return FinishedRun(
        **named, **times, finished_at=0.0, by_rate_s={}, learned_from=0, num_steps=9, compile_s=compile_s
    )


def test_long_runs_compile_and_short_ones_do_not() -> None:
    few, many = choice(3), choice(100_000)
    assert (few.compiled, many.compiled) == (False, True)
    assert many.saved_s == pytest.approx(100_000 * (many.eager_step_s - many.compiled_step_s))
    assert few.saved_s < few.compile_s == many.compile_s < many.saved_s


def test_by_default_a_plan_for_accelerators_decides_and_one_for_processors_has_nothing_to_decide() -> None:
    silent = workload(model=MODEL, data={"source": "python-stdlib", "sequence_length": 2048})
    jobs = [replace(job(device), workload=silent) for device in ("cuda", "cpu")]
    assert [one.leaves_compile_open for one in jobs] == [True, False]
    assert not job(compile=False).leaves_compile_open


def test_a_machine_without_a_c_compiler_stays_eager_and_says_so() -> None:
    decided = decided_compile(job(), layout(micro_batch=4), steps=100_000, obstacle=NO_COMPILER)
    assert decided.compile_choice is not None and not decided.compile_choice.compiled
    assert decided.compile_choice.describe() == f"eager: {NO_COMPILER}"


def test_the_two_steps_are_those_of_the_planner() -> None:
    layouts = layouts_of([layout(micro_batch=4)])
    said = [float(job(compile=compiled).step_times(layouts).total_s[0]) for compiled in (False, True)]
    assert [choice(10).eager_step_s, choice(10).compiled_step_s] == said


def test_what_earlier_runs_measured_replaces_the_assumption() -> None:
    assumed_s, source = compile_time([past(None)])
    assert "assumption" in source
    assert compile_time([past(5.0), past(None), past(7.0)]) == (6.0, "median of 2 earlier runs here")
    saves = choice(10_000)
    steps = round(10_000 * assumed_s / saves.saved_s)
    again = decided_compile(job(), layout(micro_batch=4), steps=steps // 2, past=[past(1e-3)]).compile_choice
    assert again is not None and again.compiled and not choice(steps // 2).compiled


@pytest.mark.parametrize(
    ("changes", "degrees", "text"),
    [
        ({"deterministic": True}, {}, "`deterministic`"),
        ({"model": {**MODEL, "architecture": "mixtral"}}, {}, "experts"),
        ({"model": {**MODEL, "architecture": "gpt2"}}, {}, "`architecture: gpt2`"),
        ({"data": {"pack": True}}, {}, "`data.pack`"),
        ({}, {"pp": 2}, "pp 2"),
        ({}, {"recompute": "full"}, "recompute full"),
    ],
    ids=str,
)
def test_what_no_test_compiles_stays_eager_with_the_reason(
    changes: dict[str, Any], degrees: dict[str, Any], text: str
) -> None:
    found = choice(10**6, one=job(**changes), **degrees)
    assert not found.compiled
    assert found.describe().startswith("eager: ") and text in found.describe()


def test_a_compiled_run_searches_layouts_that_tests_compile() -> None:
    decided = decided_compile(job(), layout(micro_batch=4), steps=10**6)
    assert all(one.layout.recompute == "none" for one in choose_layouts(decided, Layout()))
    assert any(one.layout.recompute == "full" for one in choose_layouts(job(), Layout()))


def test_one_sentence_has_the_decision_and_its_numbers() -> None:
    made = {"eager_step_s": 0.5, "compiled_step_s": 0.4, "saved_s": 100.0, "compile_s": 60.0, "source": "assumed"}
    assert CompileChoice(compiled=True, **made).describe() == (
        "compiled: compiling saves 1m 40s (500 ms to 400 ms a step) and takes 1m 0s (assumed)"
    )
    assert CompileChoice(compiled=False, **made | {"saved_s": 10.0}).describe() == (
        "eager: compiling would save 10 s (500 ms to 400 ms a step) and takes 1m 0s (assumed)"
    )


def test_a_described_cluster_is_planned_as_it_will_be_trained() -> None:
    fields = {"name": "x", "cluster": {"engine": "slurm", "of": "1 node of 8x H100-SXM-80GB"}}
    data = {"source": "./text", "sequence_length": 2048, "vocabulary": 32000}
    plans = {}
    for compiled in (False, True, "auto"):
        of_run = {"task": "causal-lm", "model": MODEL, "data": data, "global_batch": 64, "train_for": "20000 steps"}
        run_file = RunFile.model_validate({**fields, "workload": {**of_run, "compile": compiled}})
        plans[compiled] = plan_cluster(run_file, None, learning=False, advise=False)
    eager, compiled, auto = (plan.best[0] for plan in plans.values())
    assert auto.step_time == compiled.step_time
    assert auto.step_time_s < 0.99 * eager.step_time_s
    assert any(note.startswith("`compile: auto` is compiled: compiling saves") for note in plans["auto"].notes)
