"""Recipes of images: a container by the digest of its base and the hashes of its wheels, and a compute node by Packer.

The roles of a machine's image are those of a node that runs, so that an image and a repaired node do not differ.

Source: Containerfile(5), buildah-build(1), `pip install --require-hashes`; Packer's HCL2, its QEMU builder and its
Ansible provisioner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.software import ImageRecipe
from trainworks.errors import ArgumentError

_INDEX = "https://download.pytorch.org/whl"
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

    >>> from trainworks.config.stack_parts.software import ImageRecipe
    >>> index_of(ImageRecipe(name="a", base="b@sha256:" + "0" * 64, rocm="6.4", lock="a.lock"))
    'https://download.pytorch.org/whl/rocm6.4'
    """
    if recipe.cuda is not None:
        return f"{_INDEX}/cu{recipe.cuda.replace('.', '')}"
    return f"{_INDEX}/rocm{recipe.rocm}" if recipe.rocm is not None else f"{_INDEX}/cpu"


_ROLES = ("base", "fabric", "gpu")
"""Roles that a machine without its network and its drives can take."""


def machine_image_files(stack: Stack) -> dict[str, str]:
    """Files by path; empty without `machine_image`."""
    return {} if stack.machine_image is None else {"images/machine/node.pkr.hcl": _packer(stack)}


def _packer(stack: Stack) -> str:
    image = stack.machine_image
    assert image is not None
    first = next(name for group in stack.groups("compute") for name in group.names)
    return f"""# packer init . && packer build node.pkr.hcl, in this folder, with QEMU and the keys of your ssh agent
packer {{
  required_plugins {{
    qemu    = {{ source = "github.com/hashicorp/qemu", version = "~> 1.1" }}
    ansible = {{ source = "github.com/hashicorp/ansible", version = "~> 1.1" }}
  }}
}}

source "qemu" "node" {{
  # a cloud image is a drive, and no installer; the checksum is of the file, whose name stays while it changes
  iso_url      = "{image.source}"
  iso_checksum = "{image.checksum}"
  disk_image   = true
  disk_size    = "{image.disk // 2**20}M"
  format       = "qcow2"
  accelerator  = "kvm"
  headless     = true
  # cloud-init takes the user of the project from a drive of this label, so that no password is in the image
  cd_label     = "cidata"
  cd_content   = {{ "user-data" = file("../../cloud-init/user-data.yaml"), "meta-data" = "instance-id: image" }}
  ssh_username = "{stack.admin}"
  ssh_agent_auth   = true
  # a key of a host in an image would be the key of every node
  shutdown_command = "sudo sh -c 'cloud-init clean --logs --machine-id; rm -f /etc/ssh/ssh_host_*; shutdown -P now'"
}}

build {{
  sources = ["source.qemu.node"]
  provisioner "ansible" {{
    playbook_file = "../../site.yaml"
    # the name of a compute node, whose groups and variables the roles look up
    host_alias      = "{first}"
    groups          = ["compute"]
    # neither mounts nor Slurm: they belong to a node of the cluster, and not to an image
    extra_arguments = ["--tags", "{",".join(_ROLES)}", "--extra-vars", "@../../group_vars/all.yaml"]
  }}
}}
"""
