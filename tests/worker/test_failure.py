"""An exception that ends a rank is named by its cause, and known again when it comes back."""

from __future__ import annotations

import errno
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException

from trainworks.errors import DiskFullError, DivergedError, EnvironmentProblem, UsageError
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir
from trainworks.worker.agent import _give_up
from trainworks.worker.checkpoint.failures import explained_failure
from trainworks.worker.health.rank_failure import explain, fingerprint


def os_error(number: int) -> OSError:
    """As the system raises it."""
    return OSError(number, os.strerror(number))


def wrapped(error: Exception, by: Exception) -> Exception:
    """An error of ours that hides the one that it came from, as most of them do."""
    try:
        try:
            raise error
        except Exception:
            raise by from None
    except type(by) as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "gpu_fault"),
        (RuntimeError("CUDA error: unspecified launch failure"), "gpu_fault"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "gpu_fault"),
        (torch.AcceleratorError("HIP error: hipErrorUnknown"), "gpu_fault"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), "gpu_fault"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "gpu_fault"),
        (dist.DistBackendError("NCCL error in: x.cpp:3, unhandled cuda error"), "gpu_fault"),
        (RuntimeError("CUDA error: device-side assert triggered"), "user_error"),
        (RuntimeError("CUDA error: invalid device ordinal"), "user_error"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "user_error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`"), "user_error"),
        (dist.DistBackendError("NCCL error: invalid usage, Duplicate GPU detected"), "user_error"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (os_error(errno.ESTALE), "storage_fault"),
        (os_error(errno.EIO), "storage_fault"),
        (os_error(errno.ETIMEDOUT), "storage_fault"),
        (os_error(errno.EREMOTEIO), "storage_fault"),
        (wrapped(os_error(errno.EIO), EnvironmentProblem("cannot read image `a.png`")), "storage_fault"),
        (wrapped(os_error(errno.ESTALE), UsageError("OSError: Stale file handle")), "storage_fault"),
        (os_error(errno.ENOENT), "user_error"),
        (TimeoutError("a request took too long"), "user_error"),
        (ValueError("the storage of CUDA errors"), "user_error"),
        (SystemExit(3), "user_error"),
        (KeyboardInterrupt(), "killed"),
        (ConnectionResetError(), "peer_lost"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), "peer_lost"),
        (dist.DistNetworkError("The client socket has timed out"), "peer_lost"),
        (
            wrapped(RuntimeError("Connection closed by peer"), EnvironmentProblem("cannot write checkpoint")),
            "peer_lost",
        ),
        (wrapped(os_error(errno.ENOSPC), DiskFullError("no space left")), "disk_full"),
        (EnvironmentProblem("cannot read tokenizer"), "environment"),
        (DivergedError("step 3 is a spike"), "diverged"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, BaseException) else value,
)
def test_an_exception_is_named_by_its_cause(error: BaseException, cause: str) -> None:
    assert explain(error).cause == cause


def test_a_fault_of_an_accelerator_blames_no_line_of_the_user() -> None:
    found = explain(RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be ..."))
    assert (found.place, found.exit_code) == (None, ExitCode.HARDWARE_FAULT)
    assert found.message == "accelerator failed: CUDA error: uncorrectable ECC error encountered"


def test_a_checkpoint_that_another_rank_could_not_write_for_its_disk_is_a_fault_of_the_storage(tmp_path) -> None:
    failed = CheckpointException("write", {1: (os_error(errno.EIO), None)})
    assert explain(explained_failure(failed, tmp_path)).cause == "storage_fault"


def raised(text: str, kind: type[Exception] = ValueError) -> Exception:
    """An exception with a traceback."""
    try:
        raise kind(text)
    except kind as error:
        return error


def test_the_same_failure_has_the_same_fingerprint_in_every_process() -> None:
    first, second = raised("no sample 17 at 0x7f12ab in process 4711"), raised("no sample 18 at 0x55aa01 in process 9")
    assert fingerprint(first) == fingerprint(second)


def test_another_type_message_or_line_has_another_fingerprint() -> None:
    others = [raised("too long"), raised("too short"), raised("too long", KeyError), elsewhere("too long")]
    assert len({fingerprint(error) for error in others}) == 4


def elsewhere(text: str) -> Exception:
    """The same exception from another line."""
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "exit_code", "cause"),
    [
        (EnvironmentProblem("no such source"), 3, "environment"),
        (UsageError("bad column"), 2, "user_error"),
        (PermissionError(errno.EACCES, "Permission denied"), 1, "user_error"),
        (wrapped(os_error(errno.ESTALE), EnvironmentProblem("cannot read tokenizer")), 75, "storage_fault"),
    ],
)
def test_an_agent_that_cannot_prepare_the_data_says_why_and_whether_to_start_it_again(
    tmp_path, error, exit_code, cause
):
    run_dir = RunDir(tmp_path)
    assert _give_up(run_dir, 1, error) == exit_code
    (event,) = read_events(run_dir.events_file)
    assert (event["cause"], event["node"], event["exit_code"]) == (cause, 1, exit_code)
