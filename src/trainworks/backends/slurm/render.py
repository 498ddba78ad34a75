"""Render a job spec as a batch script. Values from a user cannot end their line, word or command."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from trainworks.backends.job_tag import mark_of
from trainworks.backends.slurm.states import ENDING, FORWARDED
from trainworks.config.engines import Container, Slurm
from trainworks.errors import UsageError
from trainworks.jobs.accelerator_names import is_amd
from trainworks.jobs.job_spec import JobSpec, parse_dependency
from trainworks.record.run_dir import RunDir

_OWN = ("array", "comment", "error", "help", "job-name", "open-mode", "output", "parsable", "test-only", "wait", "wrap")
"""Options of sbatch that a user cannot set: a run is one job, identified by its tag."""
_PER_JOB = {"ntasks", "gpus", "ntasks-per-gpu"}
_PER_NODE = {"nodes", "ntasks-per-node", "cpus-per-task", "gres", "mem"}
"""Options that do not go with those per job, which let Slurm choose the numbers."""
_OF_A_NODE = {"cpus-per-gpu", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "mem-per-cpu", "mem-per-gpu"}
"""Further options with numbers of what a node has; each role has its own."""
_ACCELERATORS = re.compile(r"[=,](gres[:/])?gpu\b")
"""A generic resource that is an accelerator."""
_NICE_PER_PRIORITY = 100
_MIDDLE = 50
_ANEW = "stop the job and submit it again"
_SIGNAL_COMES_EARLY_S = 60.0
_NO_GRACE_S = 1.0
"""Grace of a job whose limit leaves no room for one: its first signal is that of Slurm at the limit."""
_MOST_SUPERVISORS = 5
"""Starts of a supervisor in one allocation: it may be killed before it began, or while it requeues the job."""


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    value: Any
    """None, "" and False leave the line out; True is an option without a value."""


def check(spec: JobSpec, options: Slurm) -> None:
    """Refuse options that only operators of Slurm may set, and those that would split a run into several jobs.

    Raises:
        UsageError: naming the first of them.
    """
    if spec.priority > _MIDDLE:
        raise UsageError(
            f"Slurm lets its operators alone raise a priority above {_MIDDLE}, not to {spec.priority}",
            hint="take a `cluster.slurm.qos` that comes first, or a `job.priority` up to 50",
        )
    if not spec.preemptible:
        hint = "take a `cluster.slurm.qos` or `partition` that is not preempted, and leave `job.preemptible` out"
        raise UsageError("in Slurm the QOS or the partition says whether a job is preempted", hint=hint)
    limit_s = None if spec.time_limit_s is None else math.ceil(spec.time_limit_s / 60) * 60
    if limit_s is not None and spec.grace_s > _NO_GRACE_S and limit_s < spec.grace_s + _SIGNAL_COMES_EARLY_S:
        least_s = spec.grace_s + _SIGNAL_COMES_EARLY_S
        hint = "Slurm may ask for an end a minute before the grace: a longer limit, or a shorter grace"
        raise UsageError(f"`job.time_limit` ({spec.time_limit_s:.0f} s) is below {least_s:.0f} s", hint=hint)
    if spec.depends_on and any(option.startswith("--dependency=") for option in options.options):
        raise UsageError("`job.depends_on` and sbatch's own `--dependency` cannot both be set", hint="remove one")
    for option in options.options:
        if (name := option[2:].partition("=")[0]) in _OWN:
            raise UsageError(f"`--{name}` cannot be set: Trainworks submits a run as one job", hint="remove it")
    if spec.roles:
        _check_roles(spec, options)


def _check_roles(spec: JobSpec, options: Slurm) -> None:
    for option in options.options:
        if (name := option[2:].partition("=")[0]) in _PER_JOB | _PER_NODE | _OF_A_NODE:
            hint = "remove it, and set `nodes` and `resources` of each role"
            raise UsageError(f"`--{name}` cannot be set for a job with roles, each of which has its own", hint=hint)
    without = [role.name for role in spec.roles if role.node.memory_bytes is None]
    if 0 < len(without) < len(spec.roles):
        raise UsageError(
            f"role `{without[0]}` requests no memory, and another one does: Slurm may give both the same",
            hint=f"set `roles.{without[0]}.resources.memory`",
        )


def render(spec: JobSpec, options: Slurm, run_dir: RunDir, *, python: str, tag: str | None = None) -> str:
    """Render the batch script of a job, which starts the job's supervisor on the first node.

    `run_dir` is absolute, on a file system that all nodes share, and `python` has Trainworks on all of them. `tag` is
    that of `run_dir` when None.

    Raises:
        UsageError: a name or path that a batch script cannot hold.
    """
    check(spec, options)
    if strange := [one.job for one in map(parse_dependency, spec.depends_on) if not one.job.isdecimal()]:
        raise UsageError(f"`{strange[0]}` is not the number of a Slurm job")
    components = [_options(part, run_dir, options, tag or mark_of(run_dir)) for part in _components(spec)]
    supervisor = [python, "-P", "-m", "trainworks.backends.slurm.batch", str(run_dir.path)]
    command = [*supervisor, *_step(options.container, run_dir, spec)]
    header = "\n#SBATCH hetjob\n".join("\n".join(f"#SBATCH {option}" for option in each) for each in components)
    return "\n".join(["#!/bin/bash", header, "", *_supervise(command)]) + "\n"


def _components(spec: JobSpec) -> list[JobSpec]:
    """The job itself; one with roles whose nodes differ as the components of a heterogeneous job, in their order.

    Slurm numbers the nodes of a job through its components. Roles side by side with equal nodes share one.
    """
    if not spec.roles:
        return [spec]
    alike = groupby(spec.roles, key=attrgetter("node"))
    numbers = [(node, sum(role.nodes for role in roles)) for node, roles in alike]
    return [replace(spec, node=node, min_nodes=number, max_nodes=number) for node, number in numbers]


def _options(spec: JobSpec, run_dir: RunDir, options: Slurm, tag: str) -> list[str]:
    """Options of sbatch for a job or for one component of it, which takes some of the first one where it has none."""
    lines = _lines(spec, run_dir, options, tag)
    # sbatch would take the last of two options with one name: those of the user come first, the others of that name go
    own = list(options.options)
    names = {option[2:].partition("=")[0] for option in own}
    names |= {"requeue", "no-requeue"} if names & {"requeue", "no-requeue"} else set()
    names |= _PER_NODE if names & _PER_JOB else set()
    others = [option for option in own if option.startswith("--gres=") and not _ACCELERATORS.search(option)]
    if others and not names & _PER_JOB and any(line.name == "gres" and line.value for line in lines):
        own = [option for option in own if option not in others]
        beside = [option.partition("=")[2] for option in others]
        lines = [
            replace(line, value=",".join([line.value, *beside])) if line.name == "gres" else line for line in lines
        ]
        names.remove("gres")
    lines = [*(_Line("", option) for option in own), *(line for line in lines if line.name not in names)]
    return [sbatch_option(line.name, line.value) for line in lines if line.value]


def updates(before: JobSpec, after: JobSpec, options: Slurm) -> list[str]:
    """Words of `scontrol update` that change a waiting job; restarts are in the resolved run, which Slurm never reads.

    Raises:
        UsageError: a field that Slurm does not change, or whose option of sbatch the user has set.
    """
    texts = {
        "time_limit_s": ("time", "TimeLimit", _time(after.time_limit_s) if after.time_limit_s else None),
        "priority": ("nice", "Nice", str(_NICE_PER_PRIORITY * (_MIDDLE - after.priority))),
        "exclude": ("exclude", "ExcNodeList", ",".join(after.exclude)),
        "name": ("job-name", "JobName", after.name),
        "team": ("account", "Account", after.team or None),
    }
    changed = [one.name for one in fields(JobSpec) if getattr(before, one.name) != getattr(after, one.name)]
    own = {option[2:].partition("=")[0] for option in options.options} | ({"account"} if options.account else set())
    words = []
    for field in changed:
        option, key, text = texts.get(field, ("", "", None))
        if option in own:
            raise UsageError(f"`cluster.slurm` sets `--{option}`, which this change does not reach", hint=_ANEW)
        if text is None and field not in ("max_restarts", "restart_window_s"):
            raise UsageError(f"Slurm does not change `{field.removesuffix('_s')}` of a job to this value", hint=_ANEW)
        words += [f"{key}={text}"] if text is not None else []
    return words


def _supervise(command: Sequence[str]) -> list[str]:
    """Run the supervisor; if it is killed without a request to end, run it again, which requeues a job that has begun.

    `wait` returns early at a signal, and once more with the exit code of the supervisor.
    """
    traps = [
        f"trap '{'asked=1; ' if number in ENDING else ''}pass_on {offset}' {number.name[3:]}"
        for offset, number in enumerate(FORWARDED, start=1)
    ]
    return [
        "asked=",
        'pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }',
        *traps,
        f"for start in {' '.join(map(str, range(1, _MOST_SUPERVISORS + 1)))}; do",
        f"  {shlex.join(command)} &",
        "  supervisor=$!",
        "  signaled=1",
        '  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done',
        '  if [ "$asked" ] || [ $code -le 128 ]; then break; fi',
        "done",
        "exit $code",
    ]


def _lines(spec: JobSpec, run_dir: RunDir, options: Slurm, tag: str) -> list[_Line]:
    node = spec.node
    nodes = [spec.min_nodes, spec.max_nodes]
    names = ("partition", "account", "qos", "constraint", "switches", "reservation")
    default = {"account": spec.team or None}
    gres = ["gpu", *([node.accelerator] if node.accelerator else []), str(node.accelerators)]
    # such as `afterok:1:2,afterany:3`
    jobs: dict[str, list[str]] = {}
    for one in map(parse_dependency, spec.depends_on):
        jobs.setdefault("afterok" if one.needs_success else "afterany", []).append(one.job)
    path = str(run_dir.supervisor_log)
    # `%` begins a pattern in a file name of sbatch
    if "\\" in path:
        raise UsageError(f"the run directory has a backslash in it: `{path}`", hint="use another folder")
    return [
        _Line("job-name", spec.name),
        _Line("comment", tag),
        _Line("nodes", "-".join(map(str, dict.fromkeys(nodes)))),
        _Line("ntasks-per-node", str(spec.tasks_per_node)),
        _Line("cpus-per-task", str(math.ceil(node.cores / spec.tasks_per_node)) if node.cores else None),
        _Line("gres", ":".join(gres) if node.accelerators else None),
        _Line("mem", f"{math.ceil(node.memory_bytes / 2**20)}M" if node.memory_bytes else None),
        _Line("time", _time(spec.time_limit_s) if spec.time_limit_s else None),
        _Line("signal", f"B:TERM@{math.ceil(spec.grace_s)}" if spec.grace_s > _NO_GRACE_S else None),
        _Line("requeue", True),
        _Line("open-mode", "append"),
        _Line("output", path.replace("%", "%%")),
        _Line("chdir", spec.working_folder),
        *(_Line(name, getattr(options, name) or default.get(name)) for name in names),
        _Line("exclude", ",".join(spec.exclude)),
        _Line("dependency", ",".join(":".join([kind, *numbers]) for kind, numbers in jobs.items())),
        _Line("kill-on-invalid-dep", "yes" if spec.depends_on else None),
        _Line("nice", str(_NICE_PER_PRIORITY * (_MIDDLE - spec.priority)) if spec.priority < _MIDDLE else None),
        _Line("hold", spec.hold),
    ]


def sbatch_option(name: str, value: str | bool) -> str:
    """Quote an option for a script: between double quotes, sbatch takes the character after a backslash literally.

    The name is without dashes, and "" if the value is the whole option. The value is True for an option without one.

    Raises:
        UsageError: it holds a control character.
    """
    if value is True:
        return f"--{name}"
    text = str(value)
    if found := re.search(r"[\x00-\x1f\x7f]", text):
        raise UsageError(
            f"`{name or 'options'}` has {found[0]!r} in it: {text!r}",
            hint="remove it: an option of sbatch cannot hold control characters",
        )
    whole = f"--{name}={text}" if name else text
    if re.fullmatch(r"[A-Za-z0-9_=.,:/@%+\[\]-]+", whole):
        return whole
    option, _, rest = whole.partition("=")
    return option + '="' + re.sub(r'(["\\])', r"\\\1", rest) + '"'


def _time(seconds: float) -> str:
    """Format a time limit in whole minutes: `1-02:30:00`."""
    minutes = math.ceil(seconds / 60)
    days, minutes = divmod(minutes, 24 * 60)
    return f"{days}-{minutes // 60:02}:{minutes % 60:02}:00"


def _step(container: Container | None, run_dir: RunDir, spec: JobSpec) -> list[str]:
    """Options that the supervisor passes to `srun`, and the command that starts Python in the container."""
    if container is None:
        return []
    mounts: dict[str, None] = {}
    for mount in (str(run_dir.path), spec.working_folder, *container.mounts):
        if "," in mount or mount.count(":") > 2:
            raise UsageError(f"`{mount}` cannot be mounted: it has a comma or too many colons in it")
        mounts[mount if ":" in mount else f"{mount}:{mount}"] = None
    if container.runtime == "pyxis":
        return [
            *([f"--container-image={_pyxis_image(container.image)}"] if container.image else []),
            f"--container-mounts={','.join(mounts)}",
            *container.options,
            "--",
            "python3",
        ]
    binds = [part for mount in mounts for part in ("--bind", mount)]
    # with both options, Apptainer mixes the libraries of two vendors
    own = {"--nv", "--rocm"}.intersection(container.options)
    is_rocm = any(is_amd(group.node.accelerator) for group in spec.groups)
    gpu = [] if own else ["--rocm" if is_rocm else "--nv"]
    return ["--", "apptainer", "exec", *gpu, *binds, *container.options, container.image or "", "python3"]


def _pyxis_image(image: str) -> str:
    """`nvcr.io#nvidia/pytorch:26.09-py3`: Enroot expects `#` after the name of a registry; a file stays as it is."""
    name = image.removeprefix("docker://")
    if "#" in name or name.startswith("."):
        return name
    registry, slash, rest = name.partition("/")
    return f"{registry}#{rest}" if slash and re.search(r"[.:]", registry) else name
