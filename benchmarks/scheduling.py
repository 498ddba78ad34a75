"""How fast a job starts, and how many go through the queue: this machine's queue against submitit, TorchX and Ray.

    pip install submitit torchx
    python -m venv ray && ray/bin/pip install ray
    python benchmarks/scheduling.py --ray ray/bin/python

A gang is four processes that each write down when they began; a contender's time is from its submit call, in a program
that is running already, to the last of the four. submitit's local executor starts them on one node; TorchX starts four
replicas with `local_cwd`; Ray runs four tasks in a placement group, on a Ray and a driver that are up. The contenders
take turns. The dispatcher of Trainworks is awake, as it is after a first job;
the first job of all, which starts it, is printed apart. No-op jobs are `true`, submitted one after the other and run on
two slots of one core each; their time is from the first submit to the last end. The goals are 15 ms, 0.6 of TorchX, 1.5
of Ray, and 2,000 no-op jobs a minute.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from trainworks.api.launching.resolve import resolve
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.store_place import store_url
from trainworks.config.run_file import RunFile
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.record.runs_folder import create_run_dir

GANG = 4
TORCHX, RAY = "TorchX local_cwd", "Ray, up already"
GOAL_S = 0.015
GOAL_RATIOS = {TORCHX: 0.6, RAY: 1.5}
GOAL_JOBS_PER_MINUTE = 2000
PATIENCE_S = 60.0
BEGIN = "date +%s.%N > begin-$RANK"


def main() -> int:
    """Measure, print, write; the exit code is 1 if a peer is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=100, help="no-op jobs through the queue")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--ray", type=Path, metavar="PYTHON", help="a Python that has Ray, in a venv of its own")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sched-") as folder, ray_of(wanted.ray) as ray:
        os.chdir(folder)
        os.environ["TRAINWORKS_DATA"] = str(Path(folder) / "data")
        os.environ["TRAINWORKS_LEDGER"] = str(Path(folder) / "ledger")
        first_s = trainworks_gang(0)
        gangs = {name: gang for name, (package, gang) in CONTENDERS.items() if find_spec(package) is not None} | ray
        times: dict[str, list[float]] = {name: [] for name in [*CONTENDERS, RAY]}
        for number in range(1, wanted.rounds + 1):
            for name, gang in gangs.items():
                times[name].append(gang(number))
        per_minute = throughput(wanted.jobs)
    print_figures(first_s, times, per_minute)
    if wanted.json:
        content = {"first_s": first_s, "gang_s": times, "jobs_per_minute": per_minute, "command": sys.argv}
        wanted.json.write_text(json.dumps(content, indent=2) + "\n")
    return int(not all(times.values()))


def trainworks_gang(number: int) -> float:
    """Our own queue."""
    submit, run_dir = prepared(f"gang-{number}", BEGIN, ranks=GANG, cores=2.0)
    started = time.time()
    submit()
    return last_begin(Path(run_dir)) - started


def prepared(name: str, command: str, *, ranks: int, cores: float) -> tuple[Callable[[], str], Path]:
    """A job that is ready to be submitted, and the folder that it starts in."""

    folder = Path(name)
    folder.mkdir()
    keys = {"cluster": {"processes_per_node": ranks}, "resources": {"cpus": cores}, "workdir": str(folder)}
    run_file = RunFile.model_validate({"name": name, "run": command, **keys})
    run_dir = create_run_dir(Path("runs"), name)
    resolved = resolve(run_file, None, run_id=run_dir.run_id, runs=Path("runs"))
    run_dir.write_resolved(resolved)
    backend = queue()
    script = backend.render(spec_of_run(resolved), run_dir)
    return lambda: backend.submit(script, run_dir), folder


@cache
def queue() -> LocalBackend:
    """Of this program."""
    return LocalBackend()


def last_begin(folder: Path) -> float:
    """When the last of the gang began."""
    deadline = time.time() + PATIENCE_S
    while True:
        begins = [path.read_text() for path in folder.glob("begin-*")]
        if len(begins) == GANG and all(text.endswith("\n") for text in begins):
            return max(map(float, begins))
        assert time.time() < deadline, f"{len(begins)} of {GANG} ranks began"
        time.sleep(0.002)


def imported(name: str) -> Any:
    """A peer's module."""
    return importlib.import_module(name)


def submitit_gang(number: int) -> float:
    """submitit's local executor: four tasks of a function."""
    submitit = imported("submitit")
    folder = Path(f"submitit-{number}").absolute()
    folder.mkdir()
    executor = submitit.AutoExecutor(folder=folder / "log", cluster="local")
    executor.update_parameters(tasks_per_node=GANG, nodes=1, timeout_min=1)
    started = time.time()
    executor.submit(write_begin, str(folder))
    return last_begin(folder) - started


def write_begin(folder: str) -> None:
    """One task of submitit."""
    began = time.time()
    Path(folder, f"begin-{os.environ['SUBMITIT_LOCAL_LOCALID']}").write_text(f"{began}\n")


def torchx_gang(number: int) -> float:
    """TorchX's local scheduler: four replicas of a shell."""
    runners, specs = imported("torchx.runner"), imported("torchx.specs")
    folder = Path(f"torchx-{number}").absolute()
    folder.mkdir()
    command = BEGIN.replace("$RANK", f"'{specs.macros.replica_id}'").replace("begin-", f"'{folder}'/begin-")
    role = specs.Role(name="gang", image="", entrypoint="bash", args=["-c", command], num_replicas=GANG)
    with runners.get_runner() as runner:
        started = time.time()
        runner.run(specs.AppDef(name="gang", roles=[role]), scheduler="local_cwd")
        return last_begin(folder) - started


CONTENDERS: dict[str, tuple[str, Callable[[int], float]]] = {
    "trainworks": ("trainworks", trainworks_gang),
    "submitit local": ("submitit", submitit_gang),
    TORCHX: ("torchx", torchx_gang),
}


@contextmanager
def ray_of(python: Path | None) -> Iterator[dict[str, Callable[[int], float]]]:
    """Ray as a contender, up and with a driver; none without a Python that has it."""
    if python is None:
        yield {}
        return
    peer = Path(__file__).parent / "peers" / "ray_peer.py"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python.absolute()), str(peer.absolute()), str(GANG)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "READY\n", "Ray did not start"
        gang = partial(ray_gang, process)
        yield {RAY: gang}
        process.stdin.close()


def ray_gang(process: subprocess.Popen[str], number: int) -> float:
    """Four tasks in a placement group."""
    assert process.stdin is not None and process.stdout is not None
    folder = Path(f"ray-{number}").absolute()
    folder.mkdir()
    process.stdin.write(f"{folder}\n")
    process.stdin.flush()
    return last_begin(folder) - float(process.stdout.readline())


def throughput(count: int) -> float:
    """No-op jobs per minute, on two slots."""

    jobs = [prepared(f"noop-{number}", "true", ranks=1, cores=1.0)[0] for number in range(count)]
    store = open_store(store_url())
    before = store.counts().get(JobState.SUCCEEDED, 0)
    started = time.time()
    for submit in jobs:
        submit()
    while store.counts().get(JobState.SUCCEEDED, 0) < before + count:
        assert time.time() < started + PATIENCE_S * 5, store.counts()
        time.sleep(0.05)
    return count / (time.time() - started) * 60


def print_figures(first_s: float, times: dict[str, list[float]], per_minute: float) -> None:
    """Milliseconds, ratios, and whether the goals are met."""
    ours = times["trainworks"]
    print(f"submit to the last of {GANG} processes begun, median (least .. most) of {len(ours)}")
    print(f"  {'first job':18}{first_s * 1e3:8.0f} ms, which starts the dispatcher")
    for name, found in times.items():
        if not found:
            how = "--ray PYTHON" if name == RAY else f"pip install {CONTENDERS[name][0]}"
            print(f"  {name:18}NOT MEASURED: {how}")
            continue
        spread = f"{min(found) * 1e3:.0f} .. {max(found) * 1e3:.0f}"
        ratio = median(own / peer for own, peer in zip(ours, found, strict=True))
        line = f"  {name:18}{median(found) * 1e3:8.0f} ms ({spread})"
        if name == "trainworks":
            print(f"{line}; goal {GOAL_S * 1e3:.0f} ms: {met(median(found) <= GOAL_S)}")
        elif name in GOAL_RATIOS:
            goal = GOAL_RATIOS[name]
            print(f"{line}, ours is {ratio:.2f} of it; goal {goal}: {met(ratio <= goal)}")
        else:
            print(f"{line}, ours is {ratio:.2f} of it")
    reached = met(per_minute >= GOAL_JOBS_PER_MINUTE)
    print(f"no-op jobs through the queue: {per_minute:,.0f} per minute; goal {GOAL_JOBS_PER_MINUTE:,}: {reached}")


def met(reached: bool) -> str:
    """How a goal is reported."""
    return "met" if reached else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
