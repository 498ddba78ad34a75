"""Recipe of a container image: a base by its digest, and wheels by their hashes.

Source: Containerfile(5), buildah-build(1), `pip install --require-hashes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainworks.config.stack_parts.images import ImageRecipe
from trainworks.errors import ArgumentError

_INDEX = "https://download.pytorch.org/whl"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==\S+")
_USER = 1000


def image_files(recipes: tuple[ImageRecipe, ...], locks: Mapping[str, str]) -> dict[str, str]:
    """Files of all images, by path.

    Args:
        recipes: of the stack.
        locks: text of each lock file, by its name in the recipes.

    Raises:
        ArgumentError: a lock file has a requirement without a hash, or no PyTorch.
    """
    files: dict[str, str] = {}
    for index, recipe in enumerate(recipes):
        lock = locks[recipe.lock]
        _check_lock(lock, recipe, f"images.{index}.lock")
        folder = f"images/{recipe.name}"
        files |= {
            f"{folder}/Containerfile": _containerfile(recipe),
            f"{folder}/requirements.lock": lock,
            f"{folder}/.containerignore": "# the context has the lock file alone: no key and no data get into a layer\n"
            "*\n!requirements.lock\n",
            f"{folder}/build.sh": _build(recipe),
        }
    return files


def _containerfile(recipe: ImageRecipe) -> str:
    lines = [
        "# the digest, and not the tag, which moves; Python alone: the wheels bring CUDA, cuDNN and NCCL, or ROCm",
        f"FROM {recipe.base}",
        "COPY requirements.lock /opt/requirements.lock",
        "# each file has the hash of the lock, so that no index can put another one in its place",
        "RUN python3 -m venv /opt/venv \\",
        "    && /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes \\",
        f"        --index-url {index_of(recipe)} --extra-index-url https://pypi.org/simple \\",
        "        --requirement /opt/requirements.lock",
        "ENV PATH=/opt/venv/bin:$PATH",
        *_accelerator_lines(recipe),
        "# a user by number, since Kubernetes cannot see whether a name is root",
        f"USER {_USER}:{_USER}",
        "WORKDIR /work",
    ]
    return "\n".join(lines) + "\n"


def _accelerator_lines(recipe: ImageRecipe) -> list[str]:
    if recipe.cuda is not None:
        return [
            "# the runtime mounts the driver of the node for these: `compute` for CUDA, `utility` for nvidia-smi",
            "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ]
    if recipe.rocm is not None:
        return ["# ROCm has no runtime of its own: start with --device=/dev/kfd --device=/dev/dri --group-add=render"]
    return []


def _build(recipe: ImageRecipe) -> str:
    return f"""#!/bin/bash
# Builds localhost/{recipe.name} and prints its digest; write that into `environments` of the stack, and not the name.
set -euo pipefail
cd "$(dirname "$0")"
buildah build ${{BUILDAH_OPTIONS:-}} --timestamp 0 --file Containerfile --tag localhost/{recipe.name} .
buildah images --digests --filter reference=localhost/{recipe.name}
"""


def index_of(recipe: ImageRecipe) -> str:
    """Index of PyTorch's wheels for the accelerator of a recipe.

    >>> from trainworks.config.stack_parts.images import ImageRecipe
    >>> index_of(ImageRecipe(name="a", base="b@sha256:" + "0" * 64, rocm="6.4", lock="a.lock"))
    'https://download.pytorch.org/whl/rocm6.4'
    """
    if recipe.cuda is not None:
        return f"{_INDEX}/cu{recipe.cuda.replace('.', '')}"
    return f"{_INDEX}/rocm{recipe.rocm}" if recipe.rocm is not None else f"{_INDEX}/cpu"


def _check_lock(text: str, recipe: ImageRecipe, argument: str) -> None:
    """Refuse a lock file that does not say which files are installed.

    Raises:
        ArgumentError: a requirement has no version or no hash, or PyTorch is not among them.
    """
    hint = "write it with `uv pip compile --generate-hashes requirements.in`"
    names = set()
    for entry in _entries(text):
        found = _REQUIREMENT.match(entry)
        if found is None or "--hash=sha256:" not in entry:
            raise ArgumentError(
                f"`{entry[:60]}` in {recipe.lock} has no version or no hash", argument=argument, hint=hint
            )
        names.add(found[1].lower())
    if "torch" not in names:
        raise ArgumentError(f"{recipe.lock} has no torch", argument=argument, hint=hint)


def _entries(text: str) -> list[str]:
    """Requirements of a lock file, each with its hashes on one line."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "--index-url", "--extra-index-url"))]
