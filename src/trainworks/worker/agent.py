"""The node agent: `... -m trainworks.worker.agent RUN_DIR NODE NODES PARENT_PID ADDRESS STORE [STORE_FD]`.

NODES is the number of nodes in use, ADDRESS where the other nodes reach this one, and STORE the address and port of the
rendezvous store on the first node.

It imports torch and the trainer once and forks itself: that child is the fork server, from which ranks start at once,
after a failure as well.
"""

from __future__ import annotations

import importlib
import multiprocessing.util
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.host.folders import cache_folder
from trainworks.host.installed import own_environment
from trainworks.host.node_usage import follow_usage
from trainworks.host.notices import follow_notices
from trainworks.host.process import die_with_parent, end_by_signal, when_ended
from trainworks.record.events.job import AgentStartedEvent, FailureEvent
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import TRANSIENT
from trainworks.worker.data.card import DataFolders
from trainworks.worker.fork_server import rank_modules, start_fork_server


def main(
    run_folder: str, node: str, nodes: str, parent: str, address: str, store: str, store_fd: str | None = None
) -> int:
    """Run this node's ranks to their end; returns the agent's exit code, negative if it has to end by that signal."""
    die_with_parent(signal.SIGTERM, int(parent) or None)
    run_dir = RunDir(Path(run_folder))
    run_dir.note(AgentStartedEvent(kind="agent_started", node=int(node)))
    try:
        resolved = run_dir.read_resolved().on_nodes(int(nodes))
        os.environ.update(resolved.run_file.written_envs)  # before NCCL reads its own; ranks are forks
        os.environ.update(allocator_settings(resolved.processes.device, os.environ))
        if resolved.environment is None:
            run_dir.write_node_environment(int(node), own_environment())
        workload, plan = resolved.run_file.workload, resolved.plan
        assert workload is not None and plan is not None
        start_fork_server(rank_modules(workload, pp=plan.layout.pp))  # imports the trainer, and what this run needs
        if node == "0" and parent != "0" and resolved.run_file.cluster.engine == "local":  # a cluster finds out itself
            when_ended(int(parent), partial(run_dir.note_loss, int(parent)))
        every_s, device = resolved.run_file.job.idle.sample_every_s, resolved.processes.device
        follow_usage(run_dir, int(node), every_s=every_s, on_accelerators=device == "cuda")
        follow_notices(run_dir, int(node), resolved.run_file.recover.notices)
        data = _prepare_data(resolved, run_dir, int(node))
        elastic = importlib.import_module("trainworks.worker.elastic")  # imports torch
        exit_code: int = elastic.run_node(
            resolved,
            run_dir,
            data,
            node=int(node),
            address=address,
            store=store,
            store_fd=int(store_fd) if store_fd else None,
        )
    except (TrainworksError, OSError) as error:
        return _give_up(run_dir, int(node), error)
    finally:  # the fork server's socket: this process ends without the finalizers of multiprocessing
        shutil.rmtree(multiprocessing.util.get_temp_dir(), ignore_errors=True)
    return exit_code


def allocator_settings(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of torch's allocator that a rank gets, read once, when torch is imported; none if the user has some.

    Segments of a GPU's memory that grow leave no holes between blocks of different sizes, such as the tokens of experts
    and gathered weights. PYTORCH_CUDA_ALLOC_CONF is the name before torch 2.9.
    """
    if device != "cuda" or {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys():
        return {}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def _prepare_data(resolved: ResolvedRun, run_dir: RunDir, node: int) -> DataFolders:
    """The tokenized shards, made now if this machine does not have them."""
    workload = resolved.run_file.workload
    assert workload is not None and resolved.plan is not None
    if workload.task == "module":
        return DataFolders(run_dir.path)  # its file reads the data
    preparation = importlib.import_module("trainworks.worker.data.preparation")  # imports tokenizers: likewise
    model = resolved.plan.model
    folders: DataFolders = preparation.prepare_for_run(
        workload.data,
        cache_folder("data"),
        run_dir.events_file if node == 0 else None,
        model_vocabulary=model.vocabulary if model.is_described else sys.maxsize,  # else the task looks itself
        evaluation=workload.eval,
    )
    return folders


def _give_up(run_dir: RunDir, node: int, error: TrainworksError | OSError) -> int:
    """Record why no rank can start; returns the exit code, which tells whether another start can help."""
    rank_failure = importlib.import_module("trainworks.worker.health.rank_failure")  # imports torch: rarely needed here
    failure = rank_failure.explain(error)
    exit_code = error.exit_code if isinstance(error, TrainworksError) else failure.exit_code
    if failure.cause in TRANSIENT:
        exit_code = ExitCode.PEER_LOST
    run_dir.note(
        FailureEvent(
            kind="failure",
            rank=None,
            node=node,
            cause=failure.cause,
            exit_code=exit_code,
            message=failure.message,
            hint=failure.hint,
        )
    )
    return exit_code


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        end_by_signal(-code)
    os._exit(code)  # torch's store threads abort a process that ends in good order, now and then
