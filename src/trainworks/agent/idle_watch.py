"""Follows whether a job that runs uses what it holds, says so in its record, and says when it has to be stopped."""

from __future__ import annotations

from trainworks.config.engines import Idle
from trainworks.host.clock import Clock
from trainworks.jobs.idle import Idleness, Quiet, idleness, quiet_after
from trainworks.record.dev_environment import DevUse
from trainworks.record.events import append_event
from trainworks.record.run_dir import RunDir
from trainworks.units import format_duration

_SILENT_FOR_S = 60.0
"""A node that writes nothing new for four samples and this long is unknown: shared files come late."""


class IdleWatch:
    """Reads what the nodes write, once per sample."""

    def __init__(self, run_dir: RunDir, limits: Idle, *, nodes: int, on_accelerators: bool, clock: Clock) -> None:
        self._run_dir = run_dir
        self._limits = limits
        self._on_accelerators = on_accelerators
        self._clock = clock
        self._nodes: list[Quiet | None] = [None] * nodes
        self._heard_at = [0.0] * nodes
        self._next_look = 0.0
        self._began_at: float | None = None
        self._metrics_bytes = 0
        self._dev_use = DevUse()
        self._called_idle: Idleness | None = None

    def forget(self) -> None:
        """The job does not run now; its use does not count."""
        self._nodes = [None] * len(self._nodes)
        self._began_at = self._called_idle = None

    def look(self) -> str | None:
        """Follow a job that runs; why it has to be stopped, once that is so."""
        now = self._clock.now()
        if self._began_at is not None and now < self._next_look:
            return None
        self._next_look = now + self._limits.sample_every_s
        self._take(now)
        assert self._began_at is not None
        found = idleness(self._known(now), at_most_s=now - self._began_at)
        self._say(found, now)
        if self._limits.stop_after == "never" or found.seconds < self._limits.stop_after:
            return None
        return f"it used nothing of what it holds for {format_duration(found.seconds)}"

    def _take(self, now: float) -> None:
        """The newest samples, and whether there was a step or a session, which their programs write down."""
        for node, before in enumerate(self._nodes):
            sample = self._run_dir.read_usage(node)
            if sample is not None and (before is None or sample != before.last):
                self._nodes[node] = quiet_after(before, sample, self._limits, on_accelerators=self._on_accelerators)
                self._heard_at[node] = now
        metrics = self._run_dir.metrics_file
        size = metrics.stat().st_size if metrics.exists() else 0
        dev_use = self._run_dir.read_dev_use()
        is_used = size != self._metrics_bytes or dev_use != self._dev_use or dev_use.open > 0
        if self._began_at is None or is_used:
            self._began_at, self._metrics_bytes, self._dev_use = now, size, dev_use

    def _known(self, now: float) -> list[Quiet | None]:
        silent_s = 4 * self._limits.sample_every_s + _SILENT_FOR_S
        return [
            node if now - heard <= silent_s else None for node, heard in zip(self._nodes, self._heard_at, strict=True)
        ]

    def _say(self, found: Idleness, now: float) -> None:
        """In events and status, when it begins and when it ends."""
        if found.seconds >= self._limits.first_s and self._called_idle is None:
            since = now - found.seconds
            append_event(
                self._run_dir.events_file,
                "idle",
                since=since,
                accelerator=found.accelerator,
                cpu_cores=found.cpu_cores,
                io_bytes_per_s=found.io_bytes_per_s,
            )
            self._write_down(since)
        elif found.seconds < self._limits.first_s and self._called_idle is not None:
            append_event(self._run_dir.events_file, "busy", idle_for_s=self._called_idle.seconds)
            self._write_down(None)
        self._called_idle = found if found.seconds >= self._limits.first_s else None

    def _write_down(self, since: float | None) -> None:
        status = self._run_dir.read_status()
        self._run_dir.write_status(status.model_copy(update={"idle_since": since}))
