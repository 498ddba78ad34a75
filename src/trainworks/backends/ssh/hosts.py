"""What hosts say of themselves: once, or over a connection that stays open."""

from __future__ import annotations

import select
from collections.abc import Iterable
from pathlib import Path
from typing import final

from pydantic import ValidationError

from trainworks import __version__
from trainworks.backends.local.machine import LocalNode
from trainworks.backends.ssh import link
from trainworks.backends.ssh.node import BEAT_S, HostAnswer
from trainworks.config.engines import Ssh
from trainworks.host.ledger import Claim
from trainworks.jobs.job_row import Placement

OPTIONS = "cluster.json"
"""File beside the store with the options of its hosts."""
_SILENCE_S, _FIRST_S = 10.0, 30.0
"""Silence after which a host counts as down; the first word takes the start of Python on a busy host."""
_RETRY_S, _LONGEST_RETRY_S = 2.0, 60.0
"""Times between two tries to reach a host; each is twice as long as the one before."""
_UNKNOWN_CORES, _UNKNOWN_DEVICES, _UNKNOWN_BYTES = 4096, 64, 1 << 50
"""What a host is taken to have that was never reached: it takes no jobs, and a job that waits for it can still fit."""


@final
class HostFact:
    """What a host has said of itself, and why it takes no jobs now."""

    def __init__(self, name: str, said: HostAnswer | None, reason: str | None = None) -> None:
        self.name = name
        self.reason = reason
        self.facts = said.host if said else None
        self.address = said.address if said else ""
        self.claims = [Claim(one.uid, one.share) for one in said.claims] if said else []
        if said and said.version != __version__:
            self.reason = f"it has Trainworks {said.version}, and this machine {__version__}"

    @property
    def node(self) -> LocalNode:
        """The host as a dispatcher sees it."""
        host = self.facts
        return LocalNode(
            name=self.name,
            cores=host.num_cores if host else _UNKNOWN_CORES,
            devices=tuple(one.index for one in host.accelerators) if host else tuple(range(_UNKNOWN_DEVICES)),
            accelerator=host.accelerators[0].name if host and host.accelerators else None,
            memory_bytes=host.memory_bytes if host else _UNKNOWN_BYTES,
            down=self.reason,
            names={one.index: one.names for one in host.accelerators} if host else {},
        )

    def held(self, claims: Iterable[Claim]) -> list[Placement]:
        """What claims hold of it; empty if that is nothing."""
        shares = [claim.share for claim in claims]
        taken = {device for share in shares for device in share.devices}
        own = tuple(device for device in self.node.devices if device in taken)
        cores = min(self.node.cores, sum(share.cores for share in shares))
        return [Placement(self.name, cores, own)] if cores or own else []


@final
class HostWatch:
    """Asks one host what it has, over a connection that it opens again after a loss; it never waits."""

    def __init__(self, options: Ssh, host: str, errors: Path) -> None:
        self._options = options
        self._errors = errors
        self._session: link.HostSession | None = None
        self._heard_at = self._beat_at = self._next = 0.0
        self._pause_s, self._patience_s = _RETRY_S, _FIRST_S
        self.said: HostAnswer | None = None
        self.host = host
        self.reason: str | None = "it was not reached yet"
        self.is_known = False
        """Whether the host has said what it has, or was found not to answer."""

    def look(self, now: float) -> None:
        """Take what the host has said since the last look."""
        if self._session is None:
            if now < self._next:
                return
            self._errors.unlink(missing_ok=True)
            command = link.on_host(self._options, self.host, "watch")
            self._session, self._heard_at = link.HostSession(self.host, command, errors=self._errors), now
            self._patience_s = _FIRST_S
        if now - self._beat_at >= BEAT_S:
            self._session.send()
            self._beat_at = now
        heard = self._session.read() if select.select([self._session], [], [], 0)[0] else []
        if said := [line for line in heard or () if line.startswith("{")]:  # a shell may greet
            self._heard_at, self._pause_s, self.reason, self.is_known = now, _RETRY_S, None, True
            try:
                self.said = HostAnswer.model_validate_json(said[-1])
            except ValidationError:
                self.lose(now)
                self.reason = "it has another version of Trainworks"
            self._patience_s = _SILENCE_S
        elif heard is None or now - self._heard_at > self._patience_s:
            self.lose(now)

    def lose(self, now: float) -> None:
        """Give the connection up; the next one opens after a pause."""
        if self._session is not None:
            self._session.close()
            self._session = None
        said = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        self.is_known = True
        self.reason = f"it does not answer{f': {said[0].strip()}' if said else ''}"
        self._next, self._pause_s = now + self._pause_s, min(_LONGEST_RETRY_S, 2 * self._pause_s)
