# packer init . && packer build node.pkr.hcl, in this folder, with QEMU and the keys of your ssh agent
packer {
  required_plugins {
    qemu    = { source = "github.com/hashicorp/qemu", version = "~> 1.1" }
    ansible = { source = "github.com/hashicorp/ansible", version = "~> 1.1" }
  }
}

source "qemu" "node" {
  # a cloud image is a drive, and no installer; the checksum is of the file, whose name stays while it changes
  iso_url      = "https://cloud-images.ubuntu.com/noble/20251113/noble-server-cloudimg-amd64.img"
  iso_checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
  disk_image   = true
  disk_size    = "40960M"
  format       = "qcow2"
  accelerator  = "kvm"
  headless     = true
  # cloud-init takes the user of the project from a drive of this label, so that no password is in the image
  cd_label     = "cidata"
  cd_content   = { "user-data" = file("../../cloud-init/user-data.yaml"), "meta-data" = "instance-id: image" }
  ssh_username = "deploy"
  ssh_agent_auth   = true
  # a key of a host in an image would be the key of every node
  shutdown_command = "sudo sh -c 'cloud-init clean --logs --machine-id; rm -f /etc/ssh/ssh_host_*; shutdown -P now'"
}

build {
  sources = ["source.qemu.node"]
  provisioner "ansible" {
    playbook_file = "../../site.yaml"
    # the name of a compute node, whose groups and variables the roles look up
    host_alias      = "gpu01"
    groups          = ["compute", "nodes_gpu"]
    # neither mounts nor Slurm: they belong to a node of the cluster, and not to an image
    extra_arguments = ["--tags", "base,fabric,gpu", "--extra-vars", "@../../group_vars/all.yaml", "--extra-vars", "@../../group_vars/nodes_gpu.yaml"]
  }
}
