"""TW73x, TW741 to TW743: stack files: releases that do not fit together, or get no corrections any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

import yaml

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator, has, node
from trainworks.catalog.facts import Accelerator, Component, Release
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rule import rule

stack_rule = partial(rule, file="stack.yaml")
_ARCHITECTURES = "https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html"
_STACK = """os: {os}
nodes:
  - {{hosts: "gpu[1-4]", machine: {machine}, roles: [compute]}}
gpu: {{driver: "{driver}"}}{comment}
slurm: {{release: "{slurm}", packages: {packages}}}
environments:
  - {{name: torch, {environment}}}
"""
_GOOD = {
    "os": "Ubuntu 24.04",
    "machine": "DGX H100",
    "driver": "580",
    "comment": "",
    "slurm": "26.05",
    "packages": "schedmd",
    "environment": 'torch: "2.14", cuda: "13.0"',
}


def _example(**changes: str) -> str:
    return _STACK.format_map(_GOOD | changes)


@stack_rule(
    "TW731",
    "The operating system is out of support",
    why="It gets no security updates, its packages disappear from the mirrors, and drivers and schedulers are built "
    "for later releases alone.",
    fix="Take a release that is supported for as long as the cluster is to live, such as Ubuntu 24.04 or Rocky 9.",
    source="trainworks catalog show 'CentOS 8'",
    bad=_example(os="CentOS 8", environment='image: "registry.example/train:1-cu130"'),
    good=_example(),
)
def ended_system(file: ReviewedFile) -> Iterator[Problem]:
    """`os`, or the base of an image, whose support ended."""
    for value, name in ((value, str(value.value)) for value in scalars(file.stack, "os")):
        found = release(name, "operating system")
        if found and software.is_over(found):
            yield flag(value, f"support of {found.name} ended in {found.ends}")
    for image in (value for item in environments(file) for value in scalars(item, "image")):
        base = software.base_system(image.value)
        if base and software.is_over(base):
            yield flag(image, f"support of {base.name}, the base of this image, ended in {base.ends}")


@stack_rule(
    "TW732",
    "The driver branch is out of support",
    why="NVIDIA corrects the branches R580, R595 and R620 (November 2026). An older one gets no corrections of faults "
    "and of security, and knows no later GPU.",
    fix="Install a long-term branch: R580 is supported until June 2028, R620 until September 2029.",
    source="https://docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html",
    bad=_example(driver="535", environment='torch: "2.14", cuda: "12.6"'),
    good=_example(),
)
def ended_driver(file: ReviewedFile) -> Iterator[Problem]:
    """A driver of a branch that ended, of the stack or of a group of nodes."""
    for value, _ in drivers(file):
        yield from ended("driver", value, f"R{software.driver_branch(value.value)}")


@stack_rule(
    "TW733",
    "The driver does not know the GPUs",
    why="A driver knows the GPU generations that were sold when its branch began, and drops old ones: after R580 those "
    "before Turing. `nvidia-smi` lists no device with another driver.",
    fix="Take a branch that knows the generation.",
    source=_ARCHITECTURES,
    bad=_example(machine="p3.16xlarge", driver="620", environment='torch: "2.6", cuda: "12.6"'),
    good=_example(machine="p3.16xlarge", driver="580", environment='torch: "2.6", cuda: "12.6"'),
)
def unknown_gpu(file: ReviewedFile) -> Iterator[Problem]:
    """A driver branch before the first, or behind the last, of a GPU generation of the nodes that get it."""
    for value, groups in drivers(file):
        branch = software.driver_branch(value.value)
        for found in _generations(groups):
            if found.first_driver and branch < found.first_driver:
                yield flag(value, f"R{branch} does not know {found.name}: R{found.first_driver} is the first that does")
            elif found.last_driver and branch > found.last_driver:
                yield flag(value, f"R{branch} does not know {found.name}: R{found.last_driver} is the last that does")


@stack_rule(
    "TW734",
    "The driver is too old for the CUDA of an environment",
    why="A driver runs programs of its CUDA major release and of older ones: CUDA 12 needs R525, CUDA 13 R580. "
    "`torch.cuda.is_available()` is false otherwise.",
    fix="Take a newer driver, or wheels or an image for an older CUDA.",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    bad=_example(driver="570", comment="  # trainworks: ignore[TW732]"),
    good=_example(),
)
def old_driver_for_cuda(file: ReviewedFile) -> Iterator[Problem]:
    """An environment for a CUDA that the driver of some nodes cannot run."""
    branches = sorted({software.driver_branch(value.value) for value, groups in drivers(file) if groups})
    for branch in branches:
        for value, cuda in cudas(file, with_ngc=False):
            least = software.least_driver(cuda)
            if least is not None and branch < least:
                yield flag(value, f"CUDA {cuda} needs the driver R{least} or newer, and `gpu.driver` is R{branch}")


@stack_rule(
    "TW735",
    "The CUDA of an environment does not know the GPUs",
    why="Programs that a CUDA release compiled have no code for GPUs that came later, nor for those that it dropped: "
    "`no kernel image is available for execution on the device`.",
    fix="Take wheels or an image for a CUDA that compiles for the generation.",
    source=_ARCHITECTURES,
    bad=_example(os="Debian 12", environment='torch: "2.0", cuda: "11.7"'),
    good=_example(os="Debian 12", environment='torch: "2.0", cuda: "11.8"'),
)
def unknown_generation(file: ReviewedFile) -> Iterator[Problem]:
    """An environment for a CUDA before the first, or behind the last, of a GPU generation of the nodes."""
    for value, cuda in cudas(file):
        for found in generations(file):
            if found.first_cuda and software.version_key(cuda) < software.version_key(found.first_cuda):
                yield flag(value, f"CUDA {cuda} does not know {found.name}: {found.first_cuda} is the first that does")
            elif found.last_cuda and software.version_key(cuda)[0] > int(found.last_cuda):
                yield flag(
                    value, f"CUDA {cuda} does not know {found.name}: CUDA {found.last_cuda} is the last that does"
                )


@stack_rule(
    "TW736",
    "PyTorch has no such wheels",
    why="Each release of PyTorch has wheels for two or three releases of CUDA, and one or two of ROCm. pip finds none "
    "for another one, or takes a build for another CUDA from PyPI without a message.",
    fix="Take a CUDA or ROCm that the release was built for.",
    source="https://github.com/pytorch/pytorch/blob/main/RELEASE.md",
    bad=_example(os="Debian 12", environment='torch: "2.0", cuda: "12.0"'),
    good=_example(os="Debian 12", environment='torch: "2.0", cuda: "11.8"'),
)
def missing_wheels(file: ReviewedFile) -> Iterator[Problem]:
    """`torch` with `cuda` or `rocm` of an environment that no wheel has."""
    for item in environments(file):
        torch = tree.scalar(tree.get(item, "torch"))
        found = release(".".join(torch.split(".")[:2]), "PyTorch") if torch else None
        for key, name in (("cuda", "CUDA"), ("rocm", "ROCm")):
            builds = (found.builds if key == "cuda" else found.rocm_builds) if found else ()
            for value in scalars(item, key) if found else ():
                if found and value.value not in builds:
                    yield flag(
                        value, f"{found.name} has no wheels for {name} {value.value}, and has for {', '.join(builds)}"
                    )


@stack_rule(
    "TW737",
    "The Slurm release is out of support",
    "warning",
    why="SchedMD corrects a release for 18 months. An upgrade may skip two releases: one that is older has to go "
    "through several.",
    fix="Take the newest release, with packages that you build from its tarball; those of distributions are older.",
    source="https://slurm.schedmd.com/upgrades.html",
    bad=_example(slurm="23.11"),
    good=_example(),
)
def ended_slurm(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.release` that ended."""
    for value in scalars(file.stack, "slurm", "release"):
        yield from ended("Slurm", value, f"Slurm {'.'.join(value.value.split('.')[:2])}")


@stack_rule(
    "TW738",
    "Support ends within a year",
    "note",
    why="A cluster lives for three to five years. A change of the operating system or of the driver branch drains all "
    "nodes.",
    fix="Take a release whose support ends later, or plan the change.",
    source="trainworks catalog show R580",
    bad=_example(driver="595"),
    good=_example(),
)
def ending_support(file: ReviewedFile) -> Iterator[Problem]:
    """`os`, `gpu.driver` or `slurm.release` whose support ends within a year."""
    names = (
        ("operating system", ("os",), str),
        ("driver", ("gpu", "driver"), lambda text: f"R{software.driver_branch(text)}"),
        ("Slurm", ("slurm", "release"), lambda text: ".".join(text.split(".")[:2])),
    )
    for component, path, name in names:
        named = [each for each, _ in drivers(file)] if component == "driver" else list(scalars(file.stack, *path))
        for value in named:
            found = release(name(value.value), component)
            if found and software.ends_soon(found):
                yield flag(value, f"support of {found.name} ends in {found.ends}")


@stack_rule(
    "TW739",
    "The distribution has another Slurm",
    why="The packages of a distribution have one release of Slurm for its whole life. Files for a later one may name "
    "parameters that it does not know.",
    fix="Write the release that the distribution has, or `packages: schedmd` with packages that you build.",
    source="https://slurm.schedmd.com/quickstart_admin.html",
    bad=_example(packages="distribution"),
    good=_example(),
)
def other_slurm(file: ReviewedFile) -> Iterator[Problem]:
    """`packages: distribution` with a release that the operating system does not have."""
    for value in scalars(file.stack, "slurm", "release"):
        if tree.scalar(tree.get(file.stack, "slurm", "packages")) != "distribution":
            continue
        system = release(tree.scalar(tree.get(file.stack, "os")) or "", "operating system")
        if system and system.slurm != ".".join(value.value.split(".")[:2]):
            yield flag(value, f"{system.name} has Slurm {system.slurm or 'in no package'}, and not {value.value}")


@stack_rule(
    "TW740",
    "A value is to be filled in",
    why="`size --write-stack` and `network --write-stack` mark the values that only the owner of the cluster knows, "
    "and write an example in their place. `slurmd -C` prints the hardware of a node.",
    fix=f"Write your own value, and remove `{FILL_IN} ...`.",
    source="https://slurm.schedmd.com/slurmd.html",
    bad=_example(comment=f"  {FILL_IN} the branch that your images have"),
    good=_example(),
)
def placeholder(file: ReviewedFile) -> Iterator[Problem]:
    """A value with the mark behind it."""
    for number, line in enumerate(file.lines if file.stack is not None else (), start=1):
        before, mark, what = line.partition(FILL_IN)
        if mark and before.strip():
            yield Problem(number, len(before) + 1, f"this line needs your own value: {what.strip()}")


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


@stack_rule(
    "TW741",
    "DOCA-OFED is not built for the kernel",
    why="NVIDIA builds and tests DOCA-OFED against the generic kernel of each distribution. Against another one, such "
    "as a hardware-enablement kernel, its modules fail to build, or the kernel's own ones are loaded after an update.",
    fix="Take the generic kernel and hold it, or `driver: inbox`, which every kernel brings.",
    source="https://docs.nvidia.com/doca/archive/3-2-1/general-support/index.html",
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
            yield flag(
                value, f"the generic kernel of {system.name if system else ''} is {known}, and not {value.value}"
            )


@stack_rule(
    "TW742",
    "Slurm has no plugin for this PMIx",
    why="`srun --mpi=pmix` loads a plugin that Slurm was built with, and a release of Slurm builds it for a PMIx that "
    "it knows. Without it, every rank of an MPI job believes that it is rank 0 of 1.",
    fix="Build Slurm with an older PMIx, or take a newer Slurm.",
    source="https://slurm.schedmd.com/mpi_guide.html",
    bad=_PLUGIN.format(slurm="21.08", plugin='pmix: "5.0"', comment="  # trainworks: ignore[TW737]"),
    good=_PLUGIN.format(slurm="26.05", plugin='pmix: "5.0"', comment=""),
)
def other_pmix(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.pmix` of a major release that `slurm.release` does not know."""
    slurm = tree.scalar(tree.get(file.stack, "slurm", "release")) or ""
    for value in scalars(file.stack, "slurm", "pmix"):
        known = release(value.value.split(".")[0], "PMIx")
        first = known.first_slurm if known else None
        if first and slurm and software.version_key(slurm) < software.version_key(first):
            yield flag(value, f"Slurm {slurm} has no plugin for PMIx {value.value}: {first} is the first that does")


@stack_rule(
    "TW743",
    "pyxis was built for another Slurm",
    why="A SPANK plugin is compiled against the headers of one release of Slurm. Another release does not load it, and "
    "with `required` in plugstack.conf no job starts.",
    fix="Build pyxis again, against the release that the nodes run.",
    source="https://slurm.schedmd.com/spank.html",
    bad=_PLUGIN.format(slurm="26.05", plugin='pyxis: "25.05"', comment=""),
    good=_PLUGIN.format(slurm="26.05", plugin='pyxis: "26.05"', comment=""),
)
def other_pyxis(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.pyxis` that is not `slurm.release`."""
    slurm = tree.scalar(tree.get(file.stack, "slurm", "release")) or ""
    for value in scalars(file.stack, "slurm", "pyxis"):
        if slurm and software.version_key(value.value)[:2] != software.version_key(slurm)[:2]:
            yield flag(value, f"pyxis was built for Slurm {value.value}, and the nodes run {slurm}")


def ended(component: Component, value: yaml.ScalarNode, name: str) -> Iterator[Problem]:
    """The problem of a release whose support ended."""
    month = software.support_end(component, value.value)
    if month is not None:
        yield flag(value, f"support of {name} ended{f' in {month}' if month else ''}")


def flag(node_: yaml.ScalarNode, message: str) -> Problem:
    """A problem at a value."""
    return Problem(*tree.place(node_), message)


def scalars(root: yaml.Node | None, *path: str) -> Iterator[yaml.ScalarNode]:
    """The scalar under a path, if there is one."""
    found = tree.get(root, *path)
    if isinstance(found, yaml.ScalarNode):
        yield found


def release(name: str, component: str) -> Release | None:
    """The release of that name of a component; None if the catalogue has none."""
    full = name if component in ("operating system", "driver") else f"{component} {name}"
    found = software.release(full) if has("software", full) else None
    return found if found and found.component == component else None


def environments(file: ReviewedFile) -> list[yaml.Node]:
    """Environments of jobs, and images to build."""
    return [each for key in ("environments", "images") for each in tree.items(tree.get(file.stack, key))]


def cudas(file: ReviewedFile, *, with_ngc: bool = True) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """CUDA of each environment: as written, or that in the name of its image.

    Images of NVIDIA's catalogue bring the libraries of the driver that they need.
    """
    for item in environments(file):
        written = list(scalars(item, "cuda"))
        yield from ((value, value.value) for value in written if re.match(r"\d", value.value))
        for image in scalars(item, "image"):
            cuda = software.image_cuda(image.value)
            if cuda and not written and (with_ngc or software.ngc_release(image.value) is None):
                yield image, cuda


def drivers(file: ReviewedFile) -> list[tuple[yaml.ScalarNode, list[yaml.Node]]]:
    """Each driver of NVIDIA that a stack names, that of the stack first, with the groups of nodes that get it."""
    groups = list(tree.items(tree.get(file.stack, "nodes")))
    own = [(value, [group]) for group in groups for value in scalars(group, "gpu", "driver")]
    others = [group for group in groups if tree.get(group, "gpu") is None]
    return [*((value, others) for value in scalars(file.stack, "gpu", "driver")), *own]


def generations(file: ReviewedFile) -> list[Release]:
    """GPU generations of the nodes, as far as the catalogue has their machines or accelerators."""
    return _generations(tree.items(tree.get(file.stack, "nodes")))


def _generations(groups: Iterable[yaml.Node]) -> list[Release]:
    found = (software.generation(card.architecture) for _, card in cards(groups) if card is not None)
    return list({known.name: known for known in found if known}.values())


def cards(groups: Iterable[yaml.Node]) -> Iterator[tuple[yaml.ScalarNode, Accelerator | None]]:
    """Value that says the accelerator of each group that has one; None if the catalogue does not have it."""
    for item in groups:
        for value in scalars(item, "machine"):
            card = node(value.value).accelerator if has("nodes", value.value) else None
            if card or not has("nodes", value.value):
                yield value, accelerator(card) if card else None
        for value in scalars(item, "hardware", "accelerators"):
            name = value.value.partition(":")[0]
            yield value, accelerator(name) if has("accelerators", name) else None
