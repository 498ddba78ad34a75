"""Where the tests of all backends run on SkyPilot: a cloud on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, final

import psutil

from tests.backends.beds import Bed, Job
from tests.backends.skypilot.cloud import jobs, opened
from tests.fakes import FakeClock
from trainworks.backends.registry import backend_of_run
from trainworks.backends.remote import follow_all, hand_over, hand_over_again
from trainworks.backends.skypilot.backend import SkyPilotBackend, job_name
from trainworks.host.clock import SystemClock
from trainworks.jobs.job_row import JobRow
from trainworks.record.run_dir import RunDir


@final
class SkyPilotBed(Bed):
    """A cloud that rents machines to whoever asks. A command there has a queue and an output, and no record."""

    word = "skypilot"
    keeps_record = names_machines = False
    causes_of_a_lost_node: ClassVar = {"node_lost", "unknown"}  # unless a look finds it at renting others
    resources: ClassVar = {"cpus": 1}
    code = '"$HOME/sky_workdir"'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open = ExitStack()
        self._cloud = self._open.enter_context(opened(folder / "cloud"))
        self._bucket = folder / "bucket"
        self._bucket.mkdir()
        self.cluster = {"skypilot": {"program": str(self._cloud / "sky")}}
        self._last = self.job("true").run_dir

    @property
    def backend(self) -> SkyPilotBackend:
        """That of the job that was made last: SkyPilot is asked for nothing but jobs."""
        return self._backend_of(self._last)

    def _backend_of(self, run_dir: RunDir) -> SkyPilotBackend:
        backend = backend_of_run(run_dir.read_resolved())
        assert isinstance(backend, SkyPilotBackend)
        is_deaf = (self._cloud / "loses answers").exists()
        backend._clock = FakeClock() if is_deaf else SystemClock()  # it looks again and again, in vain
        return backend

    def _prepared(self, run_file: Any, processes: Any) -> Job:
        """A job whose commands find a bucket, which all machines mount, where others have the folder of the run."""
        shared = {"TRAINWORKS_RUN_DIR": str(self._bucket)}
        roles = {
            name: role.model_copy(update={"run": _exporting(shared, role.run)}) for name, role in run_file.roles.items()
        }
        run = None if roles else _exporting(shared, run_file.run)
        made = super()._prepared(run_file.model_copy(update={"run": run, "roles": roles}), processes)
        self._last = made.run_dir
        return made

    def submit(self, job: Job) -> Job:
        hand_over(self.store, self._backend_of(job.run_dir), job.spec, job.run_dir, self.clock)
        return job

    def retry(self, row: JobRow) -> None:
        hand_over_again(self.store, self._backend_of(RunDir(Path(row.run_dir))), row, self.clock)

    def look(self) -> None:
        follow_all(self.store, self.clock, lambda row: self._backend_of(RunDir(Path(row.run_dir))))

    def said(self, job: Job, rank: int) -> list[str]:
        """Of every managed job of the run: a retry is another one."""
        backend, name = self._backend_of(job.run_dir), job_name(job.run_dir)
        numbers = {int(one["job_id"]) for one in jobs(self._cloud) if one["job_name"] == name}
        return [line for number in sorted(numbers) for line in backend.output(f"{number}", node=rank)]

    def shared(self, job: Job) -> Path:
        return self._bucket

    def left_of(self, job: Job) -> int:
        """Machines that are rented for a job."""
        row = job.row
        return len(list((self._cloud / f"{row.handle}").glob("**/machine-*")))

    def lose_a_node(self, job: Job) -> None:
        (self._cloud / f"{job.row.handle}" / "preempt").touch()

    def kill_a_rank(self, job: Job) -> None:
        self._kill_scripts_of(job.spec.max_nodes - 1)

    def kill_the_supervisor(self, job: Job) -> None:
        """The script of the first machine: what supervises the job is SkyPilot's."""
        self._kill_scripts_of(0)

    def _kill_scripts_of(self, node: int) -> None:
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                env = one.environ()
                if str(self._cloud) in env.get("HOME", "") and env.get("SKYPILOT_NODE_RANK") == str(node):
                    one.kill()

    def silence(self) -> None:
        (self._cloud / "away").touch()

    def answer(self) -> None:
        (self._cloud / "away").unlink()

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        (self._cloud / "loses answers").touch()
        yield
        (self._cloud / "loses answers").unlink()
        self.answer()

    @contextmanager
    def strange_word(self) -> Iterator[None]:
        (self._cloud / "word").write_text("HIBERNATING")
        yield
        (self._cloud / "word").unlink()

    def close(self) -> None:
        self._open.close()
        assert all(job["status"] for job in jobs(self._cloud))


def _exporting(variables: dict[str, str], script: str) -> str:
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items()) + script
