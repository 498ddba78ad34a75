"""A node builds the environment of a run once per content, complete or absent."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.environments.wheels import make_wheel, write_lock
from trainworks.agent.environments import build as building
from trainworks.agent.environments.build import build
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.record.run_environment import ResolvedEnvironment

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
CHILD = """
import sys
from trainworks.agent.environments.build import build
from trainworks.record.run_environment import ResolvedEnvironment
built = build(ResolvedEnvironment.model_validate_json(sys.argv[1]), trains=False)
print(built.facts.key, built.facts.built_s > 0)
"""
KILLED_BEFORE_ITS_LAST_FILE = """
import os, signal, sys
from trainworks.agent.environments import build
build._finish = lambda plan, built_s: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no uv: pip builds what these tests build, everywhere."""
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    found = building._program
    monkeypatch.setattr(building, "_program", lambda name: None if name == "uv" else found(name))
    yield tmp_path / "cache" / "environments"


def wanted(lock: Path, **changes: str) -> ResolvedEnvironment:
    """What a run with this lock file asks its nodes for."""
    text = lock.read_text()
    fields = {"kind": "requirements", "name": str(lock), "text": text, "python": MINOR} | changes
    return ResolvedEnvironment(sha256=hashlib.sha256(text.encode()).hexdigest(), **fields)


@pytest.fixture
def locked(tmp_path: Path) -> Callable[..., ResolvedEnvironment]:
    """A function that makes an environment of one wheel, `ours` 1.0."""

    def make(version: str = "1.0", *, code: str = "", needs: tuple[str, ...] = ()) -> ResolvedEnvironment:
        _, digest = make_wheel(tmp_path / "wheels", "ours", version, code=code, needs=needs)
        return wanted(write_lock(tmp_path, ("ours", version, digest)))

    return make


def test_the_interpreter_has_the_packages_of_the_lock_file_and_no_others(cache: Path, locked) -> None:
    built = build(locked(), trains=False)
    code = "import ours, importlib.util as u; print(ours.__version__, u.find_spec('pydantic'))"
    assert subprocess.run([built.python, "-c", code], capture_output=True, text=True, check=True).stdout == "1.0 None\n"
    (one,) = built.facts.distributions
    assert (one.name, one.version, len(one.hashes), built.facts.built_s > 0) == ("ours", "1.0", 1, True)


def test_the_same_content_is_built_once(cache: Path, locked) -> None:
    first, again = build(locked(), trains=False), build(locked(), trains=False)
    assert (again.folder, again.facts.built_s) == (first.folder, 0.0)


def test_another_content_is_another_environment(cache: Path, locked) -> None:
    assert build(locked("1.0"), trains=False).folder != build(locked("1.1"), trains=False).folder


def test_a_build_without_its_last_file_is_done_again(cache: Path, locked) -> None:
    built = build(locked(), trains=False)
    (built.folder / "complete.json").unlink()
    (built.folder / "left-over").touch()
    assert build(locked(), trains=False).facts.built_s > 0
    assert not (built.folder / "left-over").exists()


def test_a_wheel_with_another_content_is_refused_and_nothing_is_left(cache: Path, tmp_path: Path, locked) -> None:
    environment = locked()
    make_wheel(tmp_path / "wheels", "ours", "1.0", code="# changed\n")
    with pytest.raises(EnvironmentProblem, match="HASHES"):
        build(environment, trains=False)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_lock_file_that_lacks_a_dependency_is_refused(cache: Path, locked) -> None:
    with pytest.raises(UsageError, match=r"ours 1\.0 needs theirs>=2"):
        build(locked(needs=("theirs>=2", "never; python_version < '3'", "extra-one; extra == 'x'")), trains=False)


def test_a_workload_finds_trainworks_behind_the_packages_of_its_lock_file(cache: Path, tmp_path: Path) -> None:
    _, digest = make_wheel(tmp_path / "wheels", "psutil", "99.0")
    built = build(wanted(write_lock(tmp_path, ("psutil", "99.0", digest))), trains=True)
    code = "import psutil, trainworks.record.events.log; print(psutil.__version__)"
    assert subprocess.run([built.python, "-c", code], capture_output=True, text=True, check=True).stdout == "99.0\n"
    assert {"psutil": "99.0"}.items() <= {one.name: one.version for one in built.facts.distributions}.items()


def test_a_workload_does_not_train_in_another_python(cache: Path, locked) -> None:
    with pytest.raises(UsageError, match="a workload trains in Python"):
        build(locked().model_copy(update={"python": "3.9"}), trains=True)


def test_a_python_that_is_not_installed_is_named(cache: Path, locked) -> None:
    with pytest.raises(EnvironmentProblem, match=r"`python3\.77` is not installed"):
        build(locked().model_copy(update={"python": "3.77"}), trains=False)


def test_a_stop_ends_the_build_and_leaves_nothing(cache: Path, locked) -> None:
    with pytest.raises(EnvironmentProblem, match="stopped"):
        build(locked(), trains=False, stopping=lambda: True)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def started(environment: ResolvedEnvironment, before: str = "") -> subprocess.Popen[str]:
    """Another process that builds the environment, and does something before."""
    command = [sys.executable, "-c", before + CHILD, environment.model_dump_json()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_two_builders_one_waits_for_the_other(cache: Path, locked) -> None:
    environment = locked()
    builders = [started(environment) for _ in range(2)]
    said = sorted(one.communicate(timeout=300)[0].split()[1] for one in builders)
    assert said == ["False", "True"]


def end_pip(folder: Path) -> None:
    """End a pip that works in a folder: it starts itself again, and of the two the kernel ends the first alone."""
    left = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=60)


@pytest.mark.parametrize("before", ["", KILLED_BEFORE_ITS_LAST_FILE], ids=["while it installs", "before its last file"])
def test_a_killed_builder_leaves_nothing_that_the_next_one_takes_for_complete(
    cache: Path, locked, tmp_path: Path, before: str
) -> None:
    """While it installs, a pipe in the place of the wheel holds it until it is killed."""
    environment = locked()
    (wheel,) = (tmp_path / "wheels").iterdir()
    content = wheel.read_bytes()
    if not before:
        wheel.unlink()
        os.mkfifo(wheel)
    victim = started(environment, before)
    if not before:
        deadline = time.monotonic() + 240
        while not list(cache.glob("*/pyvenv.cfg")):
            assert time.monotonic() < deadline and victim.poll() is None
            time.sleep(0.005)
        os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    end_pip(tmp_path)
    assert list(cache.glob("*/pyvenv.cfg")) and list(cache.glob("*/complete.json")) == []
    wheel.unlink()
    wheel.write_bytes(content)
    assert build(environment, trains=False).facts.built_s > 0


CONDA = """#!/bin/sh
# Stands for micromamba: records its arguments, and makes a prefix as conda does.
echo "$@" > {log}
while [ "$1" ]; do case "$1" in --prefix) prefix=$2;; esac; shift; done
mkdir -p "$prefix/bin" "$prefix/conda-meta" "$prefix/lib/python3.12/site-packages"
ln -s {python} "$prefix/bin/python"
facts='{{"name": "numpy", "version": "2.3.1", "url": "https://c/numpy.conda", "md5": "ab"}}'
echo "$facts" > "$prefix/conda-meta/n.json"
"""


def test_conda_builds_a_prefix_from_its_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "micromamba"
    program.parent.mkdir()
    program.write_text(CONDA.format(log=tmp_path / "log", python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    file = tmp_path / "environment.yaml"
    file.write_text("dependencies: [numpy=2.3.1]\n")
    built = build(wanted(file, kind="conda", python=""), trains=False)
    assert (tmp_path / "log").read_text().startswith(f"create --yes --prefix {built.folder} --file ")
    assert [(one.name, one.url, one.hashes) for one in built.facts.distributions] == [
        ("numpy", "https://c/numpy.conda", ("md5:ab",))
    ]
    assert built.variables({"PATH": "/bin", "VIRTUAL_ENV": "/x"}) == {
        "PATH": f"{built.folder}/bin:/bin",
        "CONDA_PREFIX": str(built.folder),
    }


def test_without_a_program_of_conda_the_hint_says_which(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_program", lambda name: None)
    file = tmp_path / "environment.yaml"
    file.write_text("dependencies: [numpy=2.3.1]\n")
    with pytest.raises(TrainworksError, match="none of micromamba, mamba, conda is installed"):
        build(wanted(file, kind="conda", python=""), trains=False)
