"""Backend for clouds, through SkyPilot's managed jobs.

Sources: `ManagedJobStatus` of SkyPilot 0.14 (sky/jobs/state.py), and its command `sky`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import find_patiently
from trainworks.config.engines import SkyPilot
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.formats.manifest import dns_name
from trainworks.jobs.formats.skypilot import render_managed_job, secret_names
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

JOB_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "SUBMITTED": JobState.STARTING,
    "STARTING": JobState.STARTING,
    "RUNNING": JobState.RUNNING,
    "WINDING_DOWN": JobState.RUNNING,
    "RECOVERING": JobState.RECOVERING,
    "CANCELLING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "CANCELLED": JobState.STOPPED,
    "FAILED": JobState.FAILED,
    "FAILED_SETUP": JobState.FAILED,
    "FAILED_PRECHECKS": JobState.FAILED,
    "FAILED_NO_RESOURCE": JobState.FAILED,
    "FAILED_CONTROLLER": JobState.FAILED,
}

_CAUSES: dict[str, Cause] = {
    "RECOVERING": Cause.NODE_LOST,  # or preempted: SkyPilot does not tell them apart
    "FAILED": Cause.USER_ERROR,
    "FAILED_SETUP": Cause.USER_ERROR,
    "FAILED_PRECHECKS": Cause.ENVIRONMENT,  # no access, or resources that no cloud offers
    "FAILED_NO_RESOURCE": Cause.NO_CAPACITY,
    "FAILED_CONTROLLER": Cause.AGENT_LOST,
}
_EMPTY = ("", "-")


def job_status(record: Mapping[str, Any]) -> JobStatus:
    """Current status of a managed job."""
    raw = str(record.get("status"))
    state = JOB_STATES.get(raw, JobState.UNKNOWN)
    wanted = (record.get(key) for key in ("failure_reason", "details", "infra"))  # the last one of a job with nodes
    return JobStatus(
        state=state,
        raw=raw,
        reason=next((text for text in map(_plain, wanted) if text not in _EMPTY), None),
        cause=_CAUSES.get(raw),
        restarts=int(record.get("recovery_count") or 0),
        exit_code=0 if state is JobState.SUCCEEDED else None,
        starts_at=None if state.waits else _time(record.get("start_at")),
        ended_at=_time(record.get("end_at")) if state.is_final else None,
    )


def _time(seconds: object) -> float | None:
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _plain(text: object) -> str:
    return " ".join(_COLOUR.sub("", str(text)).split()) if text is not None else ""


_TIMEOUT_S = 180.0
"""Timeout of a call; the first one may start SkyPilot's API server, which takes half a minute."""
_LAUNCH_TIMEOUT_S = 1800.0
"""Timeout of a launch: the first job waits for the jobs controller, and every job for the upload of its files."""
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNREACHABLE = re.compile(
    r"could not connect to skypilot api server|apiserverconnectionerror|connection (refused|timed out|reset)|"
    r"remote end closed connection|request timed out|temporarily unavailable",
    re.IGNORECASE,
)
_NO_JOBS = re.compile(r"No in-progress managed jobs|ClusterNotUpError")
"""Error without a jobs controller, which SkyPilot stops when there were no jobs for a while."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?P<name>[A-Z]\w+): ")


class SkyPilotRefusedError(UsageError):
    """SkyPilot refused the request; the message is SkyPilot's."""


@final
class SkyPilotClient:
    """Calls `sky`, a name on the path or a path. `run` and `lines` are those of `host.process`; `env` is the
    environment of this process when None.
    """

    def __init__(
        self,
        program: str = "sky",
        run: Callable[..., process.Output] = process.run,
        lines: Callable[[Sequence[str]], Iterator[str]] = process.lines,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._program = str(Path(program).expanduser()) if program.startswith("~/") else program
        self._run = run
        self._lines = lines
        self._env = dict(os.environ if env is None else env)
        self._timeout_s = _TIMEOUT_S

    def within(self, seconds: float) -> Self:
        """A client of the same program that waits for each answer only so long."""
        hurried = copy.copy(self)
        hurried._timeout_s = seconds
        return hurried

    def unset(self, names: Iterable[str]) -> list[str]:
        """Variables that are not set in the shell."""
        return [name for name in names if name not in self._env]

    def queue(self, *, unfinished: bool = False) -> list[Mapping[str, Any]]:
        """Managed jobs of this user, or only the `unfinished` ones, newest first, as SkyPilot's records.

        Raises:
            UnreachableError: the API server does not answer.
            SkyPilotRefusedError: the program failed for another reason.
            EnvironmentProblem: the program is missing, or has no access.
        """
        which = "--skip-finished" if unfinished else "--all"
        output = self._call(["jobs", "queue", "--output", "json", "--verbose", which], self._timeout_s)
        if output.exit_code and _NO_JOBS.search(output.stderr):
            return []
        text = self._checked(output)
        # SkyPilot may print lines before the list, for example when it starts its API server
        start = re.search(r"^\[(?:\]|$)", text, re.MULTILINE)
        try:
            records = json.loads(text[start.start() :]) if start else None
        except ValueError:
            records = None
        if not isinstance(records, list):
            hint = "set `cluster.skypilot.program` to SkyPilot 0.14 or newer"
            raise EnvironmentProblem(
                f"`sky jobs queue --output json` printed no JSON list: {text.strip()[:200]!r}", hint=hint
            )
        return records

    def launch(self, task: str, secrets: Sequence[str]) -> str | None:
        """Launch a task; returns the number of its managed job, if SkyPilot prints it.

        The task is YAML, written to a file that only its owner can read, for the duration of the call. `secrets` are
        variables whose values SkyPilot reads from the shell.

        Raises: as `queue`.
        """
        options = [word for name in secrets for word in ("--secret", name)]
        with tempfile.NamedTemporaryFile("w", prefix="trainworks-", suffix=".yaml", encoding="utf-8") as file:
            file.write(task)
            file.flush()
            command = ["jobs", "launch", "--yes", "--detach-run", *options, file.name]
            output = self._checked(self._call(command, _LAUNCH_TIMEOUT_S))
        numbers = re.findall(r"Managed Job ID: (\d+)", output)
        return numbers[-1] if numbers else None

    def cancel(self, job: str) -> None:
        """Cancel a managed job; ignore one that has ended or does not exist.

        Raises: as `queue`.
        """
        output = self._call(["jobs", "cancel", "--yes", job], _TIMEOUT_S)
        if not (output.exit_code and _NO_JOBS.search(output.stderr)):
            self._checked(output)

    def logs(self, job: str, *, follow: bool) -> Iterator[str]:
        """Stream the output of a managed job line by line, without colours."""
        options = ["--follow" if follow else "--no-follow", "--tail", "0"]
        unset_options = [word for name in _PYTHON_VARIABLES for word in ("-u", name)]
        for line in self._lines(["env", *unset_options, self._program, "jobs", "logs", *options, job]):
            yield _COLOUR.sub("", line).rstrip("\r\n")

    def _call(self, arguments: list[str], timeout_s: float) -> process.Output:
        env = {name: value for name, value in self._env.items() if name not in _PYTHON_VARIABLES}
        try:
            output = self._run([self._program, *arguments], timeout_s=timeout_s, env=env)
        except OSError as error:
            hint = "install `skypilot` into an environment of its own, and name its `sky` in `cluster.skypilot.program`"
            raise EnvironmentProblem(f"cannot start `{self._program}`: {error.strerror}", hint=hint) from None
        except EnvironmentProblem as timeout:
            raise UnreachableError(f"SkyPilot does not answer: {timeout.message}", hint="try again later") from None
        return process.Output(output.exit_code, _COLOUR.sub("", output.stdout), _COLOUR.sub("", output.stderr))

    def _checked(self, output: process.Output) -> str:
        if output.exit_code == 0:
            return output.stdout
        text = output.stderr.strip() or output.stdout.strip()
        last = text.splitlines()[-1] if text else "no reason given"
        reason = _EXCEPTION.sub("", last).removeprefix("Error: ").strip()  # without the name of the class
        if _UNREACHABLE.search(text):
            raise UnreachableError(f"SkyPilot does not answer: {reason}", hint="see `sky api info`")
        if re.search(r"(ApiServerAuthentication|APIVersionMismatch|APINotSupported|Cloud|NoCloudAccess)Error", text):
            raise EnvironmentProblem(f"SkyPilot cannot run jobs: {reason}", hint="see `sky check` and `sky api info`")
        raise SkyPilotRefusedError(f"SkyPilot: {reason}")


_NODE_LINE = re.compile(r"\((?P<name>[^,()]+)(?:, rank=(?P<node>\d+))?, pid=\d+(?:, ip=[^,()]+)?\) ?(?P<text>.*)")
"""Prefix of SkyPilot's output lines: `(worker1, rank=1, pid=1234, ip=10.0.0.2) text`."""


@final
class SkyPilotBackend(Backend):
    """Runs jobs with `sky jobs`; `program` is required to render and submit one."""

    name: ClassVar[str] = "skypilot"
    unsupported: ClassVar[frozenset[Capability]] = frozenset(
        (
            *("edit", "hold", "exclude", "depends_on", "min_nodes", "roles", "drain", "drain.accelerator"),
            *("time_limit", "health", "environment.lock", "environment.conda"),
        )
    )
    shares_files: ClassVar[bool] = False
    needs_program: ClassVar[bool] = True
    patience_s: float = 15.0
    """The program alone takes seconds."""

    def __init__(
        self,
        options: SkyPilot,
        *,
        program: Program | None = None,
        client: SkyPilotClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._program = program
        self._client = client or SkyPilotClient(options.program)
        self._clock = clock or SystemClock()

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(cluster.skypilot, program=program)

    def hurried(self) -> Self:
        """This backend, with a client that waits for each answer only for the time of a list."""
        hurried = copy.copy(self)
        hurried._client = self._client.within(self.patience_s)
        return hurried

    def check(self, spec: JobSpec) -> None:
        """Refuse what SkyPilot cannot do, and a job whose secrets are not set."""
        super().check(spec)
        if spec.keep_code and "workdir" in self._options.task:
            hint = "remove `job.keep_code`, and name a commit in `workdir.ref`"
            raise UsageError("`job.keep_code` copies a folder, and SkyPilot clones `workdir`", hint=hint)
        render_managed_job(spec, self._required_program, self._options, "checked")
        if unset := self._client.unset(secret_names(self._required_program)):
            raise UsageError(f"`envs.{unset[0]}` has no value", hint=f"export {unset[0]}=...")

    @property
    def _required_program(self) -> Program:
        assert self._program is not None, "a backend without a program renders nothing"
        return self._program

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the task YAML of a managed job; its `workdir` is the kept code, if there is some."""
        program = self._required_program
        if spec.keep_code:
            program = replace(program, working_folder=spec.working_folder)
        return RenderedJob(spec, render_managed_job(spec, program, self._options, job_name(run_dir)))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Launch the managed job, unless one of this run is unfinished; returns its number.

        Raises:
            SkyPilotRefusedError: SkyPilot refuses the job, with its own message.
            UnansweredError: SkyPilot did not answer; if it has the job, another `submit` finds it.
            UnreachableError: SkyPilot does not answer, and does not have the job.
        """
        if (handle := self.find(run_dir)) is not None:
            return handle
        try:
            job = self._client.launch(rendered.text, secret_names(self._required_program))
        except UnreachableError as error:
            return find_patiently(lambda: self.find(run_dir), error, self._clock)
        missing = EnvironmentProblem("SkyPilot accepted the job, but does not list it")
        return job or find_patiently(lambda: self.find(run_dir), missing, self._clock)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the newest unfinished job of this run's name."""
        name = job_name(run_dir)
        jobs = [record for record in self._client.queue(unfinished=True) if record.get("job_name") == name]
        alive = [record["job_id"] for record in jobs if not job_status(record).state.is_final]
        return str(max(alive)) if alive else None

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from SkyPilot's queue; empty if the jobs controller was deleted."""
        if not handles:
            return {}
        records = {str(record.get("job_id")): record for record in self._client.queue()}
        return {handle: job_status(records[handle]) for handle in handles if handle in records}

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Cancel the job: SkyPilot sends SIGTERM, and returns the nodes. It has no grace period."""
        self._client.cancel(handle)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of `sky jobs logs`; with `node`, those of that node, without their prefix."""
        for line in self._client.logs(handle, follow=follow):
            if node is None:
                yield line
            elif (match := _NODE_LINE.fullmatch(line)) and int(match["node"] or 0) == node:
                yield match["text"]

    def nodes(self) -> list[NodeStatus]:
        """Nodes of the backend: none, as SkyPilot rents them per job."""
        return []


def job_name(run_dir: RunDir) -> str:
    """Name of the managed job, by which the run is found again; the folder makes it unique, as run ids repeat."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"
