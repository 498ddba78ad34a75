"""A run as requested: from the arguments of `run`, `submit` or `plan` to a checked run file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainworks.api.environments.files import with_image
from trainworks.api.environments.variables import parse_variables, warnings_about
from trainworks.catalog.explaining import explaining_names
from trainworks.config.load import name_from
from trainworks.config.manifests.load import parse_run_description
from trainworks.config.pipeline import load_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.skypilot_task import changed_elsewhere
from trainworks.config.slurm.sbatch import is_batch_script, load_batch_script
from trainworks.config.source import Source
from trainworks.config.spec import RUN_NAME_HINT, RunName
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, lsf, skypilot, trainjob
from trainworks.jobs.formats.manifest import KubernetesJob, to_yaml
from trainworks.jobs.job_spec import ARRAY_ID, new_array_id
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of
from trainworks.record.run_dir import RunDir

_LARGEST_ARRAY = 10_000


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run file, the text it was read from, and the command if the run has no workload."""

    run_file: RunFile
    source: Source | None = None
    command: list[str] | None = None
    notes: tuple[str, ...] = ()
    """Remarks on the run file, such as ignored options of a batch script."""
    unused: tuple[str, ...] = ()
    """Keys of a SkyPilot task or of a manifest of Kubernetes that have no effect where the run starts."""
    array: str | None = None
    """Indexes of a batch script with `--array`, whose jobs `array_members` makes."""
    at_once: int | None = None
    """Most jobs of the array that run at the same time; 1 for the tasks of a pipeline."""
    needs_success: bool = False
    """Whether the job before it in turn has to succeed, as in a pipeline."""
    first_of_array: RunDir | None = None
    """Run directory of the first job of the array, whose kept code this one shares; None for the first itself."""
    following: tuple[RunRequest, ...] = ()
    """Further tasks of a pipeline, which `array_members` makes jobs of."""


RunTarget = str | Path | RunFile | RunRequest | Mapping[str, Any] | Sequence[str]
"""A run file by its path, a run file as an object or a mapping, or a command as a list of words."""


def read_run_file(text: str) -> RunRequest:
    """The run that the text of a run file describes; its paths are relative to the current folder.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    with explaining_names():
        run_file, source = parse_run_description(text, name="run.yaml")
    return RunRequest(run_file, source, unused=tuple(source.unused))


def read_request(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
    env: Sequence[str] = (),
) -> RunRequest:
    """Read and check the run that a target describes.

    Args:
        target: a run file or a manifest of Kubernetes (`*.yaml`), a batch script (`*.sbatch`), a run file as an object,
            or a command.
        nodes: number of nodes instead of the run file's.
        nproc: ranks per node instead of the run file's.
        name: name of the run instead of the run file's.
        env: `NAME=VALUE` or `NAME`, in addition to the run file's `envs` or instead of those; see `parse_variables`.

    Raises:
        UsageError: the target is neither a run file nor a command, or `env` is invalid or for a workload.
        RunFileError: a problem in the run file.
    """
    request = _read(target, name)
    if request.following and (nodes or nproc or name):
        raise UsageError("the tasks of a pipeline have nodes and names of their own", hint="set them in the file")
    run_file = request.run_file.with_ranks(nodes, nproc)
    named = replace(request, run_file=run_file.model_copy(update={"name": _checked(name)} if name else {}))
    request = _with_variables(named, env) if env else named
    secrets = warnings_about(task.run_file for task in (request, *request.following))
    return replace(request, notes=tuple(dict.fromkeys((*request.notes, *secrets))))


def _with_variables(request: RunRequest, assignments: Sequence[str]) -> RunRequest:
    """Set variables of the run, and of every further task of a pipeline."""
    variables = parse_variables(assignments)
    tasks = [_with_envs(task, variables) for task in (request, *request.following)]
    if any(task.run_file.run is None for task in tasks):
        raise UsageError("a workload reads no variables", place="--env", hint="use `--env` for a command")
    return replace(tasks[0], following=tuple(tasks[1:]))


def _with_envs(request: RunRequest, variables: Mapping[str, str | None]) -> RunRequest:
    envs = {**request.run_file.envs, **variables}
    return replace(request, run_file=request.run_file.model_copy(update={"envs": envs}))


def _read(target: RunTarget, name: str | None) -> RunRequest:
    if isinstance(target, RunRequest):
        return target
    if isinstance(target, RunFile):
        return RunRequest(target)
    if isinstance(target, Mapping):
        return RunRequest(RunFile.model_validate(target))
    words = [str(target)] if isinstance(target, str | Path) else [str(word) for word in target]
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        with explaining_names():
            tasks = load_tasks(Path(words[0]))
        first, *others = (RunRequest(run_file, source, unused=tuple(source.unused)) for run_file, source in tasks)
        return replace(first, following=tuple(others))
    if len(words) == 1 and is_batch_script(Path(words[0])):
        run_file, batch = load_batch_script(Path(words[0]))
        return RunRequest(run_file, batch, notes=tuple(batch.notes), array=batch.array)
    if words[0].endswith((".yaml", ".yml")) and Path(words[0]).is_file():
        raise UsageError(
            f"a run file is the only argument, and `{words[1]}` follows `{words[0]}`",
            hint=f"set the value in `{words[0]}`; `trainworks sweep` tries several: `--set optimizer.lr=1e-4,3e-4`",
        )
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"`{words[0]}` is neither a run file (*.yaml), nor a batch script (*.sbatch), nor a program",
            hint=_program_hint(words[0]),
        )
    return RunRequest(RunFile(name=_checked(name or _name_of(words)), run=" ".join(words)), command=words)


def _program_hint(name: str) -> str:
    if name.endswith(".py"):
        return f"trainworks run -- python {name}"
    return "trainworks run run.yaml, or: trainworks run --nproc 2 -- python train.py"


def _checked(name: str) -> str:
    try:
        return TypeAdapter(RunName).validate_python(name)
    except ValidationError:
        raise UsageError(f"invalid run name `{name}`", hint=RUN_NAME_HINT) from None


def _name_of(command: list[str]) -> str:
    """`train` for `python train.py --lr 1`: the first argument that looks like a script, else the program."""
    script = next((part for part in command if part.endswith((".py", ".sh"))), command[0])
    return name_from(Path(script).stem)


def array_members(request: RunRequest, indexes: str | None = None) -> list[RunRequest]:
    """The jobs of an array, the same command once per index, or the tasks of a pipeline.

    Every command finds the id of the array in TRAINWORKS_ARRAY_ID, its index in TRAINWORKS_ARRAY_INDEX and
    SLURM_ARRAY_TASK_ID, the number of jobs in TRAINWORKS_ARRAY_SIZE and SLURM_ARRAY_TASK_COUNT, and the limits of the
    indexes in SLURM_ARRAY_TASK_MIN and MAX.

    Args:
        request: a command.
        indexes: `8` for 0 to 7, `3-10`, `0-20:4` for every fourth, or `1,3,5-7`; `0-99%8` runs 8 at once. By default
            those of the batch script.

    Returns:
        One request per index, in their order, or per task; the request itself without indexes.

    Raises:
        UsageError: the indexes are invalid, or the run is a workload or a pipeline.
    """
    if request.following and indexes is not None:
        raise UsageError("a pipeline cannot be an array", hint="submit each of its tasks as an array")
    if request.following:
        tasks = (replace(request, following=()), *request.following)
        return [replace(task, at_once=1, needs_success=True) for task in tasks]
    if (indexes := indexes or request.array) is None:
        return [request]
    listed, percent, at_once = indexes.partition("%")
    members = _indexes(listed)
    is_limit = bool(re.fullmatch(r"[1-9]\d{0,8}", at_once))
    if not 0 < len(members) <= _LARGEST_ARRAY or is_limit is not bool(percent):
        hint = "write `--array 8`, `3-10`, `0-20:4`, `1,3,5-7` or `0-99%8`"
        raise UsageError(f"`--array {indexes}` is not an array of 1 to {_LARGEST_ARRAY:,} jobs", hint=hint)
    if request.run_file.run is None:
        raise UsageError("a workload cannot be an array: it does not read an index", hint="use `--array` for a command")
    limited = replace(request, array=None, at_once=int(at_once) if is_limit else None)
    array = new_array_id()
    return [_member(limited, array, index, members) for index in members]


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


def _member(request: RunRequest, array: str, index: int, members: Sequence[int]) -> RunRequest:
    variables = {
        ARRAY_ID: array,
        "TRAINWORKS_ARRAY_INDEX": str(index),
        "TRAINWORKS_ARRAY_SIZE": str(len(members)),
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_ARRAY_TASK_COUNT": str(len(members)),
        "SLURM_ARRAY_TASK_MIN": str(members[0]),
        "SLURM_ARRAY_TASK_MAX": str(members[-1]),
    }
    return _with_envs(request, variables)


_ENGINES = {"jobset": "kubernetes", "trainjob": "kubernetes", "skypilot": "skypilot"}
"""Formats whose nodes start from an image, and the engine with the key of it."""


def _run_file_text(request: RunRequest) -> str:
    """The run file that a foreign file is read as; its remarks are comments at the top."""
    array = (f"submit it with `--array {request.array}`",) if request.array else ()
    remarks = [" ".join(remark.split()) for remark in (*array, *request.notes, *request.unused)]
    text = to_yaml(request.run_file.model_dump(mode="json", exclude_unset=True))
    return "".join(f"# {remark}\n" for remark in remarks) + text


def _check_needs_no_trainworks(run_file: RunFile, name: str) -> None:
    """Refuse what only Trainworks does, before the job or on its nodes.

    Raises:
        UsageError: names the first such key.
    """
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
    blocks = {key: getattr(run_file.cluster, key) for key in ("local", "slurm", "kubernetes", "skypilot")}
    lost = [
        f"`cluster.{key}.{option}` is not kept in a job as {name}"
        for key, block in blocks.items()
        for option in (block.model_dump(exclude_defaults=True) if key != _ENGINES.get(name) else ())
        if (key, option) not in _KEPT_OTHERWISE
    ]
    chooses = run_file.cluster.of is not None
    changed = changed_elsewhere(run_file.resources, chooses=chooses) if name != "skypilot" else ()
    return lost + [f"`{'.'.join(map(str, path))}`: {what}" for path, what in changed]


_KEPT_OTHERWISE = (("skypilot", "secrets"), ("skypilot", "program"))
"""Options without a counterpart whose effect a job has in every format, or does not need."""


def job_in_format(request: RunRequest, name: str) -> str:
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
    comments = "".join(f"# {' '.join(remark.split())}\n" for remark in not_kept(request.run_file, name))
    return (f"{first}\n" if first is not None else "") + comments + rest


def _job_text(request: RunRequest, name: str) -> str:
    if name == "run-file":
        return "---\n".join(map(_run_file_text, (request, *request.following)))
    if request.following:
        raise UsageError(f"a pipeline is several jobs, and {name} is one", hint="write each task to a file of its own")
    run_file = with_image(request.run_file, _ENGINES.get(name))
    if run_file.cluster.of is not None:
        from trainworks.jobs.described_nodes import with_described_nodes  # noqa: PLC0415  # imports the catalogue

        run_file = with_described_nodes(run_file, request.source, of_format=True)
    _check_needs_no_trainworks(run_file, name)
    if name != "skypilot":  # the others take secrets from the shell or from a Secret, and the text has no values
        hidden = dict.fromkeys(run_file.cluster.skypilot.secrets)
        run_file = run_file.model_copy(update={"envs": run_file.envs | hidden})
    spec = spec_of(run_file, run_id=run_file.name, working_folder=run_file.workdir or "")
    program, cluster = program_of(run_file, command=tuple(request.command or ())), run_file.cluster
    if name == "lsf" and cluster.autoscale is not None:
        hint = "leave `cluster.autoscale` out; LSF's resource connector has a file of its own"
        raise UsageError("LSF jobs cannot start or stop hosts", hint=hint)
    if name == "lsf":
        return lsf.render(spec, program)
    if name == "skypilot":
        return skypilot.render(spec, program, cluster.skypilot, cluster.autoscale)
    job = KubernetesJob(spec=spec, program=program, cluster=cluster.kubernetes, autoscale=cluster.autoscale)
    return jobset.render(job) if name == "jobset" else trainjob.render(job)
