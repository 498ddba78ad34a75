"""Deterministic runs: the same bits twice, and a clear refusal of what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from trainworks.record.exit_code import ExitCode
from trainworks.worker.determinism import seed_step
from trainworks.worker.health.rank_failure import explain

FLAGS = """
import torch, os
from trainworks.worker.determinism import make_deterministic
make_deterministic()
sdp = torch.backends.cuda
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
      torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, sdp.mem_efficient_sdp_enabled(),
      os.environ["CUBLAS_WORKSPACE_CONFIG"])
"""

DROPOUT = {"workload__model": {"architecture": "gpt2", "layers": 2, "hidden": 32, "heads": 4, "dropout": 0.1}}
LAYOUTS = [
    pytest.param({}, id="replicas"),
    pytest.param({"layout": {"dp_shard": 2}}, id="shards"),
    pytest.param({"workload__precision": "bf16"}, id="bf16"),
    pytest.param(DROPOUT, id="dropout", marks=pytest.mark.lane("nightly")),  # within the next two
    pytest.param(DROPOUT | {"layout": {"tp": 2}}, id="dropout-sequence-parallel"),
    pytest.param(DROPOUT | {"layout": {"pp": 2, "micro_batch": 4, "recompute": "full"}}, id="dropout-pipeline"),
]


@pytest.mark.parametrize("changes", LAYOUTS)
def test_two_runs_are_bit_identical(new_run, undisturbed, changes):
    second = new_run(**changes, workload__deterministic=True)
    assert second.train() == [0, 0]
    assert second.curve() == undisturbed(**changes, workload__deterministic=True).curve()


def test_the_option_does_not_change_what_a_cpu_computes(undisturbed):
    assert undisturbed().curve() == undisturbed(workload__deterministic=True).curve()


@pytest.fixture
def restored_generator():
    """Leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def draws(**where):
    seed_step(**where)
    return torch.rand(8).tolist()


def test_the_random_numbers_of_a_step_depend_on_seed_step_and_rank_alone(restored_generator):
    torch.seed()
    first = draws(seed=5, step=3, rank=1)
    torch.rand(100)
    assert draws(seed=5, step=3, rank=1) == first


def test_no_two_seeds_steps_or_ranks_share_their_random_numbers(restored_generator):
    places = [{"seed": seed, "step": step, "rank": rank} for seed in range(3) for step in range(9) for rank in range(8)]
    assert len({tuple(draws(**place)) for place in places}) == len(places)


def test_torch_is_told_before_the_device_is_used():
    done = subprocess.run([sys.executable, "-c", FLAGS], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == ["True", "False", "True", "False", "False", ":4096:8"]


def test_an_operation_without_a_deterministic_form_is_named():
    failure = explain(
        RuntimeError(
            "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
        )
    )
    assert failure.exit_code == ExitCode.USER_ERROR
    assert failure.message == "cumsum_cuda_kernel does not have a deterministic implementation"
    assert "workload.deterministic: false" in failure.hint


@pytest.mark.gpu
def test_two_runs_are_bit_identical_on_a_gpu(tmp_path):
    program = """
import torch
from trainworks.worker.determinism import make_deterministic
make_deterministic()
torch.manual_seed(0)
tokens = torch.randint(0, 50, (64, 128), device="cuda")
embedding = torch.nn.Embedding(50, 64, device="cuda")
layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0, device="cuda")
layer(embedding(tokens)).square().mean().backward()
print(embedding.weight.grad.double().sum().item().hex(), layer.linear1.weight.grad.double().sum().item().hex())
"""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in "ab"]
    assert runs[0].stdout == runs[1].stdout
