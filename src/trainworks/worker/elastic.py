"""One node's ranks under `torch.distributed.elastic`: meet the other nodes, start, watch, start again."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, MultiprocessContext, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from trainworks.host.network import LOOPBACK
from trainworks.record.events import append_event
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.worker.exit_code import ExitCode
from trainworks.worker.rank import run_rank

__all__ = ["run_node"]

_JOIN_TIMEOUT = timedelta(minutes=10)
_MONITOR_INTERVAL_S = 0.05
_EXIT_TIMEOUT_S = 20
_RESTARTABLE = (ExitCode.PEER_LOST,)


def run_node(
    resolved: ResolvedRun,
    run_dir: RunDir,
    data_folder: Path,
    *,
    node: int,
    max_restarts: int,
    store_port: int,
    store_fd: int | None,
) -> int:
    """Run this node's ranks to their end.

    Args:
        resolved: the run.
        run_dir: where it writes.
        data_folder: tokenized shards on this machine.
        node: index of this node.
        max_restarts: how often failed ranks are started again.
        store_port: loopback port of the rendezvous store.
        store_fd: the store's listening socket, on the node that serves it; it is bound already, so that nobody
            else can take the port between two attempts.

    Returns:
        Exit code: 0; that of the rank that failed (128 + signal if a signal ended it); 75 if the other nodes are
        out of reach.
    """
    # Without it a restarted rank finds the addresses of its dead predecessors in the store (pytorch#135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        agent = _agent(resolved, run_dir, data_folder, node, max_restarts, _store(store_port, store_fd))
        result = agent.run()
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except (RendezvousError, dist.DistError):
        return ExitCode.PEER_LOST
    if not result.is_failed():
        return ExitCode.OK
    return _as_exit_code(next(iter(result.failures.values())).exitcode)


def _store(port: int, listener: int | None) -> dist.Store:
    return dist.TCPStore(
        LOOPBACK,
        port,
        is_master=listener is not None,
        wait_for_workers=False,
        master_listen_fd=listener,
        timeout=timedelta(seconds=60),
    )


def _agent(
    resolved: ResolvedRun, run_dir: RunDir, data_folder: Path, node: int, max_restarts: int, store: dist.Store
) -> _NodeAgent:
    nodes = resolved.processes.nodes
    rendezvous = DynamicRendezvousHandler.from_backend(
        resolved.run_id,
        store,
        C10dRendezvousBackend(store, resolved.run_id),
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=LOOPBACK,
        timeout=RendezvousTimeout(join=_JOIN_TIMEOUT),
        keep_alive_interval=1,
        keep_alive_max_attempt=5,
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=resolved.processes.processes_per_node,
        rdzv_handler=rendezvous,
        fn=run_rank,
        args=(str(run_dir.path), str(data_folder), node, os.getpid()),
        max_restarts=max_restarts,
        monitor_interval=_MONITOR_INTERVAL_S,
    )
    return _NodeAgent(spec, run_dir, node)


class _NodeAgent(LocalElasticAgent):
    """Starts ranks by fork server, kills them without waiting, and restarts only what a restart can help."""

    def __init__(self, spec: WorkerSpec, run_dir: RunDir, node: int) -> None:
        logs = DefaultLogsSpecs(log_dir=str(run_dir.logs / "elastic"))  # its error files; ranks redirect themselves
        super().__init__(spec, logs, start_method="forkserver", exit_barrier_timeout=_EXIT_TIMEOUT_S)
        self._run_dir = run_dir
        self._node = node

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._note_killed(worker_group)  # before the first failure found ends the others, and with them the evidence
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            code = next(iter(result.failures.values())).exitcode
            if code >= 0 and code not in _RESTARTABLE:
                self._remaining_restarts = 0
        return result

    def _note_killed(self, worker_group: WorkerGroup) -> None:
        """A rank that a signal ended cannot write its own obituary."""
        assert isinstance(self._pcontext, MultiprocessContext) and self._pcontext._pc is not None
        for worker, process in zip(worker_group.workers, self._pcontext._pc.processes, strict=True):
            if process.exitcode is not None and process.exitcode < 0:
                self._note(worker.global_rank, process.pid or 0, signal.Signals(-process.exitcode))

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        # A rank takes SIGTERM as a wish to save and leave; in a group that is broken it would wait for ever.
        super()._shutdown(signal.SIGKILL, timeout)

    def _note(self, rank: int, pid: int, number: signal.Signals) -> None:
        append_event(
            self._run_dir.events_file,
            "failure",
            rank=rank,
            node=self._node,
            host=socket.gethostname(),
            pid=pid,
            cause="killed",
            exit_code=-number,
            signal=number.name,
            message=f"killed by {number.name}",
        )


def _as_exit_code(code: int) -> int:
    return 128 - code if code < 0 else code
