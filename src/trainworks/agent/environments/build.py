"""Build the environment of a run on this node: once per content, complete or absent.

A folder of the cache is one environment; `complete.json` in it is written last. Builders of the same content wait for
one lock, which the programs they start inherit: it ends with the last of them, also after a kill. The next builder
removes what has no `complete.json`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import site
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment

from trainworks.agent.environments.cache import COMPLETE, hold, lock_of
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import closing_handle, naming_full_disk, take_lock, write_atomic
from trainworks.host import installed, process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.folders import cache_folder
from trainworks.jobs.lock_file import Requirements, read_lock
from trainworks.record.run_environment import LOCKS, NodeEnvironment, ResolvedEnvironment

_FORMAT = 1
"""Counts up when the same content is built in another way."""
_POLL_S = 0.1
_END_GRACE_S = 5.0
_MOST_UNMET = 3
_CONDA_PROGRAMS = ("micromamba", "mamba", "conda")


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """An environment on this node."""

    folder: Path
    facts: NodeEnvironment

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.folder / "bin" / "python")

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables of a process, changed as activating the environment in a shell would."""
        path = os.pathsep.join(filter(None, [str(self.folder / "bin"), env.get("PATH", os.defpath)]))
        own = "CONDA_PREFIX" if self.facts.kind == "conda" else "VIRTUAL_ENV"
        kept = {name: value for name, value in env.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")}
        return kept | {"PATH": path, own: str(self.folder)}


def build(
    wanted: ResolvedEnvironment,
    *,
    trains: bool,
    stopping: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> BuiltEnvironment:
    """The environment on this node, built now if the node does not have it; this process uses it until its end.

    For ranks of a workload (`trains`) Trainworks' own packages follow behind those of the lock file. `stopping` is
    looked at while something else works; true ends the build.

    Raises:
        UsageError: the lock file leaves something open, or does not suit a workload.
        EnvironmentProblem: a program is missing, or the packages cannot be installed; names the log.
    """
    clock = clock or SystemClock()
    own_packages = tuple(folder for folder in site.getsitepackages() if Path(folder).is_dir())
    plan = _plan_of(wanted, own_packages if trains else ())
    with naming_full_disk(plan.folder):
        plan.folder.parent.mkdir(parents=True, exist_ok=True)
        found = _complete(plan)
        while found is None or not hold(plan.folder):
            with closing_handle(_lock(plan, stopping, clock)) as lock:
                found = _complete(plan) or _build(plan, lock, stopping, clock)
        return found


@dataclass(frozen=True, slots=True)
class _BuildPlan:
    wanted: ResolvedEnvironment
    folder: Path
    tool: str
    commands: tuple[Sequence[str], ...]
    file: Path
    file_text: str
    behind: tuple[str, ...] = ()
    """Folders of packages behind those of the environment."""
    requirements: Requirements | None = None

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


def _plan_of(wanted: ResolvedEnvironment, behind: tuple[str, ...]) -> _BuildPlan:
    if wanted.kind == "image":
        raise UsageError(f"image `{wanted.name}` is not built on a node", hint="run it with a container runtime")
    is_lock = wanted.kind in LOCKS
    if behind and (not is_lock or wanted.python != _own_minor()):
        what = f"Python {wanted.python}" if is_lock else "conda"
        raise UsageError(
            f"a workload trains in Python {_own_minor()} with Trainworks' own packages, and its environment is {what}",
            hint="use a lock file for this Python; a command may have any environment",
        )
    facts = [_FORMAT, wanted.kind, wanted.sha256, wanted.python, behind]
    facts += [platform.python_version(), sys.base_prefix, installed.machine_platform(), *platform.libc_ver()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    folder = cache_folder("environments", key)
    if is_lock:
        markers = {name: str(value) for name, value in default_environment().items()}
        if wanted.python != _own_minor():
            markers |= {"python_version": wanted.python, "python_full_version": f"{wanted.python}.0"}
        requirements = read_lock(wanted.kind, wanted.text, markers)
        file = folder.with_name(f"{key}.txt")
        tool, commands = _python_commands(wanted.python, folder, file, requirements)
        return _BuildPlan(wanted, folder, tool, commands, file, requirements.text, behind, requirements)
    is_explicit = "@EXPLICIT" in wanted.text
    file = folder.with_name(f"{key}.{'txt' if is_explicit else 'yaml'}")
    tool, command = _conda_command(folder, file, is_explicit=is_explicit)
    return _BuildPlan(wanted, folder, tool, (command,), file, wanted.text)


def _own_minor() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _python_commands(
    minor: str, folder: Path, file: Path, requirements: Requirements
) -> tuple[str, tuple[Sequence[str], ...]]:
    """Make a virtual environment and install the requirements, with uv, else with venv and pip."""
    checked = ["--require-hashes"] if requirements.is_hashed else []
    install = ["install", "--no-deps", *checked, "-r", str(file)]
    python = str(folder / "bin" / "python")
    own = sys.executable if minor == _own_minor() else shutil.which(f"python{minor}")
    if (uv := _program("uv")) is not None:
        version = process.run([uv, "--version"]).stdout.split(" (")[0].strip()
        make = [uv, "venv", "--quiet", "--python", own or minor, str(folder)]
        return version, (make, [uv, "pip", install[0], "--python", python, *install[1:]])
    if own is None:
        raise EnvironmentProblem(
            f"`python{minor}` is not installed on {socket.gethostname()}",
            hint=f"install it, or uv, which fetches Python {minor}",
        )
    if importlib.util.find_spec("pip") is None:
        raise EnvironmentProblem(
            f"neither uv nor pip is installed for {sys.executable} on {socket.gethostname()}", hint="install uv there"
        )
    pip = [sys.executable, "-P", "-m", "pip", "--python", python, "--no-input", "--disable-pip-version-check"]
    make = [own, "-m", "venv", "--without-pip", str(folder)]
    return f"pip {metadata.version('pip')}", (make, [*pip, *install])


def _conda_command(folder: Path, file: Path, *, is_explicit: bool) -> tuple[str, Sequence[str]]:
    found = next((path for name in _CONDA_PROGRAMS if (path := _program(name))), None)
    if found is None:
        raise EnvironmentProblem(
            f"none of {', '.join(_CONDA_PROGRAMS)} is installed on {socket.gethostname()}",
            hint="install micromamba there, or use a lock file of Python packages",
        )
    where = ["--prefix", str(folder), "--file", str(file)]
    name = Path(found).name
    if name == "micromamba" or is_explicit:
        return name, [found, "create", "--yes", *where]
    return name, [found, "env", "create", *where]


def _program(name: str) -> str | None:
    """Path of a program on the search path, or beside this interpreter."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), beside]))


def _complete(plan: _BuildPlan) -> BuiltEnvironment | None:
    try:
        facts = NodeEnvironment.model_validate_json((plan.folder / COMPLETE).read_bytes())
    except (OSError, ValueError):
        return None
    return BuiltEnvironment(
        plan.folder, facts.model_copy(update={"built_s": 0.0, "driver": installed.driver_version()})
    )


def _lock(plan: _BuildPlan, stopping: Callable[[], bool], clock: Clock) -> int:
    """The lock of the environment, once no other process builds it."""
    while (lock := take_lock(lock_of(plan.folder))) is None:
        if stopping():
            raise EnvironmentProblem("stopped while another process built the environment")
        clock.sleep(_POLL_S)
    return lock


def _build(plan: _BuildPlan, lock: int, stopping: Callable[[], bool], clock: Clock) -> BuiltEnvironment:
    started_at = clock.now()
    shutil.rmtree(plan.folder, ignore_errors=True)
    write_atomic(plan.file, plan.file_text, durable=False)
    plan.log.unlink(missing_ok=True)
    try:
        for command in plan.commands:
            _run(plan, command, lock, stopping)
        return _finish(plan, clock.now() - started_at)
    except BaseException:
        shutil.rmtree(plan.folder, ignore_errors=True)
        raise


def _run(plan: _BuildPlan, command: Sequence[str], lock: int, stopping: Callable[[], bool]) -> None:
    """Run one program, which dies with this process and keeps the lock until its own end."""
    path = shutil.which(command[0]) or command[0]
    child = process.spawn(process.ending_with_parent([path, *command[1:]]), log=plan.log, pass_fds=(lock,))
    while (code := child.exit_code()) is None:
        if stopping():
            child.end(_END_GRACE_S)
            raise EnvironmentProblem("stopped while the environment was built")
        process.wait_any([child], _POLL_S)
    if code:
        raise _failure(plan, _reason(plan.log) or f"{plan.tool} ended with code {code}")


def _failure(plan: _BuildPlan, reason: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot build the environment of `{plan.wanted.name}`: {reason}",
        hint=f"see {plan.log} on {socket.gethostname()}",
    )


def _reason(log: Path) -> str:
    """The line of a log that says what failed: the first error of pip, the causes of uv, else the last line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("ERROR:", "error:", "cause:", "Caused by"))]
    return " ".join(marked[:2] or lines[-2:]).strip()[:400]


def _finish(plan: _BuildPlan, built_s: float) -> BuiltEnvironment:
    """Check what was installed, and declare the environment complete."""
    packages = installed.site_packages(plan.folder)
    if plan.requirements is not None and (
        unmet := list(installed.unmet_requirements(str(packages), _own_path() if plan.behind else ()))
    ):
        more = f" and {len(unmet) - _MOST_UNMET} more" if len(unmet) > _MOST_UNMET else ""
        raise UsageError(
            f"`{plan.wanted.name}` is not complete: {'; '.join(unmet[:_MOST_UNMET])}{more}",
            hint="lock the dependencies too: `uv pip compile`, or `pip freeze` of an environment that works",
        )
    if plan.behind:
        lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in plan.behind)
        write_atomic(packages / "zz_trainworks.pth", lines)
    facts = _facts(plan, packages, built_s)
    write_atomic(plan.folder / COMPLETE, facts.model_dump_json(indent=2) + "\n")
    return BuiltEnvironment(plan.folder, facts)


def _facts(plan: _BuildPlan, packages: Path, built_s: float) -> NodeEnvironment:
    asked = process.run(
        [str(plan.folder / "bin" / "python"), "-c", "import platform; print(platform.python_version())"]
    )
    if asked.exit_code != 0:
        raise _failure(plan, f"its Python does not start: {asked.stderr.strip()[-200:]}")
    found = installed.distributions_in([str(packages), *(_own_path() if plan.behind else ())])
    if plan.wanted.kind == "conda":
        found = installed.conda_packages_in(plan.folder)
    locked = plan.requirements
    if locked is not None:
        own = {one.name for one in installed.distributions_in([str(packages)])}
        found = tuple(
            one.model_copy(update={"hashes": one.hashes or locked.hashes_of(one.name)}) if one.name in own else one
            for one in found
        )
    return NodeEnvironment(
        kind=plan.wanted.kind,
        sha256=plan.wanted.sha256,
        key=plan.folder.name,
        folder=str(plan.folder),
        python=asked.stdout.strip(),
        platform=installed.machine_platform(),
        tool=plan.tool,
        distributions=found,
        cuda=installed.cuda_of(found),
        driver=installed.driver_version(),
        built_s=built_s,
    )


def _own_path() -> tuple[str, ...]:
    """Folders on the path of Trainworks' interpreter, also those of an editable installation."""
    return tuple(folder for folder in sys.path if folder and Path(folder).is_dir())
