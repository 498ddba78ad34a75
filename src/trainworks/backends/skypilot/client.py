"""SkyPilot's command line, in an environment of its own; every call has a time limit, and every answer one meaning."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host import process

__all__ = ["Refused", "SkyPilotClient"]

_TIMEOUT_S = 180.0
"""The first call starts SkyPilot's API server where there is none, which takes half a minute."""
_LAUNCH_TIMEOUT_S = 1800.0
"""The first job of all waits for the node that watches jobs, and every job for the upload of its files."""
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SILENT = re.compile(
    r"could not connect to skypilot api server|apiserverconnectionerror|connection (refused|timed out|reset)|"
    r"remote end closed connection|request timed out|temporarily unavailable",
    re.IGNORECASE,
)
_NO_JOBS = re.compile(r"No in-progress managed jobs|ClusterNotUpError")
"""Nothing watches jobs, because there were none for a while: SkyPilot takes that for an error."""
_IN_THE_WAY = re.compile(r"(ApiServerAuthentication|APIVersionMismatch|APINotSupported|Cloud|NoCloudAccess)Error")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?P<name>[A-Z]\w+): ")
_SUBMITTED = re.compile(r"Managed Job ID: (\d+)")


class Refused(UsageError):
    """SkyPilot understood, and says no; the message is its own."""


@final
class SkyPilotClient:
    """Calls `sky`.

    Args:
        program: its name on the path, or its path.
        run: runs a command; `host.process.run`.
        lines: runs a command, and gives its lines as they come; `host.process.lines`.
        env: variables of this shell; those of this process when None.
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

    def unset(self, names: Iterable[str]) -> list[str]:
        """Those of the variables that this shell does not have."""
        return [name for name in names if name not in self._env]

    def queue(self, *, unfinished: bool = False) -> list[dict[str, Any]]:
        """Managed jobs of this user, the newest first, as SkyPilot describes them.

        Args:
            unfinished: only those that have not ended.

        Raises:
            UnreachableError: the API server does not answer.
            Refused: the program failed for another reason.
            EnvironmentProblem: there is no such program, or it has no access.
        """
        which = "--skip-finished" if unfinished else "--all"
        output = self._call(["jobs", "queue", "--output", "json", "--verbose", which], _TIMEOUT_S)
        if output.exit_code and _NO_JOBS.search(output.stderr):
            return []
        return _records(self._said(output))

    def launch(self, task: str, secrets: Sequence[str]) -> str | None:
        """Hand over a task; the number of its managed job, if SkyPilot says it.

        Args:
            task: YAML; it is on the disk for as long as the call takes, for its owner alone to read.
            secrets: variables whose values SkyPilot takes from this shell.

        Raises: as `queue`.
        """
        options = [word for name in secrets for word in ("--secret", name)]
        with tempfile.NamedTemporaryFile("w", prefix="trainworks-", suffix=".yaml", encoding="utf-8") as file:
            file.write(task)
            file.flush()
            command = ["jobs", "launch", "--yes", "--detach-run", *options, file.name]
            said = self._said(self._call(command, _LAUNCH_TIMEOUT_S))
        found = _SUBMITTED.findall(said)
        return found[-1] if found else None

    def cancel(self, job: str) -> None:
        """Cancel a managed job; one that has ended, or never was, is left alone.

        Raises: as `queue`.
        """
        output = self._call(["jobs", "cancel", "--yes", job], _TIMEOUT_S)
        if not (output.exit_code and _NO_JOBS.search(output.stderr)):
            self._said(output)

    def logs(self, job: str, *, follow: bool) -> Iterator[str]:
        """What a managed job has written, line by line, without colours."""
        options = ["--follow" if follow else "--no-follow", "--tail", "0"]
        unset = [word for name in _OF_THIS_PYTHON for word in ("-u", name)]
        for line in self._lines(["env", *unset, self._program, "jobs", "logs", *options, job]):
            yield _COLOUR.sub("", line).rstrip("\r\n")

    def _call(self, arguments: list[str], timeout_s: float) -> process.Output:
        env = {name: value for name, value in self._env.items() if name not in _OF_THIS_PYTHON}
        try:
            output = self._run([self._program, *arguments], timeout_s=timeout_s, env=env)
        except OSError as error:
            hint = "install `skypilot` into an environment of its own, and name its `sky` in `cluster.skypilot.program`"
            raise EnvironmentProblem(f"cannot start `{self._program}`: {error.strerror}", hint=hint) from None
        except EnvironmentProblem as slow:
            raise UnreachableError(f"SkyPilot does not answer: {slow.message}", hint="try again later") from None
        return process.Output(output.exit_code, _COLOUR.sub("", output.stdout), _COLOUR.sub("", output.stderr))

    def _said(self, output: process.Output) -> str:
        if output.exit_code == 0:
            return output.stdout
        words = output.stderr.strip() or output.stdout.strip()
        said = _reason(words)
        if _SILENT.search(words):
            raise UnreachableError(f"SkyPilot does not answer: {said}", hint="see `sky api info`")
        if _IN_THE_WAY.search(words):
            raise EnvironmentProblem(f"SkyPilot cannot work here: {said}", hint="see `sky check` and `sky api info`")
        raise Refused(f"SkyPilot: {said}")


def _records(text: str) -> list[dict[str, Any]]:
    """The list in JSON; what SkyPilot says before it, as when it starts its API server, is not part of it."""
    found = re.search(r"^\[(?:\]|$)", text, re.MULTILINE)
    try:
        records = json.loads(text[found.start() :]) if found else None
    except ValueError:
        records = None
    if not isinstance(records, list):
        hint = "`cluster.skypilot.program` takes SkyPilot 0.14 or newer"
        raise EnvironmentProblem(f"`sky jobs queue --output json` said: {text.strip()[:200]!r}", hint=hint)
    return records


def _reason(text: str) -> str:
    """The last line of an error, without the name of its class."""
    last = text.splitlines()[-1] if text else "no reason given"
    return _EXCEPTION.sub("", last).removeprefix("Error: ").strip()
