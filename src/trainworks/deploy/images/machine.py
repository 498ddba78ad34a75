"""A Packer file that builds an image of a compute node with the roles of the project.

The roles are the same as those of a node that runs, so that an image and a repaired node do not differ.

Source: Packer's HCL2, its QEMU builder and its Ansible provisioner.
"""

from __future__ import annotations

from trainworks.config.stack import Stack

_ROLES = ("base", "fabric", "gpu")
"""Roles that a machine without its network and its drives can take."""


def machine_image_files(stack: Stack) -> dict[str, str]:
    """Files by path; empty without `machine_image`."""
    if stack.machine_image is None:
        return {}
    return {"images/machine/node.pkr.hcl": _packer(stack)}


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
