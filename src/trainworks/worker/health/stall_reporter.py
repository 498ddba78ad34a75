"""Report from a background thread what a blocked rank is waiting for.

The node agent sends SIGUSR2, which the thread handles; the answer goes to the rank's page of the heartbeat board.
SIGUSR1 writes the stacks of all threads to the rank's log, even if one of them never releases the interpreter.
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
from trainworks.worker.mesh import CHECKPOINT_GROUP

_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Flight recorders of gloo, and of NCCL where torch has it: (with collectives, only pending ones) -> JSON."""
_TORCH = str(Path(torch.__file__).parent)
_DISTRIBUTED = f"{_TORCH}/distributed"
_STDLIB = str(Path(threading.__file__).parent)


def install_stall_reporter(heartbeat: Heartbeat) -> None:
    """Start answering. Call it from the main thread before any other thread starts."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    main = threading.main_thread().ident
    threading.Thread(target=_answer, args=(heartbeat, main), name="stall-reporter", daemon=True).start()


def _answer(heartbeat: Heartbeat, main: int) -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        frame = sys._current_frames().get(main)
        heartbeat.answer({"count": heartbeat.last.count, **_account(frame)})


def _account(frame: FrameType | None) -> dict[str, str]:
    """Operation the main thread waits in (empty if for no other rank) and its innermost line outside of libraries."""
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
