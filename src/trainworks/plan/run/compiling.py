"""What `compile: auto` decides: it compiles where the run is expected to save more time than compiling takes.

    saved = steps * (eager step - compiled step), both of the layout that is best for eager blocks

The compile time is the median of earlier runs of the same program on this kind of machine, or else an assumption of the
catalogue. Blocks of models and layouts that no test of this repository has compiled stay eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.assumptions import assumed
from trainworks.plan.degrees import layouts_of
from trainworks.plan.run.pricing import RunJob, software_of_workload
from trainworks.plan.run.trainable import compiled_in_tests
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.resolved import CompileChoice

NO_COMPILER = "the machine lacks a C compiler or Python's headers, with which Triton builds kernels"


def compile_time(past: Sequence[FinishedRun]) -> tuple[float, str]:
    """Seconds that compiling takes, and where the number is from.

    Args:
        past: finished runs of one program on one kind of machine.
    """
    times = [run.compile_s for run in past if run.compile_s is not None]
    if times:
        return median(times), f"median of {len(times)} earlier run{'s' if len(times) > 1 else ''} here"
    known = assumed("compile time")
    return known.value, known.source or ""


def decided_compile(
    job: RunJob, layout: ResolvedLayout, *, steps: int, past: Sequence[FinishedRun] = (), obstacle: str = ""
) -> RunJob:
    """The job with `compile` as true or false, and the choice beside it. Its best layout is to be searched anew.

    Args:
        job: with `compile: auto` and rates, on accelerators.
        layout: the best one with eager blocks.
        steps: optimizer steps of the run.
        past: see `compile_time`.
        obstacle: of the machine or the run file; empty where there is none, or it is not known yet.
    """
    layouts = layouts_of([layout])
    obstacle = _obstacle(job) or obstacle
    if not obstacle and not compiled_in_tests(layouts).all():
        obstacle = f"no test has compiled blocks under this layout ({layout.describe()})"
    if obstacle:
        return _with_choice(job, CompileChoice(compiled=False, obstacle=obstacle))
    eager_s, compiled_s = (
        float(_with_choice(job, CompileChoice(compiled=each)).step_times(layouts).total_s[0]) for each in (False, True)
    )
    saved_s, (compile_s, source) = steps * (eager_s - compiled_s), compile_time(past)
    choice = CompileChoice(
        compiled=saved_s > compile_s,
        eager_step_s=eager_s,
        compiled_step_s=compiled_s,
        saved_s=saved_s,
        compile_s=compile_s,
        source=source,
    )
    return _with_choice(job, choice)


def _with_choice(job: RunJob, choice: CompileChoice) -> RunJob:
    workload = job.workload.model_copy(update={"compile": choice.compiled})
    software = software_of_workload(workload, job.device)
    return replace(job, workload=workload, software=software, compile_choice=choice)


def _obstacle(job: RunJob) -> str | None:
    """Why blocks of the model stay eager under every layout; None where tests have compiled them."""
    workload, family = job.workload, job.workload.model.architecture
    untested = {
        "experts": job.shape.experts > 0,
        "an attention window": job.shape.window > 0,
        "dropout": workload.model.dropout > 0,
        "an adapter": workload.adapter is not None,
        "`preference`": workload.preference is not None,
        "`data.pack`": workload.data.pack,
        "`model.hf`": workload.model.hf is not None,
        f"`architecture: {family}`": family not in (None, "llama"),
    }
    if workload.deterministic:
        return "`deterministic` excludes kernels that are chosen by measuring"
    named = next((name for name, is_used in untested.items() if is_used), None)
    return None if named is None else f"no test has compiled blocks with {named}"
