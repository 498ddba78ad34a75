"""Judge which releases of drivers, CUDA, PyTorch, operating systems and Slurm fit together, and have support.

`deploy check` and `review` judge by these functions. Support is judged in the month that the facts were read, `AS_OF`,
so that a release of Trainworks always gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def driver_end(branch: int) -> str | None:
    """Last month of support of a driver branch; None if it is supported, or newer than all that are known.

    A branch without a row that is older than the newest one has ended, in a month that is not known: `""`. Branches
    between those of the table are new feature branches, which NVIDIA corrects until the next one.

    >>> driver_end(525), driver_end(580), driver_end(515), driver_end(590)
    ('2023-12', None, '', '')
    """
    known = {driver_branch(each.name): each for each in releases("driver")}
    if branch in known:
        return known[branch].ends if is_over(known[branch]) else None
    return "" if branch < max(known) else None


def operator_end(version: str) -> str | None:
    """Last month of corrections of a GPU operator, as `driver_end`; one before the first row has ended, too.

    >>> operator_end("v25.10.1"), operator_end("v26.7.0"), operator_end("v23.9.0")
    ('2026-07', None, '')
    """
    key = version_key(version)[:2]
    known = {version_key(each.name): each for each in releases("GPU operator")}
    if key in known:
        return known[key].ends if is_over(known[key]) else None
    return "" if key < min(known) else None


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
    name = (architecture or "").partition(" ")[0]
    found = release(name) if has("software", name) else None
    return found if found and found.component == "GPU generation" else None


def image_cuda(image: str) -> str | None:
    """CUDA of an image of NVIDIA's catalogue, by its release; None for another image, and before the first row.

    >>> image_cuda("nvcr.io/nvidia/pytorch:24.01-py3"), image_cuda("python:3.12")
    ('12.3', None)
    """
    named = re.search(r"\bnvcr\.io/nvidia/[\w./-]+:(\d\d\.\d\d)-", image)
    rows = sorted(releases("NGC image"), key=lambda each: version_key(each.name), reverse=True)
    key = version_key(named[1]) if named else ()
    return next((each.cuda for each in rows if key and version_key(each.name) <= key), None)


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
