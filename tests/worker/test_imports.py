"""A rank imports what its run needs, and no more: imports are most of its start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainworks.config.run_file import Workload
from trainworks.worker.fork_server import rank_modules


def workload(**changes):
    fields = {
        "task": "causal-lm",
        "model": {"layers": 2, "hidden": 32, "heads": 4},
        "data": {"source": "python-stdlib", "sequence_length": 32},
        "global_batch": 8,
        "train_for": "3 steps",
    }
    return Workload.model_validate(fields | changes)


def modules(pp=1, **changes):
    return rank_modules(workload(**changes), pp=pp)


def test_a_model_by_dimensions_needs_neither_transformers_nor_pipelines():
    program = f"import importlib, sys\nfor name in {modules()!r}: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", program]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "trainworks.worker.train" in imported
    assert not {"transformers", "scipy", "sklearn", "pandas", "torch.distributed.pipelining"} & set(imported)


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        ("trainworks.worker.parallel.pipeline", {"pp": 2}),
        ("trainworks.worker.models.transformer", {"model": {"hf": "models/llama"}}),
        ("trainworks.worker.tasks.transformer_tasks", {"task": "masked-lm", "model": {"hf": "models/bert"}}),
    ],
)
def test_what_a_run_needs_is_imported_before_its_ranks_start(module, changes):
    assert module in modules(**changes)
    assert module not in modules()


def test_the_trainer_comes_last_and_freezes_what_is_imported():
    assert modules(pp=2)[-1] == "trainworks.worker.preloaded"


FORK_SERVER = """
import multiprocessing, os, sys, torch
from trainworks.worker.fork_server import start_fork_server

def rank(queue):
    queue.put(("tabnanny" in sys.modules, os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]))

if __name__ == "__main__":
    torch.cuda._is_in_bad_fork = lambda: {bad}
    start_fork_server(["torch._dynamo", "tabnanny"])
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=rank, args=(queue,))
    process.start()
    print(*queue.get())
    process.join()
"""


@pytest.mark.parametrize(("bad", "printed"), [(False, "True 1"), (True, "False 1")])
def test_ranks_are_not_forked_from_a_process_that_an_import_has_made_call_cuda(tmp_path, bad, printed):
    script = tmp_path / "ranks.py"
    script.write_text(FORK_SERVER.format(bad=bad))
    assert subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.split() == (
        printed.split()
    )
