"""Settings of UCX and Open MPI for MPI jobs, and a check that they have an effect.

Source: `ucx_info -c` and `ompi_info --all`, and the guides of UCX 1.13 and of Open MPI 4.1 and 5.0.
"""

from __future__ import annotations

from trainworks.config.stack_parts.fabric import Fabric
from trainworks.deploy.fabric.priorities import GID_INDEX, TRAFFIC_CLASS


def mpi_files(fabric: Fabric) -> dict[str, str]:
    """Files by name; empty without `fabric.mpi`."""
    if fabric.mpi is None:
        return {}
    return {"ucx.conf": _ucx(fabric), "openmpi-mca-params.conf": _open_mpi(fabric), "mpi-check.sh": _check(fabric)}


def _ucx(fabric: Fabric) -> str:
    lines = [
        "# the rails alone: the adapter of the storage network is slower, and UCX would share messages with it",
        f"UCX_NET_DEVICES={','.join(f'{device}:1' for device in fabric.devices)}",
        "# no UCX_TLS: UCX takes shared memory, RDMA and CUDA where they are, and a list leaves one out",
    ]
    if fabric.link == "roce":
        lines += [
            "# the same entry and byte as NCCL: hosts and switches have one lossless priority",
            f"UCX_IB_GID_INDEX={GID_INDEX}",
            f"UCX_IB_TRAFFIC_CLASS={TRAFFIC_CLASS}",
        ]
    return "\n".join(lines) + "\n"


def _open_mpi(fabric: Fabric) -> str:
    assert fabric.mpi is not None
    lines = [
        "# an end instead of a quiet fall back to TCP where UCX finds no device; Debian's own file leaves UCX out",
        "pml = ucx",
        "osc = ucx",
    ]
    if fabric.mpi.openmpi.split(".")[0] == "4":
        lines += ["# the older path to InfiniBand warns on each rank, and 5 removed it", "btl = ^openib"]
    return "\n".join(lines) + "\n"


def _check(fabric: Fabric) -> str:
    assert fabric.mpi is not None
    lines = [
        "#!/bin/bash",
        "# Do MPI jobs use the adapters? Prints what is missing, and exits with 1 if something is.",
        "failed=0",
        'missing() { echo "$1"; failed=1; }',
        "ompi_info --parsable 2> /dev/null | grep -q '^mca:pml:ucx:' || missing 'Open MPI was built without UCX'",
        "devices=$(ucx_info -d 2> /dev/null)",
        f"for device in {' '.join(fabric.devices)}; do",
        '    grep -q "Device: $device:1" <<< "$devices" || missing "UCX does not see $device"',
        "done",
        "grep -Eq 'Transport: (rc_mlx5|rc_verbs|dc_mlx5)' <<< \"$devices\" || missing 'UCX has no transport over RDMA'",
    ]
    if fabric.mpi.cuda:
        lines += [
            "grep -q 'Transport: cuda_copy' <<< \"$devices\" || missing 'UCX was built without CUDA'",
            "ompi_info --parsable --all 2> /dev/null | grep -q 'mpi_built_with_cuda_support:value:true' \\",
            "    || missing 'Open MPI was built without CUDA: a message in the memory of a GPU ends the job'",
        ]
    return "\n".join([*lines, "exit $failed"]) + "\n"
