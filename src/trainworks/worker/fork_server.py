"""Make the process that ranks are forked from: a fork of the node agent, which has imported all that a rank needs.

`multiprocessing` starts its fork server as a new interpreter. The agent needs torch as well, so each node would import
it twice. A fork shares what is imported, and the memory of it. This module imports neither torch nor the trainer, so
that the node agent and the planner can use it.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainworks.config.run_file import Workload


def start_fork_server(modules: Sequence[str]) -> None:
    """Import modules and fork this process; `multiprocessing` then forks every rank from that child.

    Only for a process without threads. A fork server that is killed is replaced by `multiprocessing`, with a new
    interpreter that imports the modules again.

    A process that has called CUDA cannot use it in a fork. `torch.cuda.is_available()` calls it, and libraries ask that
    while they are imported; with PYTORCH_NVML_BASED_CUDA_CHECK the question goes to NVML. If a module calls CUDA all
    the same, ranks are forked from a new interpreter without these modules, and import what they need themselves. A
    missing module is not an error here: the rank that needs it says so.
    """
    import_all(modules)
    forks_have_cuda = _forks_have_cuda()
    preloaded = list(modules) if forks_have_cuda else []
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
    multiprocessing.resource_tracker.ensure_running()
    if not forks_have_cuda:
        multiprocessing.forkserver.ensure_running()
        return
    start_interpreter = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = _fork_instead  # type: ignore[assignment]
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = start_interpreter


def _forks_have_cuda() -> bool:
    """Whether a fork of this process can use CUDA, found out in a fork; True without torch."""
    if (torch := sys.modules.get("torch")) is None:
        return True
    pid = os.fork()
    if not pid:
        os._exit(torch.cuda._is_in_bad_fork())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _fork_instead(_: object, __: object, passed_fds: Sequence[int]) -> int:
    """Serve in a fork of this process instead of a new interpreter, with these open files; returns its id."""
    if pid := os.fork():
        return pid
    try:
        for low, high in itertools.pairwise([2, *sorted(passed_fds), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)  # all others
        multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc]  # its lock was taken when it was copied
        listener, alive, *authkey = passed_fds  # from Python 3.14 on there is a key
        keys = {"authkey_r": authkey[0]} if authkey else {}
        multiprocessing.forkserver.main(listener, alive, [], **keys)  # type: ignore[arg-type]
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def rank_modules(workload: Workload, *, pp: int = 1) -> tuple[str, ...]:
    """Modules that every rank of this run would import itself, in the order of their import."""
    modules = ["torch._dynamo"]  # DDP and torch's optimizers import it at their first use
    if pp > 1:
        modules.append("trainworks.worker.parallel.pipeline")
    if workload.task in ("masked-lm", "image-classification"):
        modules.append("trainworks.worker.tasks.transformer_tasks")
    elif workload.task == "causal-lm" and workload.model.hf is not None:
        modules += ["trainworks.worker.models.transformer", "transformers.modeling_utils"]
    return (*modules, "trainworks.worker.preloaded")


def import_all(modules: Iterable[str]) -> None:
    """Import modules; a missing one is not an error here, because the rank that needs it says so.

    Half a million objects stay, and Python's collector would look through them again and again. It does so rarely here,
    which saves a quarter of the processor time of importing torch and the trainer. Questions for a GPU go to NVML, as
    `start_fork_server` says.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    usual = gc.get_threshold()
    gc.set_threshold(20_000, 10, 1_000)
    try:
        for module in modules:
            with suppress(ImportError):
                importlib.import_module(module)
    finally:
        gc.set_threshold(*usual)


def run_rank(
    run_folder: str, data_folder: str, node: int, agent_pid: int, board: str, evaluation_folders: Mapping[str, Path]
) -> None:
    """Train as one rank; in a process forked from the fork server, where the trainer is imported already."""
    importlib.import_module("trainworks.worker.train").train(
        run_folder, data_folder, node, agent_pid, board, evaluation_folders
    )
