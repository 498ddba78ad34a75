"""Requests to stop a rank, or to save."""

from __future__ import annotations

from types import FrameType

from trainworks.record.run_dir import RunDir


class StopRequest:
    """True after a stop signal, or on rank 0 if the stop file exists."""

    def __init__(self, run_dir: RunDir, *, watch_file: bool) -> None:
        self.signalled = False
        self._file = run_dir.stop_file if watch_file else None
        self._save_file = run_dir.save_request_file if watch_file else None

    def note_signal(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        self.signalled = True

    def take_save_request(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        if self._save_file is None or not self._save_file.exists():
            return False
        self._save_file.unlink(missing_ok=True)
        return True

    def __bool__(self) -> bool:
        return self.signalled or (self._file is not None and self._file.exists())
