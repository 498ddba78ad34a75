"""Event files for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, final

from trainworks.config.track import TensorBoard
from trainworks.files import naming_full_disk
from trainworks.observe.trackers import event_file
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun, Tracker


@final
class TensorBoardTracker(Tracker):
    """One event file per run, to which every process appends.

    The state has the length of the file: what a killed process wrote beyond it is cut off and written again, so every
    point is in the file once. A relative `folder` of the options starts from `working_folder`.
    """

    name: ClassVar[str] = "tensorboard"

    def __init__(
        self, run: TrackedRun, state: Mapping[str, str | int], options: TensorBoard, working_folder: Path
    ) -> None:
        super().__init__(run, state)
        own = run.folder / "observe" / self.name
        self._folder = working_folder / options.folder / run.name if options.folder else own

    @property
    def place(self) -> str:
        """Folder for `tensorboard --logdir`."""
        return str(self._file.parent)

    @property
    def _file(self) -> Path:
        # TensorBoard reads the files whose names contain `tfevents`, in the order of their names.
        name = f"events.out.tfevents.{int(self._run.created_at):010d}.{self._run.name}"
        return Path(str(self.state.get("file", self._folder / name)))

    def open(self) -> None:
        """Create the file, or cut off what the state does not know."""
        if "bytes" in self.state and self._file.exists():
            with self._file.open("rb+") as file:
                file.truncate(int(self.state["bytes"]))
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(b"")
        self.state = {"file": str(self._file), "bytes": 0}
        self._append(event_file.first_event(self._run.created_at))

    def send_parameters(self, parameters: Mapping[str, str | float], tags: Mapping[str, str]) -> None:
        """Write the parameters for the HParams dashboard, and the tags as a text."""
        t = self._run.created_at
        records = [event_file.hyperparameters(t, parameters)] if parameters else []
        if tags:
            table = ["| tag | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in tags.items())]
            records.append(event_file.text(t, 0, "run", "\n".join(table)))
        self._append(b"".join(records))

    def send_points(self, points: Sequence[MetricPoint], *, repeated: bool) -> None:
        """Append one event per point."""
        again = [event_file.restart(points[0].t, points[0].step)] if repeated else []
        self._append(b"".join([*again, *(event_file.scalars(one.t, one.step, one.values) for one in points)]))

    def finish(self, state: str, t: float) -> None:
        """Write the end of the session."""
        self._append(event_file.session_end(t, succeeded=state == "SUCCEEDED"))

    def _append(self, records: bytes) -> None:
        with naming_full_disk(self._file), self._file.open("rb+") as file:
            file.seek(int(self.state["bytes"]))
            file.write(records)
            file.flush()
            os.ftruncate(file.fileno(), file.tell())
            self.state["bytes"] = file.tell()
