"""Copies of run directories on a cluster that does not see those here, over a real sshd on loopback."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from tests.backends.slurm.login_node import NEEDS_SSHD, LoginNode, login, short_folder, until
from tests.fakes import resolved_command
from trainworks.backends.slurm import login_side
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.run_copies import RunCopies, tag_here
from trainworks.config.engines import Slurm
from trainworks.config.run_file import RunFile
from trainworks.errors import TrainworksError, UnreachableError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.jobs.spec_of_run import spec_of
from trainworks.record.events.log import append_event, read_events
from trainworks.record.resolved import KeptCode
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus

__all__ = ["login", "short_folder"]
pytestmark = NEEDS_SSHD

CODE = KeptCode(digest="0" * 64, num_files=2, num_bytes=2)
CLIENT = """\
import json, os, sys
from pathlib import Path
from trainworks.backends.slurm.client import SlurmClient
from trainworks.backends.slurm.run_copies import RunCopies
from trainworks.config.engines import Slurm
from trainworks.host.clock import SystemClock
from trainworks.record.run_dir import RunDir
RunCopies(Slurm.model_validate_json(sys.argv[1]), SlurmClient("login1"), SystemClock()).send(RunDir(Path(sys.argv[2])))
"""


class Cluster:
    """A folder of a cluster and a Python there, both with names that a shell would read as more than a word."""

    def __init__(self, login: LoginNode) -> None:
        self.login = login
        self.folder = login.folder / 'the cluster\'s "scratch" $(id) é'
        self.began, self.gate = login.folder / "began", login.folder / "gate"
        python = login.folder / "my python"
        self.options = Slurm(login="login1", folder=str(self.folder), python=str(python))
        self.python("")

    def python(self, first: str) -> None:
        """Write the Python there, which does something first."""
        assert self.options.python is not None
        Path(self.options.python).write_text(f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')
        Path(self.options.python).chmod(0o755)

    def hold(self) -> None:
        """Let the Python there wait at a gate, before it reads anything."""
        os.mkfifo(self.gate)
        self.python(f"touch '{self.began}'; read line < '{self.gate}'")

    def let_through(self) -> None:
        """Open the gate, and wait until the Python there has ended."""
        self.gate.write_text("go\n")
        until(lambda: not any(str(self.folder) in " ".join(one.info["cmdline"] or ()) for one in self._there()))
        self.python("")

    def cut(self) -> None:
        """Kill the server's side of every connection."""
        for one in psutil.Process(self.login.daemon.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # one may end with another
                if one.name().startswith("sshd"):
                    one.kill()

    def _there(self) -> list[psutil.Process]:
        """Processes that run the module of the login node."""
        found = psutil.process_iter(["cmdline"])
        return [one for one in found if login_side.__name__ in (one.info["cmdline"] or ())]

    @property
    def copies(self) -> RunCopies:
        return RunCopies(self.options, self.login.client(), SystemClock())

    def run(self, name: str = "t", *, code_bytes: int = 0) -> RunDir:
        """A run directory; with a copy of its code that does not get smaller by compression."""
        run_dir = create_run_dir(self.login.folder / "it's here", name)
        resolved = resolved_command(run_dir.run_id, working_folder=str(self.login.folder))
        if code_bytes:
            run_dir.code_folder.mkdir()
            (run_dir.code_folder / "a b.bin").write_bytes(os.urandom(code_bytes))
            (run_dir.code_folder / "run.sh").write_text("#!/bin/sh\n")
            (run_dir.code_folder / "run.sh").chmod(0o755)
            (run_dir.code_folder / "link").symlink_to("run.sh")
            resolved = resolved.model_copy(update={"code": CODE, "working_folder": str(run_dir.code_folder)})
        run_dir.write_resolved(resolved)
        run_dir.write_status(RunStatus(state="QUEUED"))
        return run_dir

    def names(self) -> list[str]:
        return sorted(one.name for one in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def cluster(login: LoginNode) -> Cluster:
    return Cluster(login)


def test_a_copy_has_all_that_the_job_reads_and_no_path_of_this_machine(cluster: Cluster) -> None:
    run_dir = cluster.run(code_bytes=100)
    cluster.copies.send(run_dir)
    there = cluster.copies.place(run_dir)
    assert there.path.parent == cluster.folder and there.run_id.startswith("t-1.")
    assert there.read_resolved().working_folder == str(there.code_folder)
    assert str(run_dir.path) not in there.resolved_file.read_text()
    assert (there.code_folder / "a b.bin").read_bytes() == (run_dir.code_folder / "a b.bin").read_bytes()
    assert os.access(there.code_folder / "link", os.X_OK) and (there.code_folder / "link").is_symlink()
    assert (there.read_status().state, there.logs.is_dir(), there.path.stat().st_mode & 0o077) == ("QUEUED", True, 0)


def test_the_record_comes_back_as_it_grows(cluster: Cluster) -> None:
    first, second, gone = cluster.run(), cluster.run(), RunDir(cluster.login.folder / "gone")
    for run_dir in (first, second):
        cluster.copies.send(run_dir)
    there = cluster.copies.place(first)
    for number in range(3):
        append_event(there.events_file, {"kind": "state", "state": str(number), "cause": None, "message": None})
        with there.rank_log(0).open("ab") as log:
            log.write(b"\xff line\n")
        there.write_status(RunStatus(state="RUNNING", message=str(number)))
        assert cluster.copies.fetch([first, second, gone])
        assert first.events_file.read_bytes() == there.events_file.read_bytes()
        assert first.rank_log(0).read_bytes() == there.rank_log(0).read_bytes() == b"\xff line\n" * (number + 1)
        assert first.read_status().message == str(number)
    assert (second.read_status().state, gone.path.exists(), cluster.login.logins()) == ("QUEUED", False, 1)


def test_a_run_with_a_secret_comes_back_for_its_user_alone(cluster: Cluster) -> None:
    run_dir = cluster.run()
    secret = RunFile.model_validate({"name": "a", "run": "true", "envs": {"WANDB_API_KEY": "x"}})
    run_dir.write_resolved(resolved_command(run_dir.run_id, working_folder="/there", run_file=secret))
    cluster.copies.send(run_dir)
    before = run_dir.resolved_file.stat().st_ino
    assert cluster.copies.fetch([run_dir])
    files = (run_dir.resolved_file, cluster.copies.place(run_dir).resolved_file)
    assert files[0].stat().st_ino != before and [file.stat().st_mode & 0o777 for file in files] == [0o600] * 2


def test_a_run_that_starts_again_keeps_the_events_of_both_sides(cluster: Cluster) -> None:
    run_dir = cluster.run()
    cluster.copies.send(run_dir)
    append_event(
        cluster.copies.place(run_dir).events_file, {"kind": "state", "state": "FAILED", "cause": None, "message": None}
    )
    cluster.copies.fetch([run_dir])
    append_event(run_dir.events_file, {"kind": "changed", "changes": []})
    cluster.copies.send(run_dir)
    append_event(
        cluster.copies.place(run_dir).events_file,
        {"kind": "state", "state": "STARTING", "cause": None, "message": None},
    )
    cluster.copies.fetch([run_dir])
    said = [(event["kind"], event.get("state")) for event in read_events(run_dir.events_file)]
    assert said == [("state", "FAILED"), ("changed", None), ("state", "STARTING")]


def test_a_name_that_leads_out_of_the_run_directory_is_not_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, copies = cluster.run(), cluster.copies
    part = {"start": 0, "content": "x", "time": 1}
    names = ("../x", "/tmp/x", "logs/../../x", "logs/.x", "code/x", ".lock", "usage/node-0.json")
    answer = {"runs": {str(copies.place(run_dir).path): dict.fromkeys(names, part)}, "is_whole": True}
    said = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    monkeypatch.setattr(RunCopies, "_ask", lambda *_: said)
    before = set(cluster.login.folder.rglob("*"))
    copies.fetch([run_dir])
    assert {one.name for one in set(cluster.login.folder.rglob("*")) - before} == {"usage", "node-0.json"}


def test_a_connection_that_is_cut_while_the_files_travel_leaves_nothing(cluster: Cluster) -> None:
    run_dir = cluster.run(code_bytes=8_000_000)  # more than ssh and pipes hold on their way
    cluster.hold()
    errors: list[TrainworksError] = []

    def send() -> None:
        try:
            cluster.copies.send(run_dir)
        except TrainworksError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(cluster.began.exists)
    cluster.cut()
    thread.join(120)
    cluster.let_through()
    (error,) = errors
    assert isinstance(error, UnreachableError) and "`login1` does not answer" in error.message
    assert cluster.names() == []
    cluster.copies.send(run_dir)
    assert cluster.names() == [cluster.copies.place(run_dir).run_id]


def test_a_client_that_is_killed_while_the_files_travel_leaves_nothing(cluster: Cluster) -> None:
    run_dir = cluster.run(code_bytes=8_000_000)
    cluster.hold()
    words = [sys.executable, "-c", CLIENT, cluster.options.model_dump_json(), str(run_dir.path)]
    with subprocess.Popen(words, env=dict(os.environ) | cluster.login.env) as client:
        until(cluster.began.exists)
        client.kill()
    cluster.let_through()
    assert cluster.names() == []
    cluster.copies.send(run_dir)
    assert cluster.copies.place(run_dir).code_folder.is_dir()


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("exec python-that-is-not-there", "not found"),
        ("set -- -c 'import trainworks.nothing'", "No module named"),
        ("set -- -c 'raise SystemExit(\"No space left on device\")'", "No space left on device"),
    ],
)
def test_a_python_that_cannot_write_the_copy_is_one_error(cluster: Cluster, first: str, said: str) -> None:
    cluster.python(first)
    with pytest.raises(UsageError) as caught:
        cluster.copies.send(cluster.run())
    assert caught.value.message.startswith("cannot copy the files of runs to or from `login1:")
    assert said in caught.value.message and "\n" not in caught.value.message
    assert "ssh login1" in (caught.value.hint or "")


def test_the_job_knows_the_paths_of_the_cluster_alone(cluster: Cluster) -> None:
    run_dir = cluster.run()
    backend = SlurmBackend(cluster.options, client=SlurmClient("login1", env=cluster.login.env))
    spec = spec_of(RunFile(name="t", run="true"), run_id="t-1", working_folder=str(cluster.login.folder / "work"))
    script = backend.render(spec, run_dir).text
    assert str(run_dir.path) not in script and "/work" not in script and cluster.options.python in script
    script = script.replace('\\"', '"')
    assert f'#SBATCH --chdir="{cluster.folder}"\n' in script
    assert f'#SBATCH --output="{cluster.copies.place(run_dir).supervisor_log}"\n' in script


def test_a_refused_job_leaves_no_copy(cluster: Cluster) -> None:
    run_dir = cluster.run()
    cluster.login.program("squeue", "true")
    cluster.login.program("sbatch", "ls '" + str(cluster.folder).replace("'", "'\\''") + "' >&2; exit 1")
    backend = SlurmBackend(cluster.options, client=cluster.login.client())
    spec = spec_of(RunFile(name="t", run="true"), run_id="t-1", working_folder="/")
    with pytest.raises(SlurmRefusedError, match=f"^{cluster.copies.place(run_dir).run_id}$"):
        backend.submit(backend.render(spec, run_dir), run_dir)
    assert cluster.names() == []


def test_two_machines_with_runs_of_one_path_have_two_jobs_and_two_copies(cluster: Cluster) -> None:
    run_dir = cluster.run()
    one, other = (RunCopies(cluster.options, cluster.login.client(), SystemClock(), name) for name in ("ada", "bob"))
    assert one.tag(run_dir) != other.tag(run_dir) and one.place(run_dir).path != other.place(run_dir).path
    shared = RunCopies(Slurm(), SlurmClient(), SystemClock())
    assert tag_here(one.tag(run_dir)) == tag_here(other.tag(run_dir)) == shared.tag(run_dir)
    assert shared.place(run_dir).path == run_dir.path


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"folder": "/scratch", "python": "/opt/python"}, "needs `login`"),
        ({"folder": "/scratch", "login": "login1"}, "needs `python`"),
        ({"login": "login1", "python": "/opt/python"}, "needs `folder`"),
        ({"folder": "scratch", "login": "login1", "python": "/opt/python"}, "pattern"),
        ({"folder": "/a\nb", "login": "login1", "python": "/opt/python"}, "pattern"),
    ],
)
def test_a_copy_needs_a_login_a_folder_and_a_python(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Slurm.model_validate(keys)


def test_a_workload_is_refused_because_its_checkpoints_stay_there(cluster: Cluster) -> None:
    slurm = json.loads(cluster.options.model_dump_json())
    with pytest.raises(ValidationError, match="checkpoints of a workload are not copied"):
        RunFile.model_validate(
            {
                "name": "t",
                "workload": {
                    "task": "causal-lm",
                    "model": {"architecture": "llama", "layers": 1, "hidden": 8, "heads": 1},
                    "data": {"source": "python-stdlib", "sequence_length": 8},
                    "global_batch": 1,
                    "train_for": "1 steps",
                },
                "cluster": {"engine": "slurm", "slurm": slurm},
            }
        )
