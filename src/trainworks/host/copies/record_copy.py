"""The record of a run in an S3-compatible store, for a run whose machines are gone when it ends."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from trainworks.config.recovery import MOST_COPIES
from trainworks.config.run_file import RunFile
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import UsageError
from trainworks.files import held_lock, write_atomic
from trainworks.host.copies.record_files import GROWING, LOG_LIMIT_BYTES, is_of_a_record, record_files
from trainworks.host.copies.s3 import S3Prefix, StoredObject
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

_BLOCK_BYTES = 4 << 20
_FOLDER = "record"


def with_store(run_file: RunFile) -> RunFile:
    """The run file of a workload on rented machines with their store among the places of its checkpoints.

    Raises:
        UsageError: these are too many.
    """
    store, checkpoint = run_file.cluster.skypilot.store, run_file.checkpoint
    is_rented = run_file.cluster.engine == "skypilot" and run_file.workload is not None
    if store is None or not is_rented or store.to in [copy.to for copy in checkpoint.copies]:
        return run_file
    if len(checkpoint.copies) == MOST_COPIES:
        hint = f"leave one of the {MOST_COPIES} places out, or name the store among them"
        raise UsageError("`cluster.skypilot.store` is one place more than `checkpoint.copies` can have", hint=hint)
    copies = (*checkpoint.copies, store)
    return run_file.model_copy(update={"checkpoint": checkpoint.model_copy(update={"copies": copies})})


def record_of(run_file: RunFile, run_id: str) -> RecordCopy | None:
    """The record of a run in the store of its rented machines; None for a run whose record stays where it is."""
    store = run_file.cluster.skypilot.store
    is_rented = run_file.cluster.engine == "skypilot" and run_file.workload is not None
    return RecordCopy.of(store, run_id) if is_rented and store is not None else None


class RecordCopy(S3Prefix):
    """Files of a record below `ADDRESS/record/`, where ADDRESS is that of the checkpoints of the run.

    A file is stored in blocks of 4 MiB, so that one that grows is not sent again: `events.jsonl/000000`. A file that is
    replaced is one block.

    Raises: as `S3Prefix`.
    """

    def __init__(self, address: str, *, endpoint: str | None = None, region: str | None = None) -> None:
        super().__init__(address, endpoint=endpoint, region=region)
        self._seen: dict[str, tuple[int, int]] = {}
        """Size in bytes and time of change of each file as it was sent."""
        self._blocks: dict[str, int] | None = None
        """Number of complete blocks of each file in the store."""

    @classmethod
    def of(cls, store: CheckpointCopy, run_id: str) -> Self:
        """The record of a run in the store of its checkpoints."""
        return cls(store.address(run_id), endpoint=store.endpoint, region=store.region)

    def send(self, run_dir: RunDir, only: Sequence[str] = ()) -> None:
        """Send what has changed since the last time; the state last, and so after all that it speaks of.

        One process of a run sends at a time: what is there never gets older. With `only`, these files alone.

        Raises:
            EnvironmentProblem: the store refuses, or does not answer.
        """
        with self._naming(), held_lock(run_dir.path / ".record.lock"):
            files = [file for file in record_files(run_dir.path) if not only or file.name in only]
            state = [file.read_bytes() for file in files if file == run_dir.status_file]
            for file in files:
                if file != run_dir.status_file:
                    self._send_file(file, str(file.relative_to(run_dir.path)))
            for content in state:
                self._put(run_dir.status_file.name, 0, content)

    def fetch(self, run_dir: RunDir, without: Sequence[str] = ()) -> bool:
        """Write what is new there into the run directory; False if the store has no record of this run.

        A file that only grows gets what it lacks; one that is another than that in the store is replaced.

        Raises:
            UsageError: the store has the record of another run.
            EnvironmentProblem: the store refuses, or does not answer.
        """
        with self._naming():
            files = self._files()
            if run_dir.resolved_file.exists() and files:
                self._check_is_of(run_dir, files)
            for name, blocks in sorted(files.items(), key=lambda one: one[0] == run_dir.status_file.name):
                if is_of_a_record(name) and name not in without:
                    self._fetch_file(run_dir.path / name, name, blocks)
        return bool(files)

    def check(self, run_dir: RunDir) -> bool:
        """Whether the store has a record of this run already.

        Raises:
            UsageError: the store has the record or checkpoints of another run.
            EnvironmentProblem: the store refuses, or does not answer.
        """
        with self._naming():
            if files := self._files():
                self._check_is_of(run_dir, files)
            elif any(True for _ in self._objects(f"{self._prefix}/")):
                raise self._of_another()
        return bool(files)

    def status(self) -> RunStatus | None:
        """The last state that the run has sent; None without one.

        Raises:
            EnvironmentProblem: the store refuses, or does not answer.
        """
        with self._naming():
            if "status.json" not in self._files():
                return None
            return RunStatus.model_validate_json(self._read(self._key("status.json", 0)))

    def discard(self) -> None:
        """Delete the record of a run that has never begun; one with a state stays."""
        with self._naming():
            if "status.json" not in (files := self._files()):
                for block in (block for blocks in files.values() for block in blocks):
                    self._s3.delete_object(Bucket=self._bucket, Key=block.key)

    def _files(self) -> dict[str, list[StoredObject]]:
        """Blocks of each file in their order."""
        found: dict[str, list[StoredObject]] = defaultdict(list)
        start = f"{self._prefix}/{_FOLDER}/"
        for item in self._objects(start):
            found[item.key.removeprefix(start).rpartition("/")[0]].append(item)
        return {name: sorted(blocks, key=lambda block: block.key) for name, blocks in found.items()}

    def _check_is_of(self, run_dir: RunDir, files: dict[str, list[StoredObject]]) -> None:
        there = json.loads(self._read(self._key("resolved.json", 0))) if "resolved.json" in files else {}
        if there.get("created_at") != json.loads(run_dir.resolved_file.read_bytes())["created_at"]:
            raise self._of_another()

    def _of_another(self) -> UsageError:
        hint = "give the run another `name`, or `cluster.skypilot.store` another prefix"
        return UsageError(f"`{self.address}` holds another run of this name", hint=hint)

    def _send_file(self, file: Path, name: str) -> None:
        facts = file.stat()
        if self._seen.get(name) == (seen := (facts.st_size, facts.st_mtime_ns)):
            return
        if file.suffix not in GROWING:
            self._put(name, 0, file.read_bytes())
        else:
            self._send_blocks(file, name, facts.st_size)
        self._seen[name] = seen

    def _send_blocks(self, file: Path, name: str, size: int) -> None:
        """Send the blocks of a file that grows from the first that is not complete there; whole lines of JSON alone."""
        if self._blocks is None:
            sizes = {known: [block.size for block in blocks] for known, blocks in self._files().items()}
            self._blocks = {known: each.count(_BLOCK_BYTES) for known, each in sizes.items()}
        size = min(size, LOG_LIMIT_BYTES) if file.suffix == ".log" else size
        first = self._blocks.get(name, 0)
        with file.open("rb") as opened:
            opened.seek(first * _BLOCK_BYTES)
            content = opened.read(max(0, size - first * _BLOCK_BYTES))
        if file.suffix == ".jsonl":
            content = content[: content.rfind(b"\n") + 1]
        for number, start in enumerate(range(0, len(content), _BLOCK_BYTES), first):
            self._put(name, number, content[start : start + _BLOCK_BYTES])
        self._blocks[name] = first + len(content) // _BLOCK_BYTES

    def _fetch_file(self, file: Path, name: str, blocks: list[StoredObject]) -> None:
        size = sum(block.size for block in blocks)
        if file.suffix in GROWING and file.exists() and file.stat().st_size == size:
            return
        before = file.read_bytes() if file.exists() else None
        if file.suffix not in GROWING:
            digest = hashlib.md5(before or b"", usedforsecurity=False).hexdigest()
            if before is not None and blocks[0].etag == f'"{digest}"':
                return
            content = self._read(blocks[0].key)
        else:
            known = min(len(before or b""), size) // _BLOCK_BYTES
            rest = b"".join(self._read(block.key) for block in blocks[known:])
            start = known * _BLOCK_BYTES
            own = (before or b"")[start:]
            if not rest.startswith(own[: len(rest)]):  # the run went on from an earlier state than this one
                start, rest = 0, b"".join(self._read(block.key) for block in blocks)
            elif len(own) >= len(rest):
                return
            content = (before or b"")[:start] + rest
        mode = file.stat().st_mode & 0o777 if before is not None else 0o600 if name == "resolved.json" else 0o644
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content, durable=file.suffix == ".json", mode=mode)

    def _put(self, name: str, number: int, content: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=self._key(name, number), Body=content)

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}/{_FOLDER}/{name}/{number:06d}".lstrip("/")
