"""`--as`: a job in the language of an engine that Trainworks does not talk to."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from trainworks.cli.launch import Wanted
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, lsf, skypilot, trainjob
from trainworks.jobs.formats.manifest import KubernetesJob
from trainworks.jobs.job_spec import spec_of
from trainworks.jobs.program import program_of

__all__ = ["As", "Language", "job_as"]


class Language(StrEnum):
    """What `--as` takes."""

    JOBSET = "jobset"
    TRAINJOB = "trainjob"
    SKYPILOT = "skypilot"
    LSF = "lsf"


As = Annotated[
    Language | None,
    typer.Option("--as", help="With --dry-run, print the job in this format, for use without Trainworks."),
]

_RENDER: dict[Language, Callable[[KubernetesJob], str]] = {
    Language.JOBSET: jobset.render,
    Language.TRAINJOB: trainjob.render,
    Language.SKYPILOT: lambda job: skypilot.render(job.spec, job.program, job.autoscale),
    Language.LSF: lambda job: lsf.render(job.spec, job.program),
}


def job_as(language: Language, asked: Wanted) -> str:
    """The job as a text that the other engine takes as it is. This machine is not probed.

    Raises:
        UsageError: the job asks for something that cannot be said in this language.
    """
    run_file = asked.run_file
    spec = spec_of(run_file, run_id=run_file.name, working_folder=run_file.workdir or "")
    program = program_of(run_file, command=tuple(asked.command or ()))
    cluster = run_file.cluster
    if language is Language.LSF and cluster.autoscale is not None:
        hint = "leave `cluster.autoscale` out; LSF's resource connector has a file of its own"
        raise UsageError("a job of LSF has no say in which hosts come and go", hint=hint)
    job = KubernetesJob(spec=spec, program=program, cluster=cluster.kubernetes, autoscale=cluster.autoscale)
    return _RENDER[language](job)
