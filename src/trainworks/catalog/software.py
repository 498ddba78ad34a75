"""Judge which releases of drivers, CUDA, PyTorch, operating systems and Slurm fit together, and have support.

`deploy check` and `review` judge by these functions. Support is judged in the month that the facts were read, `AS_OF`,
so that a release of Trainworks always gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from trainworks.catalog.catalog import find_row, has
from trainworks.catalog.facts import Component, Release
from trainworks.catalog.rows import read_rows

AS_OF = "2026-11"
"""Month in which the facts were read."""
FIRST_TOPOLOGIES = (25, 5)
"""Release of Slurm from which a partition may have a topology of its own."""


def release(name: str) -> Release:
    """The release of that name or alias.

    Raises:
        UsageError: there is none; the hint has the nearest.

    >>> release("ubuntu24.04").ends
    '2029-04'
    """
    return Release.model_validate(find_row(name, "software").facts())


def releases(component: Component) -> list[Release]:
    """All releases of a component, in the order of the catalogue."""
    found = (Release.model_validate(row.facts()) for row in read_rows("software").values())
    return [each for each in found if each.component == component]


@cache
def slurm_of_systems() -> dict[str, str]:
    """Release of Slurm in the packages of each operating system, by the name of its image.

    >>> slurm_of_systems()["ubuntu:22.04"]
    '21.08'
    """
    systems = [each for each in releases("operating system") if each.slurm]
    return {each.name.lower().replace(" ", ":"): each.slurm or "" for each in systems}


def is_over(found: Release) -> bool:
    """True if free support ended before `AS_OF`."""
    return found.ends is not None and found.ends < AS_OF


def ends_soon(found: Release) -> bool:
    """True if free support ends within a year from `AS_OF`, and has not ended."""
    year, month = AS_OF.split("-")
    return found.ends is not None and not is_over(found) and found.ends < f"{int(year) + 1}-{month}"


def longest_supported(component: Component) -> Release:
    """The release of a component whose support ends last.

    >>> longest_supported("driver").name
    'R620'
    """
    return max(releases(component), key=lambda each: each.ends or "")


def driver_branch(version: str) -> int:
    """Branch of a driver version: the digits before the first dot, `580` of `580.126.18` or `R580`."""
    found = re.match(r"[rR]?(\d+)", version)
    return int(found[1]) if found else 0


def support_end(component: Component, version: str) -> str | None:
    """Last month of support of a release; None if it is supported, or not known.

    A release without a row has ended, in a month that is not known, if it is older than one that ended: `""`. For
    drivers it is enough to be older than the newest branch, because those between the rows are new feature branches,
    which NVIDIA corrects until the next one.

    >>> support_end("driver", "525"), support_end("driver", "580.126.18"), support_end("driver", "590")
    ('2023-12', None, '')
    >>> support_end("Slurm", "20.11.9"), support_end("Slurm", "26.11"), support_end("GPU operator", "v23.9.0")
    ('', None, '')
    """
    key, known = _key(component, version), _rows(component)
    if key in known:
        return known[key].ends if is_over(known[key]) else None
    older = [each for each, row in known.items() if component == "driver" or is_over(row)]
    return "" if key and older and key < max(older) else None


def not_judged(component: Component, version: str) -> str | None:
    """Why a release can be neither passed nor refused: the catalogue has no row for it; None if it can be.

    >>> not_judged("PMIx", "6.0"), not_judged("PMIx", "5.0.3"), not_judged("Slurm", "20.11")
    ('PMIx 6.0 is not judged: the catalogue knows PMIx 3 to 5', None, None)
    """
    key, known = _key(component, version), _rows(component)
    if key in known or support_end(component, version) is not None:
        return None
    first, last = (known[end(known)].name for end in (min, max))
    what = "NVIDIA driver" if component == "driver" else component
    return f"{what} {version} is not judged: the catalogue knows {first} to {last.removeprefix(f'{component} ')}"


def _rows(component: Component) -> dict[tuple[int, ...], Release]:
    return {_key(component, each.name): each for each in releases(component)}


def _key(component: Component, version: str) -> tuple[int, ...]:
    """Numbers that name a row: a driver branch, the major release of CUDA and PMIx, else year and month or x.y."""
    return version_key(version)[: 1 if component in ("driver", "CUDA", "PMIx") else 2]


def least_driver(cuda: str) -> int | None:
    """Oldest driver branch that runs programs of a CUDA release; None if its major release is not known.

    >>> least_driver("12.8"), least_driver("13.0")
    (525, 580)
    """
    major = cuda.partition(".")[0]
    return next((each.first_driver for each in releases("CUDA") if each.name == f"CUDA {major}"), None)


def generation(architecture: str | None) -> Release | None:
    """The GPU generation of an accelerator's architecture; None if the catalogue has no row for it.

    >>> found = generation("Blackwell Ultra")
    >>> found and found.kernel_module
    'open'
    """
    names = (architecture or "", (architecture or "").partition(" ")[0])
    found = next((release(name) for name in names if has("software", name)), None)
    return found if found and found.component == "GPU generation" else None


def ngc_release(image: str) -> str | None:
    """Month of an image of NVIDIA's catalogue, which brings the libraries of the driver that its CUDA needs.

    >>> ngc_release("nvcr.io/nvidia/pytorch:24.01-py3"), ngc_release("nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04")
    ('24.01', None)
    """
    named = re.search(r"\bnvcr\.io/nvidia/[\w./-]+:(\d\d\.\d\d)-", image)
    return named[1] if named else None


def image_cuda(image: str) -> str | None:
    """CUDA of an image: by its month in NVIDIA's catalogue, else as its name has it; None if neither says it.

    An image of NVIDIA's catalogue before the first row, or of a month after `AS_OF`, is not known.

    >>> image_cuda("nvcr.io/nvidia/pytorch:24.01-py3"), image_cuda("nvidia/cuda:12.8.1-runtime-ubuntu24.04")
    ('12.3', '12.8')
    >>> image_cuda("pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime"), image_cuda("train:2.9-py312-cu130")
    ('12.1', '13.0')
    """
    if month := ngc_release(image):
        rows = sorted(releases("NGC image"), key=lambda each: version_key(each.name), reverse=True)
        is_read = version_key(f"20{month}") <= version_key(AS_OF)
        return next((each.cuda for each in rows if is_read and version_key(each.name) <= version_key(month)), None)
    named = re.search(r"(?:\b|_)(?:cuda[-_:]?(\d+\.\d+)|cu(\d\d)(\d)(?!\d))", image)
    return None if named is None else named[1] or f"{named[2]}.{named[3]}"


def image_rocm(image: str) -> str | None:
    """ROCm of an image, as its name has it.

    >>> image_rocm("rocm/pytorch:rocm7.0.2_ubuntu24.04_py3.12"), image_rocm("rocm/dev-ubuntu-24.04:6.4.1-complete")
    ('7.0', '6.4')
    """
    named = re.search(r"(?:\b|_)rocm[-_]?(\d+\.\d+)|(?:^|/)rocm/dev-[\w.-]+:(\d+\.\d+)", image)
    return None if named is None else named[1] or named[2]


def image_vendor(image: str) -> str | None:
    """Whose GPUs an image is for, by its CUDA, its ROCm or its publisher; None if the name does not say it.

    >>> image_vendor("rocm/vllm:latest"), image_vendor("nvcr.io/nvidia/pytorch:26.01-py3"), image_vendor("python:3.12")
    ('AMD', 'NVIDIA', None)
    """
    if image_rocm(image) or re.search(r"(?:^|/)rocm/", image):
        return "AMD"
    return "NVIDIA" if image_cuda(image) or re.search(r"(?:^|/)nvidia/", image) else None


def wheel_builds() -> list[str]:
    """CUDA releases that some release of PyTorch has wheels for, oldest first.

    >>> "12.0" in wheel_builds(), "12.1" in wheel_builds()
    (False, True)
    """
    return sorted({cuda for each in releases("PyTorch") for cuda in each.builds}, key=version_key)


def nearest_build(cuda: str, builds: Sequence[str]) -> str:
    """The newest of some CUDA releases up to this one, of the same major release; else the next one.

    >>> nearest_build("12.0", wheel_builds()), nearest_build("12.5", wheel_builds()), nearest_build("12.0", ["11.8"])
    ('12.1', '12.4', '11.8')
    """
    same = [each for each in builds if each.partition(".")[0] == cuda.partition(".")[0]] or builds
    older = [each for each in same if version_key(each) <= version_key(cuda)]
    return older[-1] if older else same[0]


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, to compare by: (12, 8) of `12.8`."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def base_system(image: str) -> Release | None:
    """The operating system that the name of an image names; None if it names none of the catalogue.

    >>> base_system("nvidia/cuda:11.6.0-cudnn8-runtime-ubuntu20.04").name
    'Ubuntu 20.04'
    """
    words = re.sub(r"\b(ubuntu|centos|debian|rockylinux):", r"\1", image.lower())
    for found in releases("operating system"):
        name = found.name.lower().replace("rocky ", "rockylinux").replace(" ", "")
        if re.search(rf"(?:^|[-/:]){re.escape(name)}(?:$|-)", words):
            return found
    return None
