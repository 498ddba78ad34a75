"""One node's ranks under `torch.distributed.elastic`: meet the other nodes, start, watch, start again."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, MultiprocessContext, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from trainworks.host.network import LOOPBACK
from trainworks.record.events import append_event
from trainworks.record.exit_code import ExitCode, as_exit_code
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.worker.rank import run_rank

__all__ = ["run_node"]

_JOIN_TIMEOUT = timedelta(minutes=10)
_MONITOR_INTERVAL_S = 0.05
_EXIT_TIMEOUT_S = 20


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
    return as_exit_code(agent.first_bad_code) if result.is_failed() else ExitCode.OK


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
        self.first_bad_code: int = ExitCode.PEER_LOST
        """Exit code of the rank that failed first, not of those that lost their peer to it."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert isinstance(self._pcontext, MultiprocessContext) and self._pcontext._pc is not None
        processes = self._pcontext._pc.processes
        if any(process.exitcode for process in processes):
            self._judge(worker_group, [(process.pid or 0, process.exitcode or 0) for process in processes])
            for process in processes:  # now: torch would ask with SIGTERM, which a rank takes as a wish to save
                process.kill()
        return super()._monitor_workers(worker_group)

    def _judge(self, worker_group: WorkerGroup, ended: list[tuple[int, int]]) -> None:
        """Note the ranks that a signal ended, and give up if a rank failed by itself."""
        for worker, (pid, code) in zip(worker_group.workers, ended, strict=True):
            if code < 0:
                self._note(worker.global_rank, pid, signal.Signals(-code))
        own = [code for _, code in ended if code and code != ExitCode.PEER_LOST]
        self.first_bad_code = own[0] if own else ExitCode.PEER_LOST
        if any(code > 0 for code in own):
            self._remaining_restarts = 0

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
