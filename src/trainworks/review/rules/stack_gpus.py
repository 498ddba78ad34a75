"""TW745 to TW753: stack files: wheels, images, operators and topology against the GPUs, and what is not judged."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from trainworks.catalog import software
from trainworks.catalog.catalog import has
from trainworks.catalog.facts import Component, Release
from trainworks.catalog.stack_cluster import rack_of_group
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rules.stack import (
    cards,
    cudas,
    drivers,
    ended,
    environments,
    flag,
    generations,
    release,
    scalars,
    stack_rule,
)

_STACK = """os: {os}
nodes:
  - {{hosts: "gpu[1-4]", machine: {machine}, roles: [compute]}}
gpu: {{driver: "580"}}
slurm: {{release: "26.05"}}
environments:
  - {{name: torch, torch: "{torch}", cuda: "{cuda}"}}
"""
_OPERATOR = """os: Ubuntu 24.04
nodes:
  - {{hosts: "gpu[1-4]", machine: DGX B200, roles: [compute]}}
gpu: {{driver: "580"}}
slurm: {{release: "26.05"}}
kubernetes: {{gpu_operator: {operator}}}{comment}
"""
_AMD = """os: Ubuntu 24.04
nodes:
  - {{hosts: "gpu[1-4]", hardware: {{accelerators: "MI355X:8"}}, roles: [compute]}}
gpu: {{rocm: "{driver}"}}
slurm: {{release: "{slurm}"}}
environments:
  - {{name: torch, {environment}}}
"""
_RACKS = """os: Ubuntu 24.04
nodes:
  - {{hosts: "gpu[1-36]", machine: GB200 NVL72 tray, roles: [compute]}}
  - {{hosts: "cpu[1-4]", roles: [compute], hardware: {{sockets: 2, cores_per_socket: 64, memory: 500 GiB}}}}
gpu: {{driver: "580"}}
slurm:
  release: "{release}"
  partitions:
    - {{name: train, default: true{nodes}}}
"""


@stack_rule(
    "TW745",
    "The wheels have no code for the GPUs",
    why="Wheels of PyTorch for CUDA 12.8 and later were built without the oldest generations that this CUDA knows, to "
    "stay small: `no kernel image is available for execution on the device`.",
    fix="Take the wheels for CUDA 12.6, or an older PyTorch.",
    source="https://github.com/pytorch/pytorch/issues/157517",
    bad=_STACK.format(os="Ubuntu 24.04", machine="p3.16xlarge", torch="2.11", cuda="12.8"),
    good=_STACK.format(os="Ubuntu 24.04", machine="p3.16xlarge", torch="2.11", cuda="12.6"),
)
def wheels_without_code(file: ReviewedFile) -> Iterator[Problem]:
    """`torch` and `cuda` of an environment whose wheels leave out a GPU generation of the nodes."""
    for item in environments(file):
        found, cuda = _torch(item), tree.get(item, "cuda")
        if found is None or not isinstance(cuda, yaml.ScalarNode):
            continue
        for each in generations(file):
            if f"{cuda.value} {each.name}" in found.left_out:
                yield flag(cuda, f"the wheels of {found.name} for CUDA {cuda.value} have no code for {each.name}")


@stack_rule(
    "TW746",
    "PyTorch has no wheels for this Python",
    why="A virtual environment has the Python of the operating system, and each release of PyTorch has wheels for a "
    "few releases of Python. pip finds none for another one.",
    fix="Take a PyTorch that has wheels for it, another operating system, or an `image` with a Python of its own.",
    source="https://github.com/pytorch/pytorch/blob/main/RELEASE.md",
    bad=_STACK.format(os="Rocky 9", machine="DGX H100", torch="2.9", cuda="13.0"),
    good=_STACK.format(os="Rocky 9", machine="DGX H100", torch="2.8", cuda="12.8"),
)
def other_python(file: ReviewedFile) -> Iterator[Problem]:
    """`torch` of an environment that has no wheels for the python3 of `os`."""
    system = release(tree.scalar(tree.get(file.stack, "os")) or "", "operating system")
    if system is None or system.python is None:
        return
    key = software.version_key(system.python)
    for item in tree.items(tree.get(file.stack, "environments")):
        found = _torch(item)
        for value in scalars(item, "torch") if found else ():
            assert found is not None
            of = f"{system.name} has Python {system.python}"
            if found.first_python and key < software.version_key(found.first_python):
                yield flag(value, f"{of}, and the first that {found.name} has wheels for is {found.first_python}")
            elif found.last_python and key > software.version_key(found.last_python):
                yield flag(value, f"{of}, and the last that {found.name} has wheels for is {found.last_python}")


@stack_rule(
    "TW747",
    "The GPU operator does not know the GPUs",
    why="A release of the GPU operator brings a device plugin, a toolkit and monitoring that know the GPUs of its "
    "day. Its pods do not become ready on nodes with later ones.",
    fix="Take a release that knows the generation.",
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html",
    bad=_OPERATOR.format(operator="v24.9.0", comment="  # trainworks: ignore[TW748]"),
    good=_OPERATOR.format(operator="v26.7.0", comment=""),
)
def old_operator(file: ReviewedFile) -> Iterator[Problem]:
    """`kubernetes.gpu_operator` before the first release that knows a GPU generation of the nodes."""
    for value in scalars(file.stack, "kubernetes", "gpu_operator"):
        for found in generations(file):
            first = found.first_operator
            if first and software.version_key(value.value) < software.version_key(first):
                yield flag(value, f"{value.value} does not know {found.name}: {first} is the first that does")


@stack_rule(
    "TW748",
    "The GPU operator is out of support",
    "warning",
    why="NVIDIA corrects the newest release of the GPU operator and the one before it. An upgrade may skip no release: "
    "one that is older has to go through several.",
    fix="Take the newest release, v26.7 in November 2026.",
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html",
    bad=_OPERATOR.format(operator="v25.10.0", comment=""),
    good=_OPERATOR.format(operator="v26.7.0", comment=""),
)
def ended_operator(file: ReviewedFile) -> Iterator[Problem]:
    """`kubernetes.gpu_operator` that gets no corrections any more."""
    for value in scalars(file.stack, "kubernetes", "gpu_operator"):
        yield from ended("GPU operator", value, f"the GPU operator {value.value}")


@stack_rule(
    "TW749",
    "ROCm does not know the GPUs",
    why="A ROCm release has a driver and compiled programs for the GPUs of its day. Neither runs on a later GPU: "
    "`HIP error: invalid device function`.",
    fix="Take a ROCm that knows the generation, for the driver and for the wheels or the image.",
    source="https://rocm.docs.amd.com/en/latest/compatibility/compatibility-matrix.html",
    bad=_AMD.format(driver="6.3", slurm="26.05", environment='image: "rocm/pytorch:rocm7.0_ubuntu24.04_py3.12"'),
    good=_AMD.format(driver="7.0", slurm="26.05", environment='image: "rocm/pytorch:rocm7.0_ubuntu24.04_py3.12"'),
)
def unknown_rocm_generation(file: ReviewedFile) -> Iterator[Problem]:
    """ROCm of a driver, of wheels or of an image before the first that knows a GPU generation of the nodes."""
    for value, rocm in _rocms(file):
        for found in generations(file):
            first = found.first_rocm
            if first and software.version_key(rocm) < software.version_key(first):
                yield flag(value, f"ROCm {rocm} does not know {found.name}: {first} is the first that does")


@stack_rule(
    "TW750",
    "An environment is for the GPUs of another vendor",
    why="Programs for CUDA find no GPU of AMD, and those for ROCm none of NVIDIA: `torch.cuda.is_available()` is "
    "false.",
    fix="Take the wheels or the image for the GPUs of the nodes.",
    source="https://pytorch.org/get-started/locally/",
    bad=_AMD.format(driver="7.0", slurm="26.05", environment='image: "pytorch/pytorch:2.9.1-cuda13.0-cudnn9-runtime"'),
    good=_AMD.format(driver="7.0", slurm="26.05", environment='image: "rocm/pytorch:rocm7.0_ubuntu24.04_py3.12"'),
)
def other_vendor(file: ReviewedFile) -> Iterator[Problem]:
    """An environment for CUDA or ROCm on a cluster whose GPUs are all of another vendor; `images` may be for others."""
    found = [card for _, card in cards(tree.items(tree.get(file.stack, "nodes")))]
    vendors = {card.vendor for card in found if card is not None}
    for item in tree.items(tree.get(file.stack, "environments")) if vendors and None not in found else ():
        written = [(value, vendor) for key, vendor in _VENDORS for value in scalars(item, key)]
        named = [(value, software.image_vendor(value.value)) for value in scalars(item, "image")]
        for value, vendor in [*written, *named]:
            if vendor and vendor not in vendors:
                yield flag(value, f"it is for GPUs of {vendor}, and no node has one")


@stack_rule(
    "TW751",
    "A release is not judged",
    "warning",
    why="The catalogue has no row for it, because it is newer than the facts or was never read. The other rules pass "
    "it without knowing whether it fits.",
    fix="Take newer facts with `trainworks catalog update`, write a row of your own, or take a release that is known.",
    source="trainworks catalog show 'Slurm 26.05'",
    bad=_AMD.format(driver="7.0", slurm="31.05", environment='image: "rocm/pytorch:rocm7.0_ubuntu24.04_py3.12"'),
    good=_AMD.format(driver="7.0", slurm="26.05", environment='image: "rocm/pytorch:rocm7.0_ubuntu24.04_py3.12"'),
)
def unjudged(file: ReviewedFile) -> Iterator[Problem]:
    """A release, a system or a GPU that the catalogue does not have, each once."""
    seen: set[str] = set()
    for value, message in [*_unjudged_releases(file), *_unjudged_system(file), *_unjudged_gpus(file)]:
        if message and message not in seen:
            seen.add(message)
            yield flag(value, message)


@stack_rule(
    "TW752",
    "The CUDA of an image is not known",
    "note",
    why="Its name says neither CUDA nor ROCm. Whether it has code for the GPUs, and runs on the driver, is not judged.",
    fix="Write the `cuda` of the image beside it; ROCm is read from a tag such as `rocm7.0`.",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    bad=_AMD.format(driver="7.0", slurm="26.05", environment='image: "registry.example/train:1"'),
    good=_AMD.format(driver="7.0", slurm="26.05", environment='image: "registry.example/train:1-rocm7.0"'),
)
def unknown_cuda(file: ReviewedFile) -> Iterator[Problem]:
    """`image` without `cuda`, whose name does not say it, on a cluster with GPUs."""
    with_gpus = any(True for _ in cards(tree.items(tree.get(file.stack, "nodes"))))
    for item in environments(file) if with_gpus else ():
        for image in scalars(item, "image") if tree.get(item, "cuda") is None else ():
            name = image.value
            if not (software.ngc_release(name) or software.image_cuda(name) or software.image_rocm(name)):
                yield flag(image, f"neither the name of {name} nor `cuda` says which CUDA or ROCm it has")


_VENDORS = (("cuda", "NVIDIA"), ("rocm", "AMD"))


def _rocms(file: ReviewedFile) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """ROCm of each driver, and of each environment: as written, or that in the name of its image."""
    for item in (file.stack, *tree.items(tree.get(file.stack, "nodes"))):
        yield from ((value, value.value) for value in scalars(item, "gpu", "rocm"))
    for item in environments(file):
        yield from ((value, value.value) for value in scalars(item, "rocm"))
        named = [(image, software.image_rocm(image.value)) for image in scalars(item, "image")]
        yield from ((image, rocm) for image, rocm in named if rocm)


def _unjudged_releases(file: ReviewedFile) -> Iterator[tuple[yaml.ScalarNode, str | None]]:
    """Every release that a rule compares, and why it is not judged."""
    paths: tuple[tuple[Component, tuple[str, ...]], ...] = (
        ("Slurm", ("slurm", "release")),
        ("PMIx", ("slurm", "pmix")),
        ("GPU operator", ("kubernetes", "gpu_operator")),
    )
    written = [(part, value, value.value) for part, path in paths for value in scalars(file.stack, *path)]
    written += [("driver", value, value.value) for value, _ in drivers(file)]
    written += [("PyTorch", value, value.value) for item in environments(file) for value in scalars(item, "torch")]
    written += [("CUDA", value, cuda) for value, cuda in cudas(file)]
    written += [("ROCm", value, rocm) for value, rocm in _rocms(file)]
    yield from ((value, software.not_judged(component, version)) for component, value, version in written)


def _unjudged_system(file: ReviewedFile) -> Iterator[tuple[yaml.ScalarNode, str | None]]:
    """An operating system without a row, and a kernel beside one whose generic kernel is not known."""
    for value in scalars(file.stack, "os"):
        system = release(value.value, "operating system")
        if system is None:
            yield value, f"{value.value} is not judged: the catalogue has no row for it"
        elif system.kernel is None and tree.scalar(tree.get(file.stack, "fabric", "driver")) == "doca-ofed":
            for kernel in scalars(file.stack, "fabric", "kernel"):
                yield kernel, f"kernel {kernel.value} is not judged: the generic one of {system.name} is not known"


def _unjudged_gpus(file: ReviewedFile) -> Iterator[tuple[yaml.ScalarNode, str | None]]:
    """GPUs of a generation without a row, and images of NVIDIA's catalogue of a month that was not read."""
    for value, card in cards(tree.items(tree.get(file.stack, "nodes"))):
        if card is None or software.generation(card.architecture) is None:
            yield value, f"the GPUs of {value.value} are not judged: the catalogue has no row for their generation"
    for item in environments(file):
        for image in scalars(item, "image") if tree.get(item, "cuda") is None else ():
            if software.ngc_release(image.value) and software.image_cuda(image.value) is None:
                yield image, f"{image.value} is not judged: the catalogue does not know the CUDA of that month"


@stack_rule(
    "TW753",
    "Racks of one NVLink domain share the topology of other nodes",
    "warning",
    why="A job that fits into an NVL72 rack is fastest on nodes of one, where Slurm places it if racks are blocks. A "
    "release before 25.05 has one topology for all nodes: blocks, where most nodes are in racks, or leaf switches. "
    "Later ones have one for each partition, and a partition over racks and other nodes goes by leaf switches.",
    fix='Take `release: "25.05"` or later, and give the racks partitions of their own: `nodes: [GROUP]`.',
    source="https://slurm.schedmd.com/topology.yaml.html",
    bad=_RACKS.format(release="26.05", nodes=""),
    good=_RACKS.format(release="26.05", nodes=", nodes: [gpu]"),
)
def racks_beside_others(file: ReviewedFile) -> Iterator[Problem]:
    """`slurm.release` with one topology, or a partition over both, where some compute nodes are in such racks."""
    items = tree.items(tree.get(file.stack, "nodes"))
    compute = [_group(each) for each in items if "compute" in _texts(each, "roles")]
    groups = {group: rack_of_group(group) is not None for group in compute}
    if len(set(groups.values())) < 2:
        return
    for value in scalars(file.stack, "slurm", "release"):
        if software.version_key(value.value) < software.FIRST_TOPOLOGIES:
            message = "has one topology for all nodes, and some are in racks of one NVLink domain"
            yield flag(value, f"Slurm {value.value} {message}")
            return
    for partition in tree.items(tree.get(file.stack, "slurm", "partitions")):
        names = _texts(partition, "nodes")
        found = {racked for group, racked in groups.items() if not names or any(map(group.is_called, names))}
        for name in scalars(partition, "name") if len(found) > 1 else ():
            yield flag(name, f"`{name.value}` has racks and other nodes: its jobs are placed by leaf switches")


def _group(item: yaml.Node) -> NodeGroup:
    """A group of nodes with its names, and its machine if the catalogue has that."""
    hosts, name, machine = (tree.scalar(tree.get(item, key)) for key in ("hosts", "name", "machine"))
    known = machine if machine and has("nodes", machine) else None
    return NodeGroup.model_construct(None, hosts=hosts or "", name=name, machine=known)


def _texts(item: yaml.Node, key: str) -> list[str]:
    return [text for each in tree.items(tree.get(item, key)) if (text := tree.scalar(each)) is not None]


def _torch(item: yaml.Node) -> Release | None:
    """The release of PyTorch of an environment; None without one, and for one that the catalogue does not have."""
    torch = tree.scalar(tree.get(item, "torch"))
    return release(".".join(torch.split(".")[:2]), "PyTorch") if torch else None
