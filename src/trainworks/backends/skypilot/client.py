"""The command line of SkyPilot, `sky`: its managed jobs, and what its errors mean.

Source: SkyPilot 0.14.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host import process

_TIMEOUT_S = 180.0
"""Timeout of a call; the first one may start SkyPilot's API server, which takes half a minute."""
_LAUNCH_TIMEOUT_S = 1800.0
"""Timeout of a launch: the first job waits for the jobs controller, and every job for the upload of its files."""
_NO_VALUES: Mapping[str, str] = {}
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
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
    """Calls `sky`, a name on the path or a path. `run`, `lines` and `merged`, which is `lines_of`, are those of
    `host.process`; `env` is the environment of this process when None.
    """

    def __init__(
        self,
        program: str = "sky",
        run: Callable[..., process.Output] = process.run,
        lines: Callable[[Sequence[str]], Iterator[str]] = process.lines,
        merged: Callable[[Mapping[str, Sequence[str]]], Iterator[tuple[str, str]]] = process.lines_of,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._program = str(Path(program).expanduser()) if program.startswith("~/") else program
        self._run = run
        self._lines = lines
        self._merged = merged
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

    def launch(self, task: str, secrets: Sequence[str], values: Mapping[str, str] = _NO_VALUES) -> str | None:
        """Launch a task; returns the number of its managed job, if SkyPilot prints it.

        The task is YAML, written to a file that only its owner can read, for the duration of the call. `secrets` are
        variables whose values SkyPilot reads from the shell, or gets as `values`.

        Raises: as `queue`.
        """
        options = [word for name in secrets for word in ("--secret", name)]
        with tempfile.NamedTemporaryFile("w", prefix="trainworks-", suffix=".yaml", encoding="utf-8") as file:
            file.write(task)
            file.flush()
            command = ["jobs", "launch", "--yes", "--detach-run", *options, file.name]
            output = self._checked(self._call(command, _LAUNCH_TIMEOUT_S, values))
        numbers = re.findall(r"Managed Job ID: (\d+)", output)
        return numbers[-1] if numbers else None

    def cancel(self, job: str) -> None:
        """Cancel a managed job; ignore one that has ended or does not exist.

        Raises: as `queue`.
        """
        output = self._call(["jobs", "cancel", "--yes", job], _TIMEOUT_S)
        if not (output.exit_code and _NO_JOBS.search(output.stderr)):
            self._checked(output)

    def logs(self, job: str, *, follow: bool, task: str | None = None) -> Iterator[str]:
        """Stream the output of a managed job, or of a task of it, line by line, without colours."""
        for line in self._lines(self._logs_command(job, follow=follow, task=task)):
            yield COLOUR.sub("", line).rstrip("\r\n")

    def logs_of_tasks(self, job: str, tasks: Sequence[str], *, follow: bool) -> Iterator[tuple[str, str]]:
        """Stream the output of the tasks of a job group, each line with its task: one after the other, or as they come
        with `follow`.
        """
        if not follow:
            yield from ((task, line) for task in tasks for line in self.logs(job, follow=False, task=task))
            return
        commands = {task: self._logs_command(job, follow=True, task=task) for task in tasks}
        for task, line in self._merged(commands):
            yield task, COLOUR.sub("", line).rstrip("\r\n")

    def _logs_command(self, job: str, *, follow: bool, task: str | None) -> list[str]:
        options = ["--follow" if follow else "--no-follow", "--tail", "0"]
        unset_options = [word for name in _PYTHON_VARIABLES for word in ("-u", name)]
        words = [job] if task is None else [job, task]
        return ["env", *unset_options, self._program, "jobs", "logs", *options, *words]

    def _call(self, arguments: list[str], timeout_s: float, values: Mapping[str, str] = _NO_VALUES) -> process.Output:
        env = {name: value for name, value in self._env.items() if name not in _PYTHON_VARIABLES} | dict(values)
        try:
            output = self._run([self._program, *arguments], timeout_s=timeout_s, env=env)
        except OSError as error:
            hint = "install `skypilot` into an environment of its own, and name its `sky` in `cluster.skypilot.program`"
            raise EnvironmentProblem(f"cannot start `{self._program}`: {error.strerror}", hint=hint) from None
        except EnvironmentProblem as timeout:
            raise UnreachableError(f"SkyPilot does not answer: {timeout.message}", hint="try again later") from None
        return process.Output(output.exit_code, COLOUR.sub("", output.stdout), COLOUR.sub("", output.stderr))

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
