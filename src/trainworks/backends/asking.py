"""Ask backends about their jobs, all at the same time; a silent one delays neither the others nor the next command."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import final

from trainworks.backends.backend import Backend, JobStatus
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.files import write_atomic
from trainworks.host.clock import Clock
from trainworks.jobs.job_row import JobRow
from trainworks.record.run_dir import RunDir

QUIET_S = 15.0
"""Time for which a backend that did not answer is not asked again."""
_UNINTERRUPTED_S = 3.0
"""Time beyond its patience for what a backend cannot interrupt: imports, the resolver, a program for credentials."""

Backends = Callable[[JobRow], Backend | None]
"""The backend of a job."""
Answer = tuple[Backend | None, dict[str, JobStatus]]


@final
class Silence:
    """Remembers backends that did not answer, in one file of `folder` for each, for all commands of this user."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def check(self, backend: str, engine: str) -> None:
        """Refuse to ask a backend that was silent less than 15 s ago.

        Raises:
            UnreachableError: it was; says for how long it is left alone.
        """
        try:
            ago = self._clock.now() - float(self._file(backend).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if 0 <= ago < QUIET_S:
            left = f"not asked again for {QUIET_S - ago:.0f} s"
            raise UnreachableError(f"{engine} did not answer {ago:.0f} s ago: {left}", hint="try again later")

    def note(self, backend: str) -> None:
        """Remember that it did not answer."""
        with suppress(OSError):  # without it, the next command waits again
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._file(backend), str(self._clock.now()), durable=False)

    def forget(self, backend: str) -> None:
        """Remember that it answered."""
        with suppress(OSError):
            self._file(backend).unlink(missing_ok=True)

    def _file(self, backend: str) -> Path:
        return self._folder / hashlib.sha256(backend.encode()).hexdigest()[:16]


@final
class Question:
    """A question to one backend about its jobs; asked in a thread, which does not keep this process from its end.

    `key` is name and options of the backend, `rows` at least one of its jobs. Without a `silence` the caller asks one
    backend after the other, and waits for each. A backend that `is_awaited` is asked in any case.
    """

    def __init__(
        self, key: str, rows: Sequence[JobRow], backends: Backends, silence: Silence | None, *, is_awaited: bool
    ) -> None:
        self.rows = rows
        self._key = key
        self._silence = silence
        self._limit_s: float | None = None
        self._answer: Future[Answer] = Future()
        try:
            if silence is not None and not is_awaited:
                silence.check(key, rows[0].engine)
            backend = backends(next((row for row in rows if row.handle), rows[0]))
            if backend is not None and silence is not None and not is_awaited:
                backend = backend.hurried()
                self._limit_s = backend.patience_s + _UNINTERRUPTED_S
        except (EnvironmentProblem, UsageError) as error:
            self._answer.set_exception(error)
        else:
            if silence is None:
                self._ask(backend)
            else:
                threading.Thread(target=self._ask, args=(backend,), daemon=True).start()

    def _ask(self, backend: Backend | None) -> None:
        try:
            statuses = self._statuses(backend)
        except BaseException as error:  # raised where the answer is read
            if isinstance(error, UnreachableError) and self._silence is not None:
                self._silence.note(self._key)
            self._answer.set_exception(error)
        else:
            if self._silence is not None:
                self._silence.forget(self._key)
            self._answer.set_result((backend, statuses))

    def _statuses(self, backend: Backend | None) -> dict[str, JobStatus]:
        """Status of the jobs that have a handle; without any, an answer shows that submissions can be finished."""
        handles = [row.handle for row in self.rows if row.handle]
        if backend is None or handles:
            return backend.poll(handles) if backend else {}
        if self._limit_s is not None:
            backend.find(RunDir(Path(self.rows[0].run_dir)))
        return {}

    def answer(self) -> Answer:
        """Wait for the backend.

        Raises:
            UnreachableError: it does not answer, or did not a moment ago.
            TrainworksError: another problem of `Backend.poll`.
        """
        done, _ = wait([self._answer], self._limit_s)
        if not done and self._silence is not None:
            self._silence.note(self._key)
            raise UnreachableError(f"{self.rows[0].engine} does not answer", hint="try again later")
        return self._answer.result()
