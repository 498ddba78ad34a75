"""What the nodes of a job run, in no engine's language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from trainworks.errors import UsageError

if TYPE_CHECKING:
    from trainworks.config.command import Framework, Resources
    from trainworks.config.engines import SkyPilot
    from trainworks.config.run_file import RunFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command, and what has to be there before it starts."""

    script: str | None = None
    """Text for a shell; without one `command` is started."""
    command: tuple[str, ...] = ()
    setup: str | None = None
    """Text for a shell, once per node before everything else."""
    envs: Mapping[str, str | None] = field(default_factory=dict)
    """One without a value is taken from where the job is submitted, and never written down."""
    framework: Framework | None = None
    processes_per_node: int = 1
    starts: Literal["per_rank", "per_node", "once"] = "per_rank"
    working_folder: str | None = None
    """Folder as written in the run file; the engine's own when None."""
    image: str | None = None
    is_workload: bool = False
    """True for the program of Trainworks itself, which trains the workload of the run."""
    resources: Resources | None = None
    """Resources as the run file has them: in alternatives, exact amounts and parts that `JobSpec` cannot tell apart."""
    roles: Mapping[str, Program] = field(default_factory=dict)
    """Programs of the roles of a job, in the order of the run file; the job has none of its own then."""
    skypilot: SkyPilot | None = None
    """Options of SkyPilot of a role; those of the cluster when None."""

    @property
    def argv(self) -> tuple[str, ...]:
        """What one process starts. A SkyPilot task relies on a bash that continues after a failing line."""
        if self.script is None:
            return self.command
        if self.framework == "slurm":
            return (*shell_of(self.script), "-c", self.script)
        strict = ("-euo", "pipefail") if self.starts != "per_node" else ()
        return ("/bin/bash", *strict, "-c", self.script)


def program_of(run_file: RunFile, *, command: tuple[str, ...] = ()) -> Program:
    """The program of a run that is a command, a text of the run file or the argument vector `command`; or of roles.

    Raises:
        UsageError: the run is a workload, or a text holds a character that no process can be given.
    """
    if run_file.roles:
        jobs = {name: run_file.of_role(name) for name in run_file.roles}
        roles = {name: replace(program_of(job), skypilot=job.cluster.skypilot) for name, job in jobs.items()}
        return Program(working_folder=run_file.workdir, roles=roles)
    if run_file.run is None:
        raise UsageError(
            "a workload is trained by Trainworks itself, and other engines get commands only",
            hint="write a run file with `run: trainworks run ...`, for an image that has Trainworks",
        )
    texts = [run_file.run, run_file.setup, *command, *run_file.envs.values()]
    if any("\0" in text for text in texts if text is not None):
        raise UsageError("a command cannot hold the character of code 0")
    # by default a rank per accelerator; a command that makes them itself starts once
    per_node, requested = run_file.cluster.processes_per_node, run_file.resources and run_file.resources.accelerators
    if per_node == "auto":
        per_node = requested[0].count if requested and run_file.starts != "per_node" else 1
    return Program(
        script=None if command else run_file.run,
        command=command,
        setup=run_file.setup,
        envs=run_file.envs,
        framework=run_file.framework,
        processes_per_node=per_node,
        starts=run_file.starts,
        working_folder=run_file.workdir,
        image=run_file.cluster.kubernetes.image,
        resources=run_file.resources,
    )


def shell_of(script: str) -> list[str]:
    r"""Interpreter in the first line of a script, with at most one argument; bash if there is none.

    >>> shell_of("#!/bin/bash -l\necho"), shell_of("echo")
    (['/bin/bash', '-l'], ['/bin/bash'])
    """
    found = re.match(r"#![ \t]*(\S+)[ \t]*([^\n]*)", script)
    return ["/bin/bash"] if found is None else [found[1], *filter(None, [found[2].rstrip()])]
