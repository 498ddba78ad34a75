"""The queue of some hosts: `python -m trainworks.backends.ssh.queue LOCK`, a dispatcher as that of this machine.

One process per list of hosts and user, started by a submission, and gone when no job is left. Over a connection to
every host it hears what that has, and what jobs of other queues and users hold of it. A host that is silent takes no
jobs.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from trainworks import __version__
from trainworks.agent.allocation import unhealthy_nodes
from trainworks.backends.local.dispatcher import Dispatcher
from trainworks.backends.local.dispatcher_process import serve_queue
from trainworks.backends.local.launcher import Launcher
from trainworks.backends.local.machine import LocalNode
from trainworks.backends.local.quotas import QueuePolicy
from trainworks.backends.ssh import link
from trainworks.backends.ssh.node import BEAT_S, Lines
from trainworks.backends.ssh.turn import HostShare, TurnOrder, orders_text, supervise_on_hosts
from trainworks.backends.store_place import store_url
from trainworks.config.engines import Ssh
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.forking import Order
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.environment import HostFacts
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

OPTIONS = "cluster.json"
"""File beside the store with the options of its hosts."""
_SILENCE_S = 10.0
_RETRY_S, _LONGEST_RETRY_S = 2.0, 60.0
"""Times between two tries to reach a host; each is twice as long as the one before."""
_CLAIMS_WITHIN_S = 30.0
_UNKNOWN_CORES, _UNKNOWN_DEVICES, _UNKNOWN_BYTES = 4096, 64, 1 << 50
"""What a host is taken to have that was never reached: it takes no jobs, and a job that waits for it can still fit."""


@final
class HostFact:
    """What a host has said of itself, and why it takes no jobs now."""

    def __init__(self, name: str, said: Mapping[str, Any] | None, reason: str | None = None) -> None:
        self.name = name
        self.reason = reason
        self.facts = HostFacts.model_validate(said["host"]) if said else None
        self.address = str(said["address"]) if said else ""
        claims = said["claims"] if said else ()
        self.claims = [Claim(int(one["uid"]), Share.model_validate(one["share"])) for one in claims]
        if said and said["version"] != __version__:
            self.reason = f"it has Trainworks {said['version']}, and this machine {__version__}"

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
        self._session: link.Session | None = None
        self._heard_at = self._beat_at = self._next = 0.0
        self._pause_s = _RETRY_S
        self.said: Mapping[str, Any] | None = None
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
            self._session, self._heard_at = link.Session(self.host, command, errors=self._errors), now
        if now - self._beat_at >= BEAT_S:
            self._session.send()
            self._beat_at = now
        heard = self._session.read() if select.select([self._session], [], [], 0)[0] else []
        if heard:
            self._heard_at, self._pause_s, self.reason, self.is_known = now, _RETRY_S, None, True
            for line in filter(None, heard):
                self.said = {**(self.said or {}), **json.loads(line)}
        elif heard is None or now - self._heard_at > _SILENCE_S:
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


@final
class SshLauncher(Launcher):
    """Starts supervisors of jobs whose shares of their hosts are held over connections to these."""

    def __init__(self, clock: Clock, own_fds: Iterable[int], watches: Mapping[str, HostWatch], options: Ssh) -> None:
        super().__init__(clock, own_fds)
        self._watches = watches
        self._options = options
        self._orders: dict[int, TurnOrder] = {}
        self._problems: dict[int, EnvironmentProblem] = {}
        self._not_before: dict[int, float] = {}

    def facts(self) -> list[HostFact]:
        """What each host has said last."""
        return [HostFact(watch.host, watch.said, watch.reason) for watch in self._watches.values()]

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        """Claims in the ledgers of all hosts of jobs other than `ours`."""
        self._ours = {claim_key(job.run_dir) for job in ours}
        return frozenset(claim for held in self.foreign().values() for claim in held)

    def foreign(self) -> dict[str, frozenset[Claim]]:
        """The same for each host."""
        return {host.name: self._foreign_claims(host.claims) for host in self.facts()}

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        """Hold the job's share of every host; False if one does not answer, or others hold a part of it by now."""
        if self._clock.now() < self._not_before.get(job.id, 0.0):
            return False
        run_dir, turn = self._run_dir(job), secrets.token_hex(8)
        facts = {host.name: (host.facts, host.address) for host in self.facts() if host.facts}
        order = TurnOrder(run_dir=str(run_dir.path), job=str(job.id), turn=turn, hosts=())
        created_at, orders = run_dir.read_resolved().created_at, []
        for one in placement:
            share = Share(
                run=job.run_id, key=claim_key(job.run_dir), cores=one.cores, devices=one.devices, team=job.team
            )
            message = {
                "run_dir": order.run_dir,
                "created_at": created_at,
                "marks": order.marks(one.node),
                "share": share.model_dump(),
            }
            command = link.on_host(self._options, one.node, "keep")
            orders.append(link.Order(one.node, command, message))
        here, there = socket.socketpair()
        with there:
            words = process.python_module(link.__name__, "keep", orders_text(orders))
            process.spawn_on(there, words, errors=run_dir.supervisor_log)
        keepers = self._keepers(job, here, [one.node for one in placement])
        if keepers is None:
            here.close()
            self._not_before[job.id] = self._clock.now() + _RETRY_S
            return job.id in self._problems  # which its launch reports
        hosts = [
            HostShare(
                name=one.node,
                address=self._options.addresses.get(one.node) or facts[one.node][1],
                facts=facts[one.node][0],
                cores=one.cores,
                devices=one.devices,
                keeper=keepers[one.node],
            )
            for one in placement
        ]
        self._orders[job.id] = order.model_copy(update={"hosts": tuple(hosts)})
        self._claims[job.id] = here.detach()
        self._ours.add(claim_key(job.run_dir))
        return True

    def _keepers(self, job: JobRow, control: socket.socket, hosts: Sequence[str]) -> dict[str, Any] | None:
        """The processes that hold the shares; None if one of them does not hold it, or does not say so in time."""
        lines, found = Lines(control.fileno()), dict[str, Any]()
        deadline = self._clock.now() + _CLAIMS_WITHIN_S
        while len(found) < len(hosts):
            ready = select.select([lines], [], [], max(0.0, deadline - self._clock.now()))[0]
            heard = lines.read() if ready else None
            for answer in map(json.loads, heard or []):
                if "keeper" in answer:
                    found[answer["host"]] = answer["keeper"]
                    continue
                if "seen" in answer:
                    why = f"`{answer['host']}` cannot run the job: {answer['seen']}"
                    hint = "let all hosts see the folder of the runs under one path: with NFS, or sshfs"
                    self._problems[job.id] = EnvironmentProblem(why, hint=hint)
                elif "lost" in answer:
                    self._watches[answer["host"]].lose(self._clock.now())
                return None
            if heard is None:
                for host in set(hosts) - found.keys():
                    self._watches[host].lose(self._clock.now())
                return None
        return found

    def _resolved(self, job: JobRow, run_dir: RunDir) -> ResolvedRun:
        return run_dir.read_resolved()  # the turn puts its nodes into it, and an edit its values

    def _order(self, job: JobRow, run_dir: RunDir, resolved: ResolvedRun) -> str:
        if (problem := self._problems.pop(job.id, None)) is not None:
            raise problem
        run_dir.write_status(RunStatus(state=JobState.CREATED, updated_at=self._clock.now()))
        return self._orders.pop(job.id).model_dump_json()

    def _begin(self) -> Order:
        return supervise_on_hosts


@final
class SshDispatcher(Dispatcher):
    """Takes the queue of some hosts forward; a host that does not answer takes no jobs."""

    def __init__(self, store: JobStore, launcher: SshLauncher, watches: Iterable[HostWatch], clock: Clock) -> None:
        self._there = launcher
        self._watches = list(watches)
        super().__init__(store, [host.node for host in launcher.facts()], launcher, clock, engine="ssh")

    def look(self) -> None:
        """Hear the hosts first."""
        for watch in self._watches:
            watch.look(self._clock.now())
        self._machine = [host.node for host in self._there.facts()]
        if all(watch.is_known for watch in self._watches):  # else a job would start on fewer hosts than it can have
            super().look()

    def _policy(self) -> QueuePolicy:
        return QueuePolicy()  # limits are for the machine that has them

    def _held(self, elsewhere: frozenset[Claim]) -> list[Placement]:
        foreign = self._there.foreign()
        return [held for host in self._there.facts() for held in host.held(foreign[host.name])]

    def _conclude(self, job: JobRow) -> None:
        """Let a job that waits again do without hosts that failed its check, and a workload with the plan for fewer."""
        super()._conclude(job)
        row = self._store.get(job.id)
        if row is None or not row.state.waits:
            return
        unfit = set(unhealthy_nodes(self._launcher.events(job))) - set(row.spec.exclude)
        with suppress(TrainworksError, OSError):
            resolved = RunDir(Path(row.run_dir)).read_resolved()
            fewest = row.spec.min_nodes
            while resolved.fewer_nodes(fewest - 1) is not None:
                fewest -= 1
            spec = replace(row.spec, exclude=(*row.spec.exclude, *sorted(unfit)), min_nodes=fewest)
            if spec != row.spec:
                self._store.change(row.id, spec=spec)


def main(starting: int) -> int:
    """The dispatcher of the hosts whose options are beside the store."""
    folder = Path(store_url().removeprefix("sqlite:///")).parent
    options = Ssh.model_validate_json((folder / OPTIONS).read_bytes())
    watches = {
        host: HostWatch(options, host, folder / f"host-{number}.log") for number, host in enumerate(options.hosts)
    }

    def queue(store: JobStore, clock: Clock, own_fds: Sequence[int]) -> tuple[Dispatcher, Launcher]:
        launcher = SshLauncher(clock, own_fds, watches, options)
        return SshDispatcher(store, launcher, watches.values(), clock), launcher

    return serve_queue(starting, queue)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
