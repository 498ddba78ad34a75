"""Images of a stack: containers by the digests of their bases and the hashes of their wheels, and one of a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainworks.config.source import read_text
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.software import ImageRecipe, SoftwareEnvironment
from trainworks.deploy.templating import render
from trainworks.errors import ArgumentError, UsageError

_INDEX = "https://download.pytorch.org/whl"
_ROLES = ("base", "fabric", "gpu")
"""Roles that a machine without its network and its drives can take."""


def read_locks(stack: Stack, folder: Path) -> dict[str, str]:
    """Text of the lock files that `images` names, which lie in the folder of the stack file.

    Raises:
        ArgumentError: one does not exist, or cannot be read.
    """
    found: dict[str, str] = {}
    for index, recipe in enumerate(stack.images):
        try:
            found[recipe.lock] = read_text(folder / recipe.lock, "lock file")
        except UsageError as error:
            raise ArgumentError(error.message, argument=f"images.{index}.lock", hint=error.hint) from None
    return found


def image_files(recipes: tuple[ImageRecipe, ...], locks: Mapping[str, str]) -> dict[str, str]:
    """Files of all container images by path: each by the digest of its base and the hashes of its wheels.

    Source: Containerfile(5), buildah-build(1), `pip install --require-hashes`.

    `locks` has the text of each lock file, by its name in the recipes.

    Raises:
        ArgumentError: a lock file has a requirement without a hash, or no PyTorch.
    """
    files: dict[str, str] = {}
    for index, recipe in enumerate(recipes):
        lock = locks[recipe.lock]
        argument = f"images.{index}.lock"
        # refuse a lock file that does not say which files are installed
        hint = "write it with `uv pip compile --generate-hashes requirements.in`"
        names = set()
        # a requirement and its hashes are one line, over several of the file
        lines = (line.strip() for line in re.sub(r"\\\n\s*", " ", lock).splitlines())
        for entry in lines:
            if not entry or entry.startswith(("#", "--index-url", "--extra-index-url")):
                continue
            found = re.match(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==\S+", entry)
            if found is None or "--hash=sha256:" not in entry:
                raise ArgumentError(
                    f"`{entry[:60]}` in {recipe.lock} has no version or no hash", argument=argument, hint=hint
                )
            names.add(found[1].lower())
        if "torch" not in names:
            raise ArgumentError(f"{recipe.lock} has no torch", argument=argument, hint=hint)
        folder = f"images/{recipe.name}"
        files |= {
            f"{folder}/Containerfile": render("images/Containerfile", recipe=recipe, index=index_of(recipe)),
            f"{folder}/requirements.lock": lock,
            f"{folder}/.containerignore": render("images/containerignore"),
            f"{folder}/build.sh": render("images/build.sh", recipe=recipe),
        }
    return files


def index_of(recipe: ImageRecipe | SoftwareEnvironment) -> str:
    """Index of PyTorch's wheels for the accelerator of an image or an environment.

    >>> from trainworks.config.stack_parts.software import ImageRecipe
    >>> index_of(ImageRecipe(name="a", base="b@sha256:" + "0" * 64, rocm="6.4", lock="a.lock"))
    'https://download.pytorch.org/whl/rocm6.4'
    """
    if recipe.cuda is not None:
        return f"{_INDEX}/cu{recipe.cuda.replace('.', '')}"
    return f"{_INDEX}/rocm{recipe.rocm}" if recipe.rocm is not None else f"{_INDEX}/cpu"


def machine_image_files(stack: Stack) -> dict[str, str]:
    """Files by path, for the first group of compute nodes; empty without `machine_image`.

    The roles of the image are those of a node that runs, so that an image and a repaired node do not differ.

    Source: Packer's HCL2, its QEMU builder and its Ansible provisioner.
    """
    if stack.machine_image is None:
        return {}
    group = next(stack.groups("compute"))
    name = next(name for name, each in stack.group_names.items() if each == group)
    facts = {"node": group.names[0], "group": name, "roles": _ROLES}
    packer = render("images/node.pkr.hcl", image=stack.machine_image, admin=stack.admin, **facts)
    return {"images/machine/node.pkr.hcl": packer}
