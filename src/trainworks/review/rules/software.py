"""TW7xx: packages, images and builds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainworks.catalog import software
from trainworks.catalog.left_out import term_of_package
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.readers.shell import Command
from trainworks.review.rule import rule

_WHEELS = re.compile(r"(?<![A-Za-z0-9_])whl/(?:nightly/)?cu(\d+)(?![A-Za-z0-9])")
_TORCH = re.compile(r"torch(?:vision|audio)?")
_NCCL_BUILD = re.compile(
    r"nccl[_ -]?v?(\d)\.(\d+)(?:\.\d+)?(?:-\d+\+cuda|\s*(?:的|for|with|built for|\(|\+)\s*CUDA\s*)12(?!\d)",
    re.IGNORECASE,
)
_FIRST_NCCL_OF_CUDA_12 = (2, 16)


@rule(
    "TW701",
    "A wheel index that does not exist",
    why="PyTorch was built for CUDA 12.1, 12.4, 12.6, 12.8 and 12.9, and for no other CUDA 12. pip finds nothing at "
    "this address; with `--extra-index-url` it takes another build from PyPI without a message.",
    fix="Take an index that exists, such as `https://download.pytorch.org/whl/cu126`; the driver decides what runs, "
    "not the installed toolkit.",
    source="https://github.com/pytorch/pytorch/blob/main/RELEASE.md",
    file="requirements.txt",
    bad="--extra-index-url https://download.pytorch.org/whl/cu120\ntorch\n",
    good="--index-url https://download.pytorch.org/whl/cu126\ntorch\n",
)
def missing_wheel_index(file: ReviewedFile) -> Iterator[Problem]:
    """An index for a CUDA 12 without a build of PyTorch, in a command, an image, a list or a text."""
    if file.kind not in ("python", "json", "slurm"):
        for number, line in enumerate(file.lines, start=1):
            found = _WHEELS.search(line)
            version = f"{found[1][:2]}.{found[1][2:]}" if found else ""
            is_missing = version.startswith("12.") and version not in software.wheel_builds()
            if found and is_missing and not line.lstrip().startswith("#"):
                pins = file.allowed_releases("torch")
                known = [
                    each for each in software.releases("PyTorch") if all(p.allows(each.name.split()[-1]) for p in pins)
                ]
                builds = sorted({cuda for each in known for cuda in each.builds}, key=software.version_key)
                instead = software.nearest_build(version, builds).replace(".", "") if builds else found[1]
                edits = file.edit(number, found.start() + 1, f"/cu{found[1]}", f"/cu{instead}") if builds else ()
                yield Problem(number, found.start() + 1, f"PyTorch has no wheels for CUDA {version}", edits)


@rule(
    "TW702",
    "pip chooses another build",
    "warning",
    why="pip treats all indexes alike and takes the newest version of any. Without a pinned version, torch comes "
    "from PyPI, which has a newer build for another CUDA.",
    fix="Use `--index-url` in place of `--extra-index-url`, or pin the build: `torch==2.7.1+cu126`.",
    source="https://pip.pypa.io/en/stable/cli/pip_install/",
    file="install.sh",
    bad="pip install torch torchvision --extra-index-url https://download.pytorch.org/whl/cu116\n",
    good="pip install torch torchvision --index-url https://download.pytorch.org/whl/cu116\n",
)
def extra_index(file: ReviewedFile) -> Iterator[Problem]:
    """`pip install torch`, without a version, with an extra index of PyTorch."""
    for command in file.commands:
        names = _installed(command)
        index = next((w for w in command.words if _WHEELS.search(w.text)), None)
        extra = any(word.text.startswith("--extra-index-url") for word in command.words)
        if index and extra and any(_TORCH.fullmatch(name) for name in names):
            alone = all(_TORCH.fullmatch(name) for name in names)
            option = next(w for w in command.words if w.text.startswith("--extra-index-url"))
            edits = file.edit(option.line, option.column, "--extra-index-url", "--index-url") if alone else ()
            message = "the extra index has no priority: pip takes torch from PyPI"
            yield Problem(index.line, index.column, message, edits)


@rule(
    "TW703",
    "The base image is out of support",
    "note",
    why="The distribution of the image gets no security updates any more, and its packages disappear from the mirrors.",
    fix="Take an image of a release that is supported, such as `ubuntu24.04`.",
    source="https://github.com/perfsonar/project/wiki/Calendar (dates of the distributions)",
    file="Dockerfile",
    bad="FROM nvidia/cuda:11.6.0-cudnn8-runtime-ubuntu20.04\n",
    good="FROM nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04\n",
)
def old_base_image(file: ReviewedFile) -> Iterator[Problem]:
    """A `FROM` with the name of such a release."""
    for number, line in enumerate(file.lines if file.kind in ("dockerfile", "text") else (), start=1):
        found = re.match(r"\s*(?:\d+\.\s+)?FROM\s+(\S+)", line)
        base = software.base_system(found[1]) if found else None
        if found and base and software.is_over(base):
            yield Problem(number, found.start(1) + 1, f"support of {base.name} ended in {base.ends}")


@rule(
    "TW704",
    "UCX is configured before autogen",
    why="A clone of the repository has no `configure` script: `contrib/configure-release` fails. Only the tarball of "
    "a release has it.",
    fix="Run `./autogen.sh` first.",
    source="https://github.com/openucx/ucx#release-builds",
    file="install.sh",
    bad="git clone https://github.com/openucx/ucx.git\ncd ucx\n./contrib/configure-release --prefix=/opt/ucx\n",
    good="git clone https://github.com/openucx/ucx.git\ncd ucx\n./autogen.sh\n"
    "./contrib/configure-release --prefix=/opt/ucx\n",
)
def missing_autogen(file: ReviewedFile) -> Iterator[Problem]:
    """A clone of UCX and its configuration, without autogen.sh in the file."""
    if not re.search(r"git clone\b[^\n]*/ucx(?:\.git)?\b", file.text) or "autogen" in file.text:
        return
    inline = re.search(r"contrib/configure-release", file.text) if file.kind == "text" else None
    if inline and not any("configure" in command.texts[0] for command in file.commands):
        number = file.text.count("\n", 0, inline.start()) + 1
        yield Problem(number, 1, "a clone of UCX needs `./autogen.sh` before this")
    for command in file.commands:
        word = command.words[0]
        if word.text.endswith("contrib/configure-release") or word.text == "./configure":
            edits = (Edit(word.line, word.column, 0, "./autogen.sh && "),)
            yield word.problem("a clone of UCX needs `./autogen.sh` before this", edits)


@rule(
    "TW711",
    "NCCL has no build for this CUDA",
    why="NCCL has archives for CUDA 12 since 2.16; an older one with CUDA 12 does not exist. The archive of a release "
    "is behind a login, and has a folder `nccl_...` and none named `cuda`.",
    fix="Install the packages libnccl2 and libnccl-dev of NVIDIA's repository, or use the NCCL in PyTorch's wheel.",
    source="https://docs.nvidia.com/deeplearning/nccl/release-notes/",
    file="install.sh",
    bad="tar xf nccl_2.14.3-1+cuda12.0_x86_64.txz\n",
    good="tar xf nccl_2.18.5-1+cuda12.2_x86_64.txz\n",
)
def missing_nccl_build(file: ReviewedFile) -> Iterator[Problem]:
    """The name of an archive, or a release in a sentence, of NCCL before 2.16 with CUDA 12."""
    for number, line in enumerate(file.lines if file.kind in ("shell", "text", "dockerfile") else (), start=1):
        for found in _NCCL_BUILD.finditer(line):
            if (int(found[1]), int(found[2])) < _FIRST_NCCL_OF_CUDA_12:
                yield Problem(number, found.start() + 1, f"NCCL {found[1]}.{found[2]} was not built for CUDA 12")


@rule(
    "TW705",
    "The driver branch is out of support",
    "note",
    why="NVIDIA supports the driver branches R580, R595 and R620 (November 2026); older ones get no corrections, and "
    "do not know later GPUs. R535 ended in June 2026.",
    fix="Install a long-term branch: R580 is supported until June 2028.",
    source="https://docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html",
    file="install.sh",
    bad="sudo apt-get install -y nvidia-driver-525\n",
    good="sudo apt-get install -y nvidia-driver-580\n",
)
def old_driver(file: ReviewedFile) -> Iterator[Problem]:
    """The installation of a package `nvidia-driver-N` of an older branch."""
    for command in file.commands:
        for word in command.words if "install" in command.texts[:4] else ():
            found = re.fullmatch(r"nvidia-driver-(\d{3})(?:-server|-open)*(?:=.*)?", word.text)
            if found and software.support_end("driver", found[1]) is not None:
                yield word.problem(f"the driver branch R{found[1]} is out of support")


@rule(
    "TW706",
    "Software that Trainworks leaves out",
    "note",
    why="It was retired, has no releases any more, or is for serving; the message says which. A job that depends on it "
    "does not get newer CUDA, drivers or GPUs.",
    fix="Do what the message says instead; [the page of what is left out](../reference/left-out.md) has all.",
    source="trainworks catalog show Horovod",
    file="train.py",
    bad="import horovod.torch as hvd\n\nhvd.init()\n",
    good="import torch.distributed as dist\n\ndist.init_process_group()\n",
    reads_any_code=True,
)
def left_out_software(file: ReviewedFile) -> Iterator[Problem]:
    """An import, an installation, a start or a requirement of a package that is left out."""
    pattern = _NAMING.get(file.kind)
    for number, line in enumerate(file.lines if pattern else (), start=1):
        if pattern and (found := pattern.match(line)):
            yield from _left_out(found[1], number, found.start(1) + 1)
    for command in file.commands:
        installed = set(_installed(command))
        for index, word in enumerate(command.words):
            if index == 0 or word.text in installed:
                yield from _left_out(word.text, word.line, word.column)


_NAMING = {"python": re.compile(r"\s*(?:import|from)\s+(\w+)"), "requirements": re.compile(r"\s*([A-Za-z0-9][\w.-]*)")}
"""Lines that name a package, by the kind of the file."""


def _left_out(name: str, line: int, column: int) -> Iterator[Problem]:
    """The problem of a package, a module or a program, which may have a version or a path."""
    term = term_of_package(re.split(r"[=<>\[!~]", name.rpartition("/")[2], maxsplit=1)[0])
    if term is not None:
        yield Problem(line, column, f"{term.name} {term.meaning}: {term.instead}")


def _installed(command: Command) -> list[str]:
    """Names that a `pip install` installs; none for another command."""
    texts = command.texts
    if "install" not in texts or not any(re.fullmatch(r"pip3?", text) for text in texts[:3]):
        return []
    return [text for text in texts[texts.index("install") + 1 :] if not text.startswith("-") and "://" not in text]
