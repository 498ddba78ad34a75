"""Who asks a rank to stop."""

from __future__ import annotations

from types import FrameType

from trainworks.record.run_dir import RunDir

__all__ = ["StopRequest"]


class StopRequest:
    """Whether this rank has been asked to stop: by a signal, or by the stop file, which rank 0 looks at."""

    def __init__(self, run_dir: RunDir, *, watch_file: bool) -> None:
        self.signalled = False
        self._file = run_dir.stop_file if watch_file else None

    def note_signal(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        self.signalled = True

    def __bool__(self) -> bool:
        return self.signalled or (self._file is not None and self._file.exists())
