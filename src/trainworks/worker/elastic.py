"""One node's ranks under `torch.distributed.elastic`: meet the other nodes, start, watch, start again."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, MultiprocessContext, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError

from trainworks.host.clock import SystemClock
from trainworks.host.node_check import is_fit
from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import ExitCode, as_exit_code
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.accelerator_faults import blamed_failure
from trainworks.recover.decisions import Action
from trainworks.recover.restarts import RANK_RESTART, RestartLimit, backoff_s
from trainworks.worker.data.card import DataFolders
from trainworks.worker.fork_server import run_rank
from trainworks.worker.health.hang import Hang, HangLimits, HangMonitor
from trainworks.worker.health.heartbeat import HeartbeatBoard
from trainworks.worker.health.meeting import KnownNodes, StoreExchange
from trainworks.worker.health.rank_exits import RankExit, RankExits, fork_server_is_lost
from trainworks.worker.mesh import open_store

_STORE_TIMEOUT = timedelta(seconds=60)
_PAUSE_S = 0.02
"""Between two looks at the ranks, at least: an ended rank is seen at once, and others may still be ending."""
_LOOK_EVERY_S = 0.2
"""Between two looks at ranks that all run: a look costs them a third of a millisecond of a core."""
_EXIT_TIMEOUT_S = 20
_STACK_TAKES_S = 0.3
_NO_LIMIT = 2**31
"""Restarts that torch may make: `recover.restarts` limits them."""
_STACK_CHARS = 20_000


def run_node(
    resolved: ResolvedRun,
    run_dir: RunDir,
    data: DataFolders,
    *,
    node: int,
    address: str,
    store: str,
    store_fd: int | None,
) -> int:
    """Run the ranks of this node until they end.

    The other nodes reach this one at `address`. The first node serves the rendezvous store, at the address and port
    `store`; `store_fd` is its listening socket, if it is bound already, which keeps the port reserved between two
    attempts.

    Returns:
        Exit code: 0; that of the rank that failed (128 + signal if a signal ended it); the negative signal number if a
        signal ended this agent; 75 if the other nodes or the fork server are out of reach; 77 if the node failed its
        check before its ranks started again, or one of its accelerators is at fault; 78 if a later start has the run.
    """
    # Without it a restarted rank finds the addresses of its dead predecessors in the store (pytorch#135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        host, _, port = store.rpartition(":")
        met = open_store(host, int(port), serves=node == 0, listener=store_fd, timeout=_STORE_TIMEOUT)
        agent = _agent(resolved, run_dir, data, node, address, met)
        result = agent.run()
    except SignalException as stopped:
        return -int(stopped.sigval)
    except _UnfitNode:
        return ExitCode.NODE_UNHEALTHY
    except _SupersededAgent:
        return ExitCode.SUPERSEDED
    except (RendezvousError, dist.DistError, EOFError, ConnectionError):
        return ExitCode.PEER_LOST
    return as_exit_code(agent.first_bad_code) if result.is_failed() else ExitCode.OK


def _agent(
    resolved: ResolvedRun, run_dir: RunDir, data: DataFolders, node: int, address: str, store: dist.Store
) -> _NodeAgent:
    nodes, per_node = resolved.processes.nodes, resolved.processes.processes_per_node
    board = HeartbeatBoard(per_node)
    spec = WorkerSpec(
        role="trainer",
        local_world_size=per_node,
        rdzv_handler=KnownNodes(resolved.run_id, store, node, nodes, address),
        fn=run_rank,
        args=(str(run_dir.path), str(data.train), node, os.getpid(), board.path, dict(data.evaluation)),
        max_restarts=_NO_LIMIT,
        monitor_interval=_PAUSE_S,
    )
    recover, plan = resolved.run_file.recover, resolved.plan
    limits = HangLimits(
        None if recover.hang_timeout == "auto" else recover.hang_timeout,
        recover.start_timeout,
        plan.step_time.total_s if plan is not None else 0.0,
    )
    exchange = StoreExchange(store, node, nodes) if nodes > 1 else None
    monitor = HangMonitor(
        board,
        limits,
        world_size=resolved.processes.world_size,
        exchange=exchange,
        now=time.monotonic,
    )
    return _NodeAgent(spec, resolved, run_dir, node, board, monitor, exchange)


class _UnfitNode(Exception):
    """The node failed its check."""


class _SupersededAgent(Exception):
    """A later start has the run, or this node."""


class _NodeAgent(LocalElasticAgent):
    """Starts ranks by fork server, kills them without waiting, and restarts only what a restart can help."""

    def __init__(
        self,
        spec: WorkerSpec,
        resolved: ResolvedRun,
        run_dir: RunDir,
        node: int,
        board: HeartbeatBoard,
        monitor: HangMonitor,
        exchange: StoreExchange | None,
    ) -> None:
        logs = DefaultLogsSpecs(log_dir=str(run_dir.logs / "elastic"))  # its error files; ranks redirect themselves
        super().__init__(spec, logs, start_method="forkserver", exit_barrier_timeout=_EXIT_TIMEOUT_S)
        self._resolved = resolved
        self._run_dir = run_dir
        self._node = node
        self._board = board
        self._monitor = monitor
        self._exchange = exchange
        self._limit = RestartLimit.of(resolved.run_file)
        self._hung = False
        self._judged = False
        self._exits = RankExits(run_dir, node, monitor.last_seen, self._limit)

    @property
    def first_bad_code(self) -> int:
        """Exit code of the rank that failed first, not of those that lost their peer to it."""
        return ExitCode.HANG if self._hung else self._exits.first_bad_code

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._board.clear()
        self._hung = self._judged = False
        rendezvous = f"{worker_group.master_addr}:{worker_group.master_port}"
        self._exits.begin(rendezvous)
        if self._exchange is not None:
            self._exchange.begin(rendezvous)
        if self._node == 0:
            self._run_dir.note(RANK_RESTART)
        pids: dict[int, int] = super()._start_workers(worker_group)
        self._monitor.begin([(worker.global_rank, pids[worker.local_rank]) for worker in worker_group.workers])
        return pids

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """End the ranks, and start them again after their back-off, unless the node or an accelerator is not fit."""
        self._stop_workers(worker_group)
        events = read_events(self._run_dir.events_file)
        SystemClock().sleep(backoff_s(events, self._limit))
        blamed = blamed_failure(events) if self._resolved.accelerator_check else None
        is_blamed = blamed is not None and blamed["node"] == self._node
        if is_blamed or not is_fit(self._run_dir, self._resolved, self._node):
            raise _UnfitNode
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        processes = self._processes()
        self._wait_for_ends(processes)
        if not self._judged and any(process.exitcode for process in processes):
            self._judge(worker_group.workers)
            for process in processes:  # SIGKILL, not torch's SIGTERM: ranks take that as a request to save
                process.kill()
        elif not (self._judged or self._hung) and (hang := self._monitor.look()):  # killed ranks take a moment to end
            self._end(hang)
            for process in processes:
                process.kill()
        result = super()._monitor_workers(worker_group)
        if result.is_failed() and not self._judged:  # a rank ended between the two looks
            self._judge([worker for worker in worker_group.workers if worker.global_rank in result.failures])
        if result.is_failed() and self._exits.is_superseded:
            raise _SupersededAgent
        if result.is_failed() and self._exits.decide().action is Action.STOP:
            self._remaining_restarts = 0
        return result

    def _end(self, hang: Hang) -> None:
        """Record the hung rank with its stack; the exits that follow from ending it are not recorded."""
        self._hung = True
        culprit, log = hang.first, self._run_dir.rank_log(hang.first.rank)
        pid = self._monitor.last_seen(culprit.rank).pid
        own = "" if culprit.is_stopped else _stack(pid, log)
        with contextlib.suppress(OSError), log.open("a") as file:
            file.writelines(f"rank {rank}, innermost line last:\n{stack}\n" for rank, stack in hang.stacks.items())
        self._exits.note(
            FailureEvent(
                kind="failure",
                rank=culprit.rank,
                node=self._node,
                pid=pid,
                cause="hang",
                exit_code=int(ExitCode.HANG),
                signal=None,
                message=hang.message(),
                hint=hang.hint(str(log)),
                traceback=own,
                step=culprit.beat.step,
                phase=culprit.beat.phase.text,
                silent_s=culprit.silent_s,
                waiting={str(victim.rank): victim.waits_for for victim in hang.victims},
                stacks=hang.stacks,
            )
        )

    def _judge(self, workers: Sequence[Worker]) -> None:
        """Note how these ranks ended, once: those that are killed then have not failed. Hung ranks are known.

        The fork server reports an exit code before it closes the pipe that torch waits for, so torch may see the end
        one look later.
        """
        self._judged = True
        if self._hung:
            return
        processes = self._processes()
        exits = [
            RankExit(worker.global_rank, processes[worker.local_rank].pid or 0, code)
            for worker in workers
            if (code := processes[worker.local_rank].exitcode)
        ]
        if fork_server_is_lost(exits):
            self._exits.note_lost_fork_server([process.pid or 0 for process in processes])
        else:
            self._exits.judge(exits)

    def _wait_for_ends(self, processes: Sequence[BaseProcess]) -> None:
        """Until a rank ends or returns its result, or the next look is due."""
        assert isinstance(self._pcontext, MultiprocessContext)
        results = [queue._reader for queue in self._pcontext._ret_vals.values()]  # type: ignore[attr-defined]
        multiprocessing.connection.wait([*(process.sentinel for process in processes), *results], _LOOK_EVERY_S)

    def _processes(self) -> Sequence[BaseProcess]:
        assert isinstance(self._pcontext, MultiprocessContext) and self._pcontext._pc is not None
        processes: Sequence[BaseProcess] = self._pcontext._pc.processes
        return processes

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        # SIGTERM asks a rank to save and leave; in a broken group it would wait forever.
        super()._shutdown(signal.SIGKILL, timeout)


def _stack(pid: int, log: Path) -> str:
    """The stacks of a process that has a few moments to live, from its log."""
    with contextlib.suppress(OSError):
        before = log.stat().st_size
        os.kill(pid, signal.SIGUSR1)
        SystemClock().sleep(_STACK_TAKES_S)
        with log.open("rb") as file:
            file.seek(before)
            return file.read(_STACK_CHARS).decode(errors="replace")
    return ""
