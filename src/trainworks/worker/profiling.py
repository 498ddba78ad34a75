"""Profile a window of steps with torch.profiler: requested during the run, recorded on chosen ranks, summarised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch.autograd import DeviceType

from trainworks.config.quantities import StepWindow
from trainworks.files import write_atomic
from trainworks.record.events.training import ProfileEvent, ProfileRefusedEvent
from trainworks.record.profile import (
    OperatorTime,
    ProfileRequest,
    ProfileSummary,
    summary_file,
    trace_file,
    write_request,
)
from trainworks.record.run_dir import RunDir

_TOP_OPERATORS = 15
_COMMUNICATION = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel", "record_param_comms")
_WRAPPERS = ("autograd::", "torch::autograd", "FSDP::", "Optimizer.")

Interval = tuple[float, float]


@dataclass(eq=False)
class StepProfiler:
    """Record the requested steps. When off, it costs rank 0 one file check per logging interval.

    The run directory's profile.json holds requests, and its profiles/ the results.
    """

    run_dir: RunDir
    device: torch.device
    num_steps: int
    from_run_file: StepWindow | None
    _request: ProfileRequest | None = field(default=None, init=False)
    _recording: torch.profiler.profile | None = field(default=None, init=False)

    def is_wanted(self) -> bool:
        """True if this rank is rank 0 and there is a new request."""
        return self._request is None and dist.get_rank() == 0 and self.run_dir.profile_request_file.exists()

    def take(self, steps_done: int) -> None:
        """Take the request that is there, if any: a collective over all ranks."""
        shared = [self._find(steps_done) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(shared, src=0)
        self._request = shared[0]

    def begin_step(self, step: int) -> None:
        """Start recording at the first requested step."""
        if self._request is None or step != self._request.first_step or dist.get_rank() not in self._request.ranks:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize(self.device)
        self._recording = torch.profiler.profile(activities=activities)
        self._recording.start()

    def end_step(self, step: int) -> None:
        """Write the trace and its summary after the last requested step; the other ranks wait."""
        request = self._request
        if request is None or step != request.last_step:
            return
        self._request = None
        folder = self.run_dir.profile(request.first_step, request.last_step)
        if self._recording is not None:
            self._write(self._recording, request, folder)
            self._recording = None
        dist.barrier()
        if dist.get_rank() == 0:
            self.run_dir.profile_request_file.unlink(missing_ok=True)
            self.run_dir.note(
                ProfileEvent(
                    kind="profile",
                    folder=str(folder.relative_to(self.run_dir.path)),
                    first_step=request.first_step,
                    last_step=request.last_step,
                    ranks=list(request.ranks),
                )
            )

    def close(self) -> None:
        """End of the run: refuse a requested window that is not complete."""
        if self._recording is not None:
            self._recording.stop()
            self._recording = None
        if self._request is not None and dist.get_rank() == 0:
            self._refuse(self._request, "the run ended before its last step")
        self._request = None

    def _find(self, steps_done: int) -> ProfileRequest | None:
        """Rank 0: the request file, else the run file's window unless it is past."""
        path = self.run_dir.profile_request_file
        if not path.exists():
            window = self.from_run_file
            if window is None or window.first <= steps_done:
                return None
            write_request(self.run_dir, ProfileRequest(first_step=window.first, last_step=window.last))
        try:
            request = ProfileRequest.model_validate_json(path.read_bytes())
        except ValidationError:
            self._refuse(ProfileRequest(first_step=0, last_step=0), f"cannot read `{path}`")
            return None
        if request.first_step <= steps_done:
            self._refuse(request, f"step {request.first_step} is past: the ranks are at step {steps_done}")
            return None
        if request.last_step > self.num_steps:
            self._refuse(request, f"step {request.last_step} is beyond the last step, {self.num_steps}")
            return None
        return request

    def _refuse(self, request: ProfileRequest, message: str) -> None:
        self.run_dir.profile_request_file.unlink(missing_ok=True)
        self.run_dir.note(
            ProfileRefusedEvent(
                kind="profile_refused",
                message=message,
                first_step=request.first_step,
                last_step=request.last_step,
                ranks=list(request.ranks),
            )
        )

    def _write(self, recording: torch.profiler.profile, request: ProfileRequest, folder: Path) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        recording.stop()
        rank = dist.get_rank()
        folder.mkdir(parents=True, exist_ok=True)
        trace = trace_file(folder, rank)
        partial = trace.with_name(f".{trace.name}")  # torch compresses what ends in .gz
        recording.export_chrome_trace(str(partial))
        partial.replace(trace)
        summary = summarize(recording, rank=rank, request=request)
        write_atomic(summary_file(folder, rank), summary.model_dump_json(indent=2) + "\n")


def summarize(recording: torch.profiler.profile, *, rank: int, request: ProfileRequest) -> ProfileSummary:
    """Time of a recording by kind: on the accelerator if there is one, else on the CPU.

    On a CPU it is the time of operators on the training thread; Python between them is idle time. Collectives count
    on any thread.
    """
    events: list[Any] = list(recording.events() or [])
    on_device = [event for event in events if event.device_type != DeviceType.CPU and not event.is_user_annotation]
    optimizer = _merged(_span(event) for event in events if event.name.startswith("Optimizer.step#"))
    threads = Counter(event.thread for event in events if _is_operator(event.name))
    training_thread = threads.most_common(1)[0][0] if threads else None
    ran = on_device or [
        event
        for event in events
        if _is_collective(event.name) or (_is_operator(event.name) and event.thread == training_thread)
    ]
    collective = _merged(_span(event) for event in ran if _is_collective(event.name))
    other = _merged(_span(event) for event in ran if not _is_collective(event.name))
    in_optimizer = _length(_overlap(other, optimizer))
    exposed = _length(collective) - _length(_overlap(collective, other))
    spans = [_span(event) for event in events]
    window = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    compute = _length(other) - in_optimizer
    return ProfileSummary(
        rank=rank,
        first_step=request.first_step,
        last_step=request.last_step,
        window_s=window,
        compute_s=compute,
        optimizer_s=in_optimizer,
        communication_s=exposed,
        idle_s=max(0.0, window - compute - in_optimizer - exposed),
        operators=_operators(recording, on_device=bool(on_device)),
    )


def _is_operator(name: str) -> bool:
    """`aten::mm`, and not what merely wraps operators."""
    return "::" in name and not name.startswith(_WRAPPERS)


def _is_collective(name: str) -> bool:
    return name.startswith(_COMMUNICATION)


def _operators(recording: torch.profiler.profile, *, on_device: bool) -> tuple[OperatorTime, ...]:
    rows = [
        OperatorTime(
            name=row.key,
            calls=row.count,
            self_s=(row.self_device_time_total if on_device else row.self_cpu_time_total) / 1e6,
        )
        for row in recording.key_averages()
        if (row.device_type != DeviceType.CPU if on_device else _is_operator(row.key))
    ]
    return tuple(sorted((row for row in rows if row.self_s > 0), key=lambda row: -row.self_s)[:_TOP_OPERATORS])


def _span(event: Any) -> Interval:
    return event.time_range.start / 1e6, event.time_range.end / 1e6


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union, as intervals that do not touch."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _overlap(left: list[Interval], right: list[Interval]) -> list[Interval]:
    common, first, second = [], 0, 0
    while first < len(left) and second < len(right):
        start, end = max(left[first][0], right[second][0]), min(left[first][1], right[second][1])
        if start < end:
            common.append((start, end))
        if left[first][1] < right[second][1]:
            first += 1
        else:
            second += 1
    return common


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
