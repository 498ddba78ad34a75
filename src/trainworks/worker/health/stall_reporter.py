"""A rank's own account of what it waits for, given by a thread while the main thread stands still.

The node agent asks with SIGUSR2, which the thread takes; the answer goes to the rank's page of the board. On SIGUSR1
the stacks of all threads are written to the rank's log, even if one of them never lets go of the interpreter.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import torch

from trainworks.worker.health.heartbeat import Heartbeat

__all__ = ["CHECKPOINT_GROUP", "testify"]

CHECKPOINT_GROUP = "checkpoint"
"""Description of the group that saves in the background: what it waits for holds nobody up."""
_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of gloo and the like, and of NCCL where torch has it; (with collectives, only those under way) -> JSON."""
_TORCH = str(Path(torch.__file__).parent)
_DISTRIBUTED = f"{_TORCH}/distributed"
_STDLIB = str(Path(threading.__file__).parent)


def testify(heartbeat: Heartbeat) -> None:
    """Answer from now on. To be called from the main thread, before any other has been started."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    main = threading.main_thread().ident
    threading.Thread(target=_answer, args=(heartbeat, main), name="witness", daemon=True).start()


def _answer(heartbeat: Heartbeat, main: int) -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        frame = sys._current_frames().get(main)
        heartbeat.answer({"count": heartbeat.last.count, **_account(frame)})


def _account(frame: FrameType | None) -> dict[str, str]:
    """What the main thread waits for (empty: for no other rank) and the innermost line that is no library's."""
    pending = _pending()
    inside = frame is not None and frame.f_code.co_filename.startswith(_DISTRIBUTED)
    waits_for = ", ".join(pending[:2]) or (f"`{frame.f_code.co_name}`" if inside and frame else "")
    return {"waits_for": waits_for, "where": _where(frame)}


def _pending() -> list[str]:
    """Collectives that this rank has begun and not ended, oldest first, as torch's flight recorders have them.

    They do not have gloo's sends and receives; the stack shows those.
    """
    recorders = (getattr(torch._C._distributed_c10d, name, None) for name in _RECORDERS)
    contents = [json.loads(dump(True, True)) for dump in recorders if dump is not None]
    return [
        f"{entry['profiling_name']} #{entry['collective_seq_id']} of {entry['input_sizes']}"
        for content in contents
        for entry in content.get("entries") or ()
        if not entry["retired"] and entry["process_group"][1] != CHECKPOINT_GROUP
    ]


def _where(frame: FrameType | None) -> str:
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} `{frame.f_code.co_name}`"


def _is_library(file: str) -> bool:
    return file.startswith(f"{_TORCH}/") or (file.startswith(f"{_STDLIB}/") and "site-packages" not in file)
