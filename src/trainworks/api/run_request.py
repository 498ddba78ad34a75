"""A run, an array or a pipeline as requested: from the arguments of `run` or `submit` to checked run files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainworks.agent.environments.files import with_image
from trainworks.api.inputs import read_tasks
from trainworks.catalog.explaining import explaining_names
from trainworks.config.load import NO_SETTINGS, Settings, with_settings
from trainworks.config.run_description import is_run_description, parse_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.skypilot_task import changed_elsewhere
from trainworks.config.slurm.sbatch import BatchSource
from trainworks.config.source import Source
from trainworks.config.spec import FieldError, name_from, run_name
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, shell, skypilot
from trainworks.jobs.formats.manifest import KubernetesJob, to_yaml
from trainworks.jobs.job_spec import ARRAY_ID, new_array_id
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of
from trainworks.record.run_dir import RunDir

_LARGEST_ARRAY = 10_000


@dataclass(frozen=True, slots=True)
class Turn:
    """Place of a job in an array or a pipeline, whose jobs wait for each other."""

    at_once: int | None
    """Most jobs that run at the same time; 1 for the tasks of a pipeline."""
    needs_success: bool = False
    """Whether the job before it has to succeed, as in a pipeline."""
    first: RunDir | None = None
    """Run directory of the first job of the array, whose kept code this one shares; None for the first itself."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: its run file, the text it was read from, and the command if the run has no workload."""

    run_file: RunFile
    source: Source | None = None
    command: list[str] | None = None
    notes: tuple[str, ...] = ()
    """Remarks on the run file, such as ignored options of a batch script."""
    unused: tuple[str, ...] = ()
    """Keys of a SkyPilot task or of a manifest of Kubernetes that have no effect where the run starts."""
    turn: Turn | None = None
    """Its place in an array or a pipeline, as `jobs_of` gives it; None for a run of its own."""

    @property
    def needs_success(self) -> bool:
        """Whether the run is a task of a pipeline, which starts when the one before it has succeeded."""
        return self.turn is not None and self.turn.needs_success


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """A batch script with `--array`: one command, once per index."""

    run: RunRequest
    indexes: str


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """Tasks of which each starts when the one before it has succeeded."""

    tasks: tuple[RunRequest, ...]


AnyRequest = RunRequest | ArrayRequest | PipelineRequest
RunTarget = str | Path | RunFile | AnyRequest | Mapping[str, Any] | Sequence[str]
"""A run file by its path, a run file as an object or a mapping, or a command as a list of words."""


def runs_of(request: AnyRequest) -> tuple[RunRequest, ...]:
    """The runs as they are written: the tasks of a pipeline, or the one run."""
    if isinstance(request, PipelineRequest):
        return request.tasks
    return (request.run if isinstance(request, ArrayRequest) else request,)


def one_run(request: AnyRequest) -> RunRequest:
    """The run of a request for one.

    Raises:
        UsageError: the request is an array or a pipeline.
    """
    if isinstance(request, RunRequest):
        return request
    what = "a pipeline" if isinstance(request, PipelineRequest) else f"`--array={request.indexes}` in the script"
    hint = "use `trainworks submit`, or `trainworks.submit_array` in Python"
    raise UsageError(f"{what} makes several jobs, and this starts one", hint=hint)


def read_run_file(text: str) -> RunRequest:
    """The run that the text of a run file describes; its paths are relative to the current folder.

    Raises:
        RunFileError: every problem in it, each with its line.
        UsageError: it is a pipeline.
    """
    with explaining_names():
        tasks = parse_tasks(text, name="run.yaml")
    return one_run(_request_of(tasks))


def read_request(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    restarts: int | None = None,
    name: str | None = None,
    env: Sequence[str] = (),
    settings: Settings = NO_SETTINGS,
) -> AnyRequest:
    """Read and check the run, the array or the pipeline that a target describes.

    Args:
        target: a run file or manifest (`*.yaml`), a batch script (`*.sbatch`), a run file as an object, or a command.
        nodes: number of nodes instead of the run file's.
        nproc: ranks per node instead of the run file's.
        restarts: most automatic restarts instead of the run file's.
        name: name of the run instead of the run file's.
        env: `NAME=VALUE` or `NAME`, in addition to the run file's `envs` or instead of those; see `parse_variables`.
        settings: other values by key of the run file; the arguments above win.

    Raises:
        UsageError: the target is neither a run file nor a command, or `env` is invalid or for a workload.
        RunFileError: a problem in the run file.
    """
    request = _read(target, name, settings)
    if isinstance(request, PipelineRequest) and (nodes or nproc or name):
        raise UsageError("the tasks of a pipeline have nodes and names of their own", hint="set them in the file")
    variables = parse_variables(env)
    if env and any(run.run_file.workload is not None for run in runs_of(request)):
        raise UsageError("a workload reads no variables", place="--env", hint="use `--env` for a command")

    def changed(run: RunRequest) -> RunRequest:
        run_file = run.run_file.with_ranks(nodes, nproc)
        update: dict[str, object] = {"name": _checked(name)} if name else {}
        update |= {"envs": run_file.envs | variables} if env else {}
        if restarts is not None:
            update["recover"] = run_file.recover.model_copy(update={"max_restarts": restarts})
        run_file = run_file.model_copy(update=update)
        return replace(run, run_file=run_file, notes=tuple(dict.fromkeys((*run.notes, *warnings_about(run_file)))))

    return _each(request, changed)


def read_run(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
    settings: Settings = NO_SETTINGS,
) -> RunRequest:
    """Read and check a target that describes one run; arguments and errors are those of `read_request`.

    Raises:
        UsageError: the target is an array or a pipeline.
    """
    return one_run(read_request(target, nodes=nodes, nproc=nproc, name=name, settings=settings))


def _each(request: AnyRequest, change: Callable[[RunRequest], RunRequest]) -> AnyRequest:
    if isinstance(request, PipelineRequest):
        return PipelineRequest(tuple(map(change, request.tasks)))
    return replace(request, run=change(request.run)) if isinstance(request, ArrayRequest) else change(request)


def _read(target: RunTarget, name: str | None, settings: Settings) -> AnyRequest:
    if isinstance(target, AnyRequest):
        return _each(target, lambda run: replace(run, run_file=with_settings(run.run_file, settings, run.source)))
    if isinstance(target, RunFile | Mapping):
        return RunRequest(with_settings(RunFile.model_validate(target), settings))
    words = [str(target)] if isinstance(target, str | Path) else [str(word) for word in target]
    if len(words) == 1 and is_run_description(words[0]):
        return _request_of(read_tasks(Path(words[0]), settings))
    if words[0].endswith((".yaml", ".yml")) and Path(words[0]).is_file():
        raise UsageError(
            f"a run file is the only argument, and `{words[1]}` follows `{words[0]}`",
            hint="set a value of it with `--set optimizer.lr=1e-4`; `trainworks sweep` tries several: `1e-4,3e-4`",
        )
    if shutil.which(words[0]) is None:
        command = f"-- python {words[0]}" if words[0].endswith(".py") else "--nproc 2 -- python train.py"
        message = f"`{words[0]}` is neither a run file (*.yaml), nor a batch script (*.sbatch), nor a program"
        raise UsageError(message, hint=f"trainworks run run.yaml, or: trainworks run {command}")
    # `train` for `python train.py --lr 1`: the first argument that looks like a script, else the program
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0])
    run_file = RunFile(name=_checked(name or name_from(Path(script).stem)), run=" ".join(words))
    return RunRequest(with_settings(run_file, settings), command=None if "run" in settings else words)


def _request_of(tasks: Sequence[tuple[RunFile, Source]]) -> AnyRequest:
    runs = tuple(
        RunRequest(
            run_file,
            source,
            notes=tuple(source.notes) if isinstance(source, BatchSource) else (),
            unused=tuple(source.unused),
        )
        for run_file, source in tasks
    )
    source = tasks[0][1]
    if isinstance(source, BatchSource) and source.array is not None:
        return ArrayRequest(runs[0], source.array)
    return PipelineRequest(runs) if len(runs) > 1 else runs[0]


def _checked(name: str) -> str:
    try:
        return run_name(name)
    except FieldError as error:
        raise UsageError(str(error), hint=error.hint) from None


def jobs_of(request: AnyRequest, indexes: str | None = None) -> list[RunRequest]:
    """The jobs of an array, the same command once per index, or the tasks of a pipeline.

    Every command of an array finds its id in TRAINWORKS_ARRAY_ID, its index in TRAINWORKS_ARRAY_INDEX and
    SLURM_ARRAY_TASK_ID, the number of jobs in TRAINWORKS_ARRAY_SIZE and SLURM_ARRAY_TASK_COUNT, and the limits of the
    indexes in SLURM_ARRAY_TASK_MIN and MAX.

    Args:
        request: a run, an array or a pipeline.
        indexes: `8` for 0 to 7, `3-10`, `0-20:4` for every fourth, or `1,3,5-7`; `0-99%8` runs 8 at once. By default
            those of the batch script.

    Returns:
        One request per index, in their order, or per task; the request itself without indexes.

    Raises:
        UsageError: the indexes are invalid, or the run is a workload or a pipeline.
    """
    if isinstance(request, PipelineRequest):
        if indexes is not None:
            raise UsageError("a pipeline cannot be an array", hint="submit each of its tasks as an array")
        return [replace(task, turn=Turn(at_once=1, needs_success=True)) for task in request.tasks]
    run, written = (request.run, request.indexes) if isinstance(request, ArrayRequest) else (request, None)
    if (indexes := indexes or written) is None:
        return [run]
    listed, percent, at_once = indexes.partition("%")
    members = _indexes(listed)
    is_limit = bool(re.fullmatch(r"[1-9]\d{0,8}", at_once))
    if not 0 < len(members) <= _LARGEST_ARRAY or is_limit is not bool(percent):
        hint = "write `--array 8`, `3-10`, `0-20:4`, `1,3,5-7` or `0-99%8`"
        raise UsageError(f"`--array {indexes}` is not an array of 1 to {_LARGEST_ARRAY:,} jobs", hint=hint)
    if run.run_file.workload is not None:
        raise UsageError("a workload cannot be an array: it does not read an index", hint="use `--array` for a command")
    array, turn = new_array_id(), Turn(int(at_once) if is_limit else None)
    jobs = []
    for index in members:
        variables = {
            ARRAY_ID: array,
            "TRAINWORKS_ARRAY_INDEX": str(index),
            "TRAINWORKS_ARRAY_SIZE": str(len(members)),
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(len(members)),
            "SLURM_ARRAY_TASK_MIN": str(members[0]),
            "SLURM_ARRAY_TASK_MAX": str(members[-1]),
        }
        run_file = run.run_file.model_copy(update={"envs": run.run_file.envs | variables})
        jobs.append(replace(run, run_file=run_file, turn=turn))
    return jobs


def _indexes(text: str) -> Sequence[int]:
    """Indexes in their order; empty if the text is invalid or describes too many."""
    if re.fullmatch(r"\d{1,9}", text):
        return range(int(text))
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if match is None or int(match[3] or 1) == 0 or int(match[2] or match[1]) < int(match[1]):
            return ()
        members = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
        if len(members) > _LARGEST_ARRAY:
            return ()
        found.update(members)
    return sorted(found)


_ENGINES = {"jobset": "kubernetes", "trainjob": "kubernetes", "skypilot": "skypilot"}
"""Formats whose nodes start from an image, and the engine with the key of it."""


def _check_needs_no_trainworks(run_file: RunFile, name: str) -> None:
    """Refuse what only Trainworks does, before the job or on its nodes."""
    if run_file.environment is not None and (run_file.environment.file or name not in _ENGINES):
        key = f"environment.{run_file.environment.kind}"
        hint = "bake the packages into an image" if name in _ENGINES else f"remove `{key}`"
        raise UsageError(f"a job as {name} does not support `{key}`: nothing on its nodes builds it", hint=hint)
    if run_file.job.health:
        raise UsageError(f"a job as {name} cannot check its nodes", hint="remove `job.health`")
    if run_file.job.keep_code:
        raise UsageError(f"a job as {name} cannot keep its code", hint="remove `job.keep_code`")


def not_kept(run_file: RunFile, name: str) -> list[str]:
    """What a job loses in another format: the options of other engines, and what only SkyPilot has in `resources`."""
    if name == "run-file":
        return []
    blocks = {key: getattr(run_file.cluster, key) for key in ("local", "slurm", "kubernetes", "skypilot", "ssh")}
    lost = [
        f"`cluster.{key}.{option}` is not kept in a job as {name}"
        for key, block in blocks.items()
        for option in (block.model_dump(exclude_defaults=True) if key != _ENGINES.get(name) else ())
        if (key, option) not in _KEPT_OTHERWISE
    ]
    roles = [key for key, role in run_file.roles.items() if role.skypilot is not None and name != "skypilot"]
    lost += [f"`roles.{role}.skypilot` is not kept in a job as {name}" for role in roles]
    changed = changed_elsewhere(run_file.resources, run_file.roles, chooses=run_file.cluster.of is not None)
    return lost + [f"`{'.'.join(map(str, path))}`: {what}" for path, what in changed if name != "skypilot"]


_KEPT_OTHERWISE = (("skypilot", "secrets"), ("skypilot", "program"))
"""Options without a counterpart whose effect a job has in every format, or does not need."""


def job_in_format(request: AnyRequest, name: str) -> str:
    """The job as text for an engine that Trainworks does not talk to, or as a run file; this machine is not probed.

    A comment at the top names everything that the format does not keep.

    Args:
        request: the job.
        name: `jobset`, `trainjob`, `skypilot`, `lsf` or `run-file`.

    Raises:
        UsageError: the format cannot express the job.
    """
    text = _job_text(request, name)
    first, rest = text.split("\n", 1) if text.startswith("#!") else (None, text)
    comments = "".join(f"# {' '.join(remark.split())}\n" for remark in not_kept(runs_of(request)[0].run_file, name))
    return (f"{first}\n" if first is not None else "") + comments + rest


def _run_file_text(run: RunRequest, array: Sequence[str]) -> str:
    """The run file that a foreign file is read as; its remarks are comments at the top."""
    remarks = [f"# {' '.join(remark.split())}\n" for remark in (*array, *run.notes, *run.unused)]
    return "".join(remarks) + to_yaml(run.run_file.model_dump(mode="json", exclude_unset=True))


def _job_text(request: AnyRequest, name: str) -> str:
    if name == "run-file":
        array = (f"submit it with `--array {request.indexes}`",) if isinstance(request, ArrayRequest) else ()
        return "---\n".join(_run_file_text(run, array) for run in runs_of(request))
    if isinstance(request, PipelineRequest):
        raise UsageError(f"a pipeline is several jobs, and {name} is one", hint="write each task to a file of its own")
    (run,) = runs_of(request)
    run_file = with_image(run.run_file, _ENGINES.get(name))
    if run_file.cluster.of is not None:
        from trainworks.jobs.described_nodes import with_described_nodes  # noqa: PLC0415  # imports the catalogue

        run_file = with_described_nodes(run_file, run.source, of_format=True)
    _check_needs_no_trainworks(run_file, name)
    if name != "skypilot":  # the others take secrets from the shell or from a Secret, and the text has no values
        hidden = dict.fromkeys(run_file.cluster.skypilot.secrets)
        run_file = run_file.model_copy(update={"envs": run_file.envs | hidden})
    if run_file.roles and name != "skypilot":
        return jobset.render_roles(run_file, name)
    spec = spec_of(run_file, run_id=run_file.name, working_folder=run_file.workdir or "")
    program, cluster = program_of(run_file, command=tuple(run.command or ())), run_file.cluster
    if name == "lsf":
        return shell.render_lsf(spec, program, elastic=cluster.autoscale is not None)
    if name == "skypilot":
        return skypilot.render(spec, program, cluster.skypilot, cluster.autoscale)
    job = KubernetesJob(spec=spec, program=program, cluster=cluster.kubernetes, autoscale=cluster.autoscale)
    return jobset.render(job) if name == "jobset" else jobset.render_trainjob(job)


_OPTION = "--env"


def parse_variables(assignments: Sequence[str], shell: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Variables as the run file's `envs` has them: None takes the value from the shell that submits the run.

    Args:
        assignments: `NAME=VALUE` or `NAME`; of several for one name the last one counts.
        shell: variables of the caller, which must have every `NAME` without a value.

    Raises:
        UsageError: an assignment is malformed, a value holds the character of code 0, or the caller has no such
            variable.

    Examples:
        >>> parse_variables(["LR=1e-4", "QUERY=a=b", "EMPTY=", "HOME"], {"HOME": "/home/ada"})
        {'LR': '1e-4', 'QUERY': 'a=b', 'EMPTY': '', 'HOME': None}
    """
    variables: dict[str, str | None] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            hint = "write `--env NAME=VALUE`, or `--env NAME` for the value of your shell"
            raise UsageError(f"`{name}` is not the name of a variable", place=_OPTION, hint=hint)
        if "\0" in value:
            raise UsageError(f"`{name}` cannot hold the character of code 0", place=_OPTION)
        if not equals and name not in shell:
            hint = f"export {name}=..., or write `--env {name}=VALUE`"
            raise UsageError(f"environment variable `{name}` has no value", place=_OPTION, hint=hint)
        variables[name] = value if equals else None
    return variables


def warnings_about(run_file: RunFile) -> tuple[str, ...]:
    """Remarks on secrets that are written into the run directory."""
    return tuple(
        f"the record of the run keeps the value of {name}, readable by you alone; `{name}: null` in `envs` takes it "
        "from your shell and keeps it out"
        for name in run_file.written_secrets
    )
