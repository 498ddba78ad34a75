"""Metrics of a command: what its ranks print, or log with TensorBoard, W&B or MLflow, as steps of the run's record.

TensorBoard's files are found below the working folder by the process id in their names; W&B and MLflow write below the
run directory, by WANDB_DIR and MLFLOW_TRACKING_URI. W&B writes in blocks of 32 KiB, so that its metrics come late.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import struct
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import final

import psutil

from trainworks.agent.log_metrics import LogReader
from trainworks.agent.metric_names import reading_of
from trainworks.config.track import MetricName
from trainworks.files import size_of
from trainworks.host.clock import SystemClock
from trainworks.host.memory import peak_bytes
from trainworks.host.process import has_children
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.events.training import FinishedEvent, MetricsSourceEvent
from trainworks.record.metrics import LoggedSteps, Reading, append_metrics
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

_LOOK_S = 0.05
_CHOICE_S = 2.0  # from the first metrics until they are written: a better source may have them, too
_FLUSH_S = (
    150.0  # the same for an output without steps beside a tracker, which knows them: TensorBoard's writes in 120 s
)
_CHUNK_BYTES = 1 << 20
_OWN_SOURCES = ("trainworks.log", "session")
_EVENTS = re.compile(r"events\.out\.tfevents\.\d+\..*\.(\d+)\.\d+(?:\.v2)?")
_MOST_ENTRIES = 20_000  # of the working folder among which event files are looked for, the nearest first
_BLOCK_BYTES = 32768
_Logged = tuple[float, float, dict[str, float]]  # seconds since the epoch, step and values


def tracker_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are not set, by which W&B and MLflow write below a folder; W&B without an account is offline."""
    found = {"WANDB_DIR": str(folder)}
    netrc = Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")
    if "WANDB_API_KEY" not in environment and not (netrc.is_file() and "wandb" in netrc.read_text(errors="replace")):
        found["WANDB_MODE"] = "offline"
    if "MLFLOW_TRACKING_URI" not in environment:
        found |= {"MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    return {name: value for name, value in found.items() if name not in environment}


@final
class ScriptMetricsReader:
    """Reads the metrics of those ranks of a node that may print them, the first and the last of the job, in a thread.

    In a job with roles they are those of one role, whose first rank is `first`. The first source that names a loss
    counts for the whole run; of those that do so at once, a tracker before the output. Metrics that the program records
    itself, by `trainworks.log` or a session, end the reading.
    """

    def __init__(self, run_dir: RunDir, resolved: ResolvedRun, ranks: range, attempt: int, first: int = 0) -> None:
        tokens = resolved.plan.tokens_per_step if resolved.plan else None
        self._run_dir, self._options, self._steps = run_dir, resolved.run_file.metrics, LoggedSteps(attempt, tokens)
        self._workdir, self._pids = Path(resolved.working_folder), set[int]()
        # on an accelerator the host's memory of a rank is not what the plan is of
        self._peaks_at = 0.0 if tokens is not None and resolved.processes.device == "cpu" else math.inf
        self._peaks_every_s = 1.0
        wanted, self._is_first = self._options.source, first in ranks
        self._outputs = {
            f"rank-{rank}.log": _Output(run_dir.rank_log(rank), LogReader(self._options.pattern, self._options.names))
            for rank in dict.fromkeys((first, first + resolved.processes.world_size - 1))
            if rank in ranks and wanted in ("auto", "output")
        }
        files = ("tensorboard", "wandb", "mlflow") if self._is_first else ()
        self._kinds = [each for each in files if wanted in ("auto", each)]
        names = self._options.names
        self._files = {path: TrackerFile(kind, path, names, from_end=True) for kind, path in self._found()}
        self._files_at, self._files_every_s = 0.0, 1.0
        self._choice_s, self._held_at = _CHOICE_S if self._is_first else 2 * _CHOICE_S, math.inf
        self._held: dict[str, list[Reading]] = {}
        self._source: str | None = None
        self._size = 0  # bytes of the record's metrics after the last row of this reader
        self._is_over, self._is_whole = not (self._outputs or self._kinds), False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="metrics", daemon=True)

    def begin(self, pids: Collection[int]) -> None:
        """Follow the ranks, which have these process ids; what they wrote since this reader was made counts."""
        self._pids |= set(pids)
        self._thread.start()

    def end(self, *, whole: bool) -> None:
        """Read what is left, once the ranks have ended; a last line without an end counts if it is `whole`."""
        self._is_whole = whole
        self._ended.set()
        self._thread.join()
        if self._is_first:  # several nodes share it
            for folder in (self._run_dir.script_trackers / "wandb", self._run_dir.script_trackers):
                with suppress(OSError):  # it has files, or is not there
                    folder.rmdir()

    def _follow(self) -> None:
        """Read until the end; a fault of the reader is written down, and does not concern the run."""
        try:
            while not self._is_over:
                is_last = self._ended.wait(_LOOK_S)
                self._look(last=is_last)
                self._is_over |= is_last
        except Exception:
            traceback.print_exc(file=sys.stdout)

    def _found(self) -> Iterator[tuple[str, Path]]:
        found = tracker_files(self._run_dir.script_trackers, self._workdir, self._pids) if self._kinds else ()
        return ((kind, path) for kind, path in found if kind in self._kinds)

    def _look(self, *, last: bool) -> None:
        now = SystemClock().now()
        if self._kinds and self._source not in self._outputs and (last or now >= self._files_at):
            self._files_at, self._files_every_s = now + self._files_every_s, min(2 * self._files_every_s, 60.0)
            with suppress(psutil.Error):
                children = psutil.Process().children(recursive=True) if has_children() else ()
                self._pids |= {one.pid for one in children}
            found = ((kind, path) for kind, path in self._found() if path not in self._files)
            self._files |= {path: TrackerFile(kind, path, self._options.names) for kind, path in found}
        said = [(file.kind, file.read()) for file in self._files.values()]
        said += [(name, output.read(last=last, whole=self._is_whole)) for name, output in self._outputs.items()]
        for source, readings in said:
            if readings and self._source in (None, source):
                self._held.setdefault(source, []).extend(readings)
                if math.isinf(self._held_at):
                    self._held_at, self._files_at = now, 0.0
        if self._held and (last or self._source or now >= self._held_at + self._wait_s()):
            self._write()

    def _wait_s(self) -> float:
        """Time from the first metrics to the choice of a source, of which another one may know the steps."""
        tracked = any(source not in self._outputs for source in self._held)
        said = any(not self._outputs[source].counts for source in self._held if source in self._outputs)
        if tracked or said or not self._files:
            return self._choice_s
        return _FLUSH_S

    def _write(self) -> None:
        """Add to the record what the chosen source has; choose at the first time, as an earlier attempt has chosen."""
        metrics = self._run_dir.metrics_file
        if self._source is None or self._size != size_of(metrics):
            said = [each["source"] for each in of_kind(read_events(self._run_dir.events_file), MetricsSourceEvent)]
            chosen = said[-1] if said else min(self._held, key=lambda source: source in self._outputs)
            self._is_over = chosen in _OWN_SOURCES or self._source not in (None, chosen)
            if self._is_over:
                return
            if not said:
                totals = [int(each["total"]) for each in self._held[chosen] if "total" in each and "epoch" not in each]
                event = MetricsSourceEvent(kind="metrics_source", source=chosen)
                self._run_dir.note(event | {"num_steps": max(totals)} if totals else event)
            self._source = chosen
        held = self._held.get(self._source, [])
        rows = self._steps.rows(held if self._source in self._outputs else sorted(held, key=itemgetter("t")))
        self._held.clear()
        if rows and (now := SystemClock().now()) >= self._peaks_at and (peak := _largest_peak_bytes()):
            rows[-1]["memory_peak_bytes"] = peak
            self._peaks_at, self._peaks_every_s = now + self._peaks_every_s, min(2 * self._peaks_every_s, 60.0)
        append_metrics(metrics, rows)
        self._size = size_of(metrics)
        if self._options.patience is not None and any(
            self._options.metric in row.get("evaluation", {}) for row in rows
        ):
            record = import_module("trainworks.record.evaluations")  # it needs numpy, which most commands do without
            found = record.standing(record.read_evaluations(self._run_dir, self._options.metric), self._options)
            self._is_over = found.is_stalled(self._options.patience)
            if self._is_over:  # the supervisor ends the ranks
                self._run_dir.note(FinishedEvent(kind="finished", step=rows[-1]["step"], early=True))


def _largest_peak_bytes() -> int:
    """Largest resident memory so far of a process that this one, or a child of it, has started; 0 without any."""
    with suppress(psutil.Error):
        return max((peak_bytes(one.pid) for one in psutil.Process().children(recursive=True)), default=0)
    return 0


class _Output:
    """Readings of what one rank prints, each with the time at which its line was there."""

    def __init__(self, log: Path, reader: LogReader) -> None:
        self._log, self._reader, self._decoder = log, reader, codecs.getincrementaldecoder("utf-8")("replace")
        self._offset, self._before = size_of(log), SystemClock().now()
        if self._offset:  # earlier starts tell how the program counts epochs
            with log.open("rb") as opened:
                reader.read(opened.read(min(self._offset, _CHUNK_BYTES)).decode(errors="replace"))
            reader.begin()

    @property
    def counts(self) -> bool:
        """True if a step is the number of a line so far, because the rank does not say it."""
        return self._reader.counts

    def read(self, *, last: bool, whole: bool) -> list[Reading]:
        """New readings; those of one look are spread over the time since the look before."""
        data = b""
        with suppress(FileNotFoundError), self._log.open("rb") as log:
            log.seek(self._offset)
            data = log.read(-1 if last else _CHUNK_BYTES)
        self._offset += len(data)
        found = self._reader.read(self._decoder.decode(data), last=last, whole=whole) if data or last else []
        since, self._before = self._before, SystemClock().now()
        each_s = (self._before - since) / max(1, len(found))
        return [reading | {"t": since + index * each_s} for index, reading in enumerate(found, start=1)]


def tracker_files(folder: Path, workdir: Path, pids: Collection[int]) -> Iterator[tuple[str, Path]]:
    """Tracker and file of what the processes `pids` write below the folder of `tracker_environment` or in their own.

    MLflow's is the folder `metrics` of its run.
    """
    # most runs have neither folder, and to compile a pattern takes longer than to look for it
    if (folder / "wandb").is_dir():
        yield from (("wandb", path) for path in folder.glob("wandb/*run-*/*.wandb") if not path.parent.is_symlink())
    if (folder / "mlruns").is_dir():
        yield from (("mlflow", path) for path in folder.glob("mlruns/*/*/metrics"))
    folders, left = [str(workdir)] if pids else [], _MOST_ENTRIES
    for each in folders:
        try:
            entries = list(os.scandir(each))[:left]
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            if (match := _EVENTS.fullmatch(entry.name)) and int(match[1]) in pids:
                yield "tensorboard", Path(entry.path)
            elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)


@final
class TrackerFile:
    """Reads what was added to a file of a tracker, or to the folder `metrics` of a run of MLflow."""

    def __init__(
        self, kind: str, path: Path, names: Mapping[MetricName, str] = MappingProxyType({}), *, from_end: bool = False
    ) -> None:
        self.kind, self._path, self._names = kind, path, names
        self._offsets: dict[Path, int] = {}
        self._known = set[str]()
        if from_end:
            self.read()

    def read(self) -> list[Reading]:
        """Readings of complete records, with their times, in the order of their steps."""
        merged: dict[float, Reading] = {}
        for t, step, tags in self._logged():
            values = {self._name(tag): value for tag, value in tags.items()}
            self._known |= values.keys()
            merged[step] = merged.get(step, {}) | self._without_means(values) | {"t": t}
        found = ((values["t"], step, reading_of(values, self._names)) for step, values in sorted(merged.items()))
        return [reading | {"step": step, "t": t} for t, step, reading in found if reading]

    def _name(self, tag: str) -> str:
        """The tag, with what the folder of an event file adds: `loss_val` of `add_scalars`, or `validation`.

        A folder `test` may be that of a trial, and is of held-out data beside a folder `train` alone.
        """
        folder = self._path.parent
        if self.kind != "tensorboard" or re.search("train|val|test", tag, re.IGNORECASE):
            return tag
        if folder.name.startswith(scope := f"{tag.replace('/', '_')}_"):
            return f"{tag}/{folder.name.removeprefix(scope)}"
        held_out = ("val", "valid", "validation", "eval", "evaluation")
        is_held_out = folder.name in held_out or (folder.name == "test" and (folder.parent / "train").is_dir())
        return f"val/{tag}" if is_held_out else tag

    def _without_means(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values without `train_loss_epoch` where `train_loss_step` is known: a curve has one of them."""
        return {
            name: value
            for name, value in values.items()
            if f"{name.removesuffix('_epoch')}_step" not in self._known
            or "loss" not in (reading_of({name: value}) or {})
        }

    def _logged(self) -> Iterator[_Logged]:
        for file in [self._path] if self._path.is_file() else filter(Path.is_file, self._path.rglob("*")):
            start = self._offsets.get(file, 7 if self.kind == "wandb" else 0)  # W&B's file begins with seven bytes
            with file.open("rb") as opened:
                opened.seek(start)
                data = opened.read()
            if self.kind == "mlflow":
                self._offsets[file] = start + data.rfind(b"\n") + 1
                for milliseconds, value, step in (
                    line.split()[:3] for line in data[: data.rfind(b"\n") + 1].splitlines()
                ):
                    name = file.relative_to(self._path).as_posix()
                    yield float(milliseconds) / 1e3, float(step), {name: float(value)}
                continue
            for message, end in _chunks(data, start) if self.kind == "wandb" else _frames(data):
                self._offsets[file] = start + end
                yield from _history(message) if self.kind == "wandb" else _scalars(message)


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Complete messages of TFRecord frames, and where each ends; see `trainworks.observe.trackers.event_file`."""
    at = 0
    while at + 12 <= len(data) and (end := at + 16 + struct.unpack_from("<Q", data, at)[0]) <= len(data):
        yield data[at + 12 : end - 4], end
        at = end


def _chunks(data: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Complete messages of LevelDB's log format, and where each ends; `start` is the place of the data in its file.

    A chunk is `checksum: uint32 | length: uint16 | type: uint8 | bytes`, of types full, first, middle and last; none
    crosses a block of 32 KiB (wandb/sdk/internal/datastore.py).
    """
    at, message = 0, b""
    while True:
        left = _BLOCK_BYTES - (start + at) % _BLOCK_BYTES
        at += left if left < 7 else 0
        length, kind = struct.unpack_from("<HB", data, at + 4) if at + 7 <= len(data) else (0, 0)
        if not kind or at + 7 + length > len(data):
            return
        message, at = message + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # full or last
            yield message, at
            message = b""


def _scalars(message: bytes) -> Iterator[_Logged]:
    """Scalars of TensorBoard's `Event`: wall_time = 1, step = 2, summary = 5 of values = 1 with tag = 1 and
    simple_value = 2, or tensor = 8 with tensor_content = 4 or float_val = 5.
    """
    event, values = dict(_fields(message)), dict[str, float]()
    for _, value in _fields(event.get(5)):
        parts = dict(_fields(value))
        tensor = dict(_fields(parts.get(8)))
        number = parts.get(2) or tensor.get(4) or tensor.get(5) or b""
        values |= {parts[1].decode(): struct.unpack("<f", number)[0]} if len(number) == 4 else {}
    if values:
        yield struct.unpack("<d", event[1])[0], _varint(event.get(2, b"\0"), 0)[0], values


def _history(message: bytes) -> Iterator[_Logged]:
    """Numbers of W&B's `Record`: history = 2 with items = 1 of key = 1 or nested_key = 2, and value_json = 16."""
    for history in (value for field, value in _fields(message) if field == 2):
        values: dict[str, float] = {}
        for parts in (list(_fields(item)) for field, item in _fields(history) if field == 1):
            name = "/".join(part.decode() for field, part in parts if field in (1, 2))
            value = next((json.loads(part) for field, part in parts if field == 16), None)
            values |= {name: float(value)} if isinstance(value, int | float) else {}
        if "_step" in values:
            step = values.get("train/global_step", values["_step"])
            yield values.get("_timestamp", 0.0), step, {name: value for name, value in values.items() if name[0] != "_"}


def _fields(message: bytes | None) -> Iterator[tuple[int, bytes]]:
    """Numbers of the fields of a protobuf message, with their bytes as they are."""
    message, at = message or b"", 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 2:
            length, at = _varint(message, at)
        elif key & 7 == 0:
            length = _varint(message, at)[1] - at
        else:
            length = 8 if key & 7 == 1 else 4
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A base-128 number, least significant group first, and where it ends."""
    end = next(index for index in range(at, len(message)) if message[index] < 0x80) + 1
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(message[at:end])), end
