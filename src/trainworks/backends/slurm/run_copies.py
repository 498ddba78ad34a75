"""Copies of run directories on a cluster that does not see those of this machine, over ssh.

A copy has the files that a job reads. The job writes its record into the copy, and `fetch` brings it into the run
directory here, where all commands read it. Checkpoints, and what else a command writes, stay on the cluster.
"""

from __future__ import annotations

import base64
import hashlib
import io
import socket
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import final

from trainworks.backends.job_tag import folder_mark, mark_of
from trainworks.backends.record_parts import question, write_answer
from trainworks.backends.slurm import login_side
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.errors import UsageError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.jobs.job_spec import JobSpec
from trainworks.record.run_dir import RunDir

_FILES = ("run.yaml", "status.json", "events.jsonl")
"""What a copy has from here, beside the resolved run and the code. The events are those of earlier attempts."""
_UPLOAD_S = 600.0
_MOST_BYTES = 4 * 2**20
"""Content of one answer; it fits into the time limit of a call."""
_OTHER_MACHINE = "@"
"""Stands in a tag between that of the folder here and the name of this machine."""


@final
class RunCopies:
    """The copies of run directories in `cluster.slurm.folder`; without it, the run directories themselves.

    `machine` is the name of this one: two machines may have run directories of one path.
    """

    def __init__(self, options: Slurm, client: SlurmClient, clock: Clock, machine: str | None = None) -> None:
        self._options = options
        self._client = client
        self._clock = clock
        self._machine = machine or socket.gethostname()

    def place(self, run_dir: RunDir) -> RunDir:
        """The run directory as the nodes of the cluster see it."""
        here = RunDir(run_dir.path.absolute())
        if self._options.folder is None:
            return here
        return RunDir(Path(self._options.folder) / f"{here.run_id}.{folder_mark(here, self._machine)}")

    def tag(self, run_dir: RunDir) -> str:
        """Tag of the job of a run; `tag_here` finds in it the tag that `mark_of` makes of its folder here."""
        tag = mark_of(RunDir(run_dir.path.absolute()))
        machine = hashlib.sha256(self._machine.encode()).hexdigest()[:8]
        return tag if self._options.folder is None else f"{tag}{_OTHER_MACHINE}{machine}"

    def spec_there(self, spec: JobSpec, run_dir: RunDir) -> JobSpec:
        """The job with the folder in which its command starts there: its kept code, else the folder of all copies."""
        if self._options.folder is None:
            return spec
        return replace(spec, working_folder=self._working_folder(run_dir, is_kept=spec.keep_code))

    def _working_folder(self, run_dir: RunDir, *, is_kept: bool) -> str:
        return str(self.place(run_dir).code_folder) if is_kept else self._options.folder or ""

    def send(self, run_dir: RunDir) -> None:
        """Copy what the job reads, or bring a copy up to date; a new copy is complete or absent at any time.

        Raises:
            UnreachableError: the login node does not answer.
            UsageError: it cannot write the copy, or has no Trainworks.
        """
        if self._options.folder is None:
            return
        resolved = run_dir.read_resolved()
        folder = self._working_folder(run_dir, is_kept=resolved.code is not None)
        there = resolved.model_copy(update={"working_folder": folder}).model_dump_json(indent=2)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, run_dir.resolved_file.name, f"{there}\n".encode())
            for name in _FILES:
                with suppress(FileNotFoundError):
                    _add(archive, name, (run_dir.path / name).read_bytes())
            logs = tarfile.TarInfo(run_dir.logs.name)
            logs.type, logs.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(logs)
            if resolved.code is not None:
                archive.add(run_dir.code_folder, arcname=login_side.CODE)
        packed = content.getvalue()
        there, digest = str(self.place(run_dir).path), hashlib.sha256(packed).hexdigest()
        self._ask(("receive", there, digest), packed, timeout_s=_UPLOAD_S)

    def discard(self, run_dir: RunDir) -> None:
        """Remove the copy of a run whose job was refused and has never begun.

        Raises: as `send`.
        """
        if self._options.folder is not None:
            self._ask(("discard", str(self.place(run_dir).path)), b"")

    def fetch(self, run_dirs: Sequence[RunDir]) -> bool:
        """Bring what jobs have written since the last time; returns whether that is all.

        It stops after the time that the client waits for an answer.

        Raises: as `send`.
        """
        here = {str(self.place(run_dir).path): run_dir for run_dir in run_dirs if run_dir.path.exists()}
        if self._options.folder is None or not here:
            return True
        deadline = self._clock.now() + self._client.timeout_s
        while True:
            is_whole = write_answer(here, self._ask(("send",), question(here, _MOST_BYTES)))
            if is_whole or self._clock.now() >= deadline:
                return is_whole

    def _ask(self, words: Sequence[str], content: bytes, *, timeout_s: float | None = None) -> str:
        command = process.python_module(login_side.__name__, *words, python=self._options.python)
        answer = self._client.run_on_login(command, base64.b64encode(content).decode("ascii"), timeout_s=timeout_s)
        if answer.exit_code == 0:
            return answer.stdout
        where = f"{self._options.login}:{self._options.folder}"
        said = answer.stderr.strip().splitlines()[-1:] or ["no reason given"]
        problem = f"cannot copy the files of runs to or from `{where}`: {said[0]}"
        hint = f"does `ssh {self._options.login} '{self._options.python}' -m trainworks --version` work?"
        raise UsageError(problem, hint=hint)


def tag_here(tag: str) -> str:
    """The tag that `mark_of` makes of a run directory, from that of its job."""
    return tag.partition(_OTHER_MACHINE)[0]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))
