"""TW74x: stack files: drivers of adapters against kernels, and plugins against Slurm."""

from __future__ import annotations

from collections.abc import Iterator

from trainworks.catalog import software
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rule import rule
from trainworks.review.rules.stack import at, release, scalars

_FABRIC = """os: Ubuntu 24.04
nodes:
  - {{hosts: "gpu[1-4]", machine: DGX H100, roles: [compute]}}
gpu: {{driver: "580"}}
fabric: {{link: infiniband, driver: {driver}, kernel: "{kernel}", devices: [mlx5_0]}}
slurm: {{release: "26.05"}}
"""
_PLUGIN = """os: Ubuntu 24.04
nodes:
  - {{hosts: "gpu[1-4]", machine: DGX H100, roles: [compute]}}
slurm: {{release: "{slurm}", {plugin}}}{comment}
"""
_OLD = "  # trainworks: ignore[TW737]"


@rule(
    "TW741",
    "DOCA-OFED is not built for the kernel",
    "error",
    why="NVIDIA builds and tests DOCA-OFED against the generic kernel of each distribution. Against another one, such "
    "as a hardware-enablement kernel, its modules fail to build, or the kernel's own ones are loaded after an update.",
    fix="Take the generic kernel and hold it, or `driver: inbox`, which every kernel brings.",
    source="https://docs.nvidia.com/doca/archive/3-2-1/general-support/index.html",
    file="stack.yaml",
    bad=_FABRIC.format(driver="doca-ofed", kernel="6.14"),
    good=_FABRIC.format(driver="doca-ofed", kernel="6.8"),
)
def other_kernel(file: ReviewedFile) -> Iterator[Problem]:
    """`fabric.driver: doca-ofed` with a kernel that is not the generic one of the operating system."""
    if tree.scalar(tree.get(file.stack, "fabric", "driver")) != "doca-ofed":
        return
    system = release(tree.scalar(tree.get(file.stack, "os")) or "", "operating system")
    for value in scalars(file.stack, "fabric", "kernel"):
        known = system.kernel if system else None
        if known and ".".join(value.value.split(".")[:2]) != known:
            yield at(value, f"the generic kernel of {system.name if system else ''} is {known}, and not {value.value}")


@rule(
    "TW742",
    "Slurm has no plugin for this PMIx",
    "error",
    why="`srun --mpi=pmix` loads a plugin that Slurm was built with, and a release of Slurm builds it for a PMIx that "
    "it knows. Without it, every rank of an MPI job believes that it is rank 0 of 1.",
    fix="Build Slurm with an older PMIx, or take a newer Slurm.",
    source="https://slurm.schedmd.com/mpi_guide.html",
    file="stack.yaml",
    bad=_PLUGIN.format(slurm="22.05", plugin='pmix: "5.0"', comment=_OLD),
    good=_PLUGIN.format(slurm="26.05", plugin='pmix: "5.0"', comment=""),
)
def other_pmix(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.pmix` of a major release that `slurm.release` does not know."""
    slurm = tree.scalar(tree.get(file.stack, "slurm", "release")) or ""
    for value in scalars(file.stack, "slurm", "pmix"):
        known = release(value.value.split(".")[0], "PMIx")
        first = known.first_slurm if known else None
        if first and slurm and software.version_key(slurm) < software.version_key(first):
            yield at(value, f"Slurm {slurm} has no plugin for PMIx {value.value}: {first} is the first that does")


@rule(
    "TW743",
    "pyxis was built for another Slurm",
    "error",
    why="A SPANK plugin is compiled against the headers of one release of Slurm. Another release does not load it, and "
    "with `required` in plugstack.conf no job starts.",
    fix="Build pyxis again, against the release that the nodes run.",
    source="https://slurm.schedmd.com/spank.html",
    file="stack.yaml",
    bad=_PLUGIN.format(slurm="26.05", plugin='pyxis: "25.05"', comment=""),
    good=_PLUGIN.format(slurm="26.05", plugin='pyxis: "26.05"', comment=""),
)
def other_pyxis(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.pyxis` that is not `slurm.release`."""
    slurm = tree.scalar(tree.get(file.stack, "slurm", "release")) or ""
    for value in scalars(file.stack, "slurm", "pyxis"):
        if slurm and software.version_key(value.value)[:2] != software.version_key(slurm)[:2]:
            yield at(value, f"pyxis was built for Slurm {value.value}, and the nodes run {slurm}")
