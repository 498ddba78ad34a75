"""The Ansible project of a stack: roles, inventory, variables, and the files that the roles copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import TypedDict, get_args

from trainworks import __version__
from trainworks.catalog.stack_cluster import group_fabric
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.storage import MountKind
from trainworks.config.stack_parts.words import Role
from trainworks.deploy import file_systems, racks
from trainworks.deploy.delivered import delivered_files, exporters
from trainworks.deploy.directory import HOMES, directory_files, directory_variables
from trainworks.deploy.fabric.switches import rails, switch_files
from trainworks.deploy.hardware import architectures, gpu_of
from trainworks.deploy.images import image_files, index_of, machine_image_files
from trainworks.deploy.kubernetes import bundle_files
from trainworks.deploy.layers import (
    by_host,
    firewall_of,
    operating_system,
    own_files,
    packages_of,
    with_own_lines,
    with_own_plays,
    with_own_variables,
)
from trainworks.deploy.node_groups import NO_GROUP, container_runtimes, group_variables, nccl_settings
from trainworks.deploy.slurm_conf import accounts_script, check_script, node_scripts, slurm_files, slurmdbd_template
from trainworks.deploy.templating import render
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.listening import EXPORTER_PORTS, ListenAddress
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.plan.network.nccl import ROCE, rail_settings

_CLIENT_PORTS: dict[MountKind, str] = {"lustre": "988/tcp", "beegfs": "8004/udp", "scale": "1191/tcp"}
"""Ports of clients that the servers of a file system call back at."""
_RAIL_FILES = {"networkd": "network", "networkmanager": "nmconnection"}
"""Kind of the file with the address of a rail, by what reads it."""
_HIGHEST_PRIORITY = 14
"""Highest priority of a subnet manager of InfiniBand."""


def project_files(stack: Stack, monitoring: Mapping[str, str], locks: Mapping[str, str]) -> dict[str, str]:
    """Text of every file of the project, by its path.

    `monitoring` has the files for Prometheus, Alertmanager and Grafana by path, `locks` the text of the lock files that
    `images` name.

    Raises:
        ArgumentError: the operating system has no packages for a part of the stack, or an environment does not run on
            all nodes.
    """
    if len(found := architectures(stack)) > 1 and any(each.torch for each in stack.environments):
        message = f"compute nodes are {' and '.join(found)}, and a virtual environment is for one of them"
        hint = "write environments with an `image` for both, or give each kind of nodes a stack file of its own"
        raise ArgumentError(message, argument="environments", hint=hint)
    slurm, units = _slurm_files(stack), file_systems.mount_units(stack)
    files = dict(_static(resources.files("trainworks.deploy").joinpath("ansible")))
    variables = _variables(stack, packages_of(stack), slurm, monitoring)
    files["site.yaml"] = with_own_plays(files["site.yaml"], stack)
    files |= {
        "inventory.yaml": to_yaml(inventory(stack)),
        "group_vars/all.yaml": to_yaml({**with_own_variables(variables, stack), **NO_GROUP}),
        "cloud-init/user-data.yaml": cloud_init(stack),
        ".gitignore": "# the key of munge, passwords, and dumps of the database\nsecrets/\nbackups/\n",
    }
    files |= {f"roles/scheduler/files/{name}": text for name, text in slurm.items()}
    files |= {f"roles/gpu/files/{name}": text for name, text in racks.imex_files(stack).items()}
    files |= {f"roles/storage/files/{unit.path}": unit.text for unit in units}
    files |= {f"roles/storage/files/{name}": text for name, text in file_systems.beegfs_files(stack).items()}
    files |= _group_files(stack) | _fabric_files(stack)
    files |= image_files(stack.images, locks) | machine_image_files(stack) | bundle_files(stack)
    files |= {f"roles/monitoring/files/{name}": text for name, text in monitoring.items()}
    files |= directory_files(stack)
    if stack.accounting:
        files["roles/scheduler/templates/slurmdbd.conf.j2"] = slurmdbd_template(stack)
        files["roles/scheduler/files/accounts.sh"] = accounts_script(stack)
    files |= {f"roles/storage/files/{host}/exports": text for host, text in file_systems.exports(stack).items()}
    by_host = delivered_files(stack, files, {}) if stack.own.below("files") else {}
    delivered = {file.path for host in by_host.values() for file in host.values()}
    return dict(sorted((files | own_files(stack, files, delivered)).items()))


def _slurm_files(stack: Stack) -> dict[str, str]:
    """Files of /etc/slurm on every node, with the lines of the layers, by name; none without Slurm.

    Raises:
        UsageError: a line sets what slurm.conf has already, or the stack has no Slurm.
    """
    if stack.slurm is None:
        if stray := [*stack.own.below("slurm.d")]:
            place = f"{stack.own.folder}/slurm.d/{stray[0]}"
            raise UsageError("the stack has no slurm.conf", place=place, hint="remove the file, or add `slurm`")
        return {}
    files = slurm_files(stack)
    return files | {"slurm.conf": with_own_lines(files["slurm.conf"], stack)}


def _group_files(stack: Stack) -> dict[str, str]:
    """Variables of each group of compute nodes and its files of the roles `scheduler`, `tuning` and `fabric`, by path.

    Without Slurm, the check of a node is a script of its own.
    """
    files: dict[str, str] = {}
    for name, group in stack.group_names.items():
        if "compute" in group.roles:
            scripts = node_scripts(stack, group) if stack.slurm is not None else {}
            own = {key: value for key, value in stack.own.variables.items() if key in NO_GROUP}
            found = {"slurm_group_files": list(scripts), **group_variables(stack, group)}
            found |= {key: value for key, value in own.items() if key in found}
            files |= {f"group_vars/{name}.yaml": to_yaml({"node_group": name, **found})}
            files |= {f"roles/scheduler/files/{name}/{file}": text for file, text in scripts.items()}
            if stack.slurm is None:
                files[f"roles/tuning/files/{name}/check-node.sh"] = check_script(stack, group)
            files |= {f"roles/fabric/files/{name}/{file}": text for file, text in _adapter_files(stack, group).items()}
    return files


def _adapter_files(stack: Stack, group: NodeGroup) -> dict[str, str]:
    """Files that name the adapters of a group, which NCCL, UCX and the scripts of RoCE read; empty without some.

    Source of `mounts.d`: Enroot's doc/configuration.md and doc/image-format.md, and its own 20-config.fstab.
    """
    fabric, gpu = group_fabric(stack, group), gpu_of(stack, group)
    if fabric is None or fabric.link is None:
        return {}
    names = ["nccl.conf", *(["ucx.conf", "mpi-check.sh"] if fabric.mpi is not None else [])]
    names += ["roce-host.sh", "roce-check.sh"] if fabric.link == "roce" else []
    names += ["30-nccl.fstab"] if "enroot" in container_runtimes(stack) else []
    ends = zip(fabric.interfaces, fabric.devices, strict=True) if fabric.link == "roce" else ()
    pairs = " ".join(f"{interface}:{device}" for interface, device in ends)
    has_cuda = fabric.mpi is not None and fabric.mpi.cuda and gpu is not None and gpu.vendor == "nvidia"
    facts = {"fabric": fabric, "roce": ROCE, "settings": rail_settings(fabric), "pairs": pairs, "has_cuda": has_cuda}
    return {name: render(f"fabric/{name}", settings_file=nccl_settings(gpu), **facts) for name in names}


def _fabric_files(stack: Stack) -> dict[str, str]:
    """Files of the role `fabric` that all nodes have, those of one host by its name, and the text of the switches.

    NCCL reads nccl.conf before the environment of a job, which overrides it. InfiniBand needs no addresses of rails.

    Source: dcb-pfc(8), dcb-app(8), dcb-ets(8), dcb-dcbx(8), systemd.network(5), NCCL's user guide (IB variables), and
    the sysfs of mlx5; opensm(8) and the comments of the file that `opensm --create-config` writes, of OpenSM 3.3.23;
    `ucx_info -c` and `ompi_info --all`, and the guides of UCX 1.13 and of Open MPI 4.1 and 5.0.

    Raises:
        ArgumentError: `fabric.network` has too few addresses.
    """
    fabric = stack.fabric
    if fabric is None or fabric.link is None:
        return {}
    files = {"openmpi-mca-params.conf": render("fabric/openmpi-mca-params.conf", fabric=fabric)} if fabric.mpi else {}
    if fabric.link == "roce":
        files["roce-host.service"] = render("fabric/roce-host.service")
        kind = _RAIL_FILES[operating_system(stack).network]
        files |= {
            f"{rail.host}/50-rail{rail.number}.{kind}": render(
                f"fabric/rail.{kind}", rail=rail, network=fabric.network, table=100 + rail.number, roce=ROCE
            )
            for rail in rails(stack)
        }
    for place, manager in enumerate(fabric.subnet_managers):
        files |= {f"{manager}/{name}": text for name, text in open_sm_files(place).items()}
    role = {f"roles/fabric/files/{name}": text for name, text in files.items()}
    return role | {f"switches/{name}": text for name, text in switch_files(stack).items()}


def open_sm_files(place: int) -> dict[str, str]:
    """Files of /etc/opensm of a manager by name; the one at `place` 0 is the master."""
    conf = render("fabric/opensm.conf", priority=_HIGHEST_PRIORITY - place)
    return {"opensm.conf": conf, "partitions.conf": render("fabric/partitions.conf")}


def inventory(stack: Stack) -> Mapping[str, object]:
    """Inventory of Ansible: every host once with its address, a group for each role, and one for each of `nodes`."""
    rack = {name: {"imex_domain": found} for name, found in racks.rack_of_nodes(stack).items()}
    addresses = {name: at for group in stack.nodes for name, at in group.addresses.items()}
    hosts = {name: {"ansible_host": at} | rack.get(name, {}) for name, at in addresses.items()}
    roles: tuple[Role, ...] = get_args(Role)
    groups: dict[str, Mapping[str, object]] = {
        role: {"hosts": {name: {} for name in stack.hosts(role)}} for role in roles if stack.hosts(role)
    }
    installing = {host for each in stack.environments for host in _place(stack, each.at)["hosts"]}
    groups["environments"] = {"hosts": {name: {} for name in addresses if name in installing}}
    groups |= {name: {"hosts": {host: {} for host in group.names}} for name, group in stack.group_names.items()}
    return {"all": {"vars": {"ansible_user": stack.admin}, "hosts": hosts, "children": groups}}


def cloud_init(stack: Stack) -> str:
    """User data of cloud-init that makes a bare machine one that Ansible can log in to."""
    administrator = {
        "name": stack.admin,
        "homedir": stack.home_of_admin,
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": list(stack.admin_keys),
    }
    data: dict[str, object] = {
        "users": [administrator],
        "ssh_pwauth": False,
        "disable_root": True,
        "package_update": True,
        "packages": ["python3", "openssh-server"],
    }
    if operating_system(stack).selinux:
        # sshd reads keys of this type alone, and a home outside of /home has another one
        data["runcmd"] = [["chcon", "--recursive", "--type=ssh_home_t", f"{stack.home_of_admin}/.ssh"]]
    return "#cloud-config\n" + to_yaml(data)


def _variables(
    stack: Stack, packages: Mapping[str, object], slurm: Iterable[str], monitoring: Iterable[str]
) -> Mapping[str, object]:
    system, own = operating_system(stack), stack.own
    sysctl = dict(by_host(stack, "sysctl.yaml", own.sysctl))
    # a scan that moves pages from one socket to the other stops the threads that feed GPUs; ranks are bound anyhow.
    # `-`: a kernel without the parameter is no failure
    compute = {"-kernel.numa_balancing": "0", **sysctl.pop("compute", {})}
    return {
        "cluster_name": stack.name,
        "operating_system": operating_system(stack).name,
        "admin": stack.admin,
        "admin_home": stack.home_of_admin,
        "mount_folders": stack.folders,
        "services": system.services.model_dump(),
        "paths": system.paths.model_dump(),
        "selinux": system.selinux,
        "network": str(stack.network),
        "network_backend": system.network,
        "clock_hosts": stack.clocks,
        **packages,
        **NO_GROUP,
        "further_packages": {key: list(names) for key, names in by_host(stack, "packages.yaml", own.packages).items()},
        "sysctl": {"all": {}, "compute": compute, **sysctl},
        "own_files": [f"/{path}" for path in own.below("files")],
        "firewall_backend": firewall_of(stack),
        "firewall_sources": [str(stack.network)],
        "firewall_peers": [str(stack.fabric.network)] if stack.fabric and stack.fabric.network else [],
        "firewall_ports": _ports(stack),
        "kernel_boot": system.boot,
        **_fabric_variables(stack),
        "exports_file": f"{system.paths.exports}/{stack.name}.exports",
        "exported_folders": file_systems.exported_folders(stack),
        "mounts": [unit.facts for unit in file_systems.mount_units(stack)],
        "scale_mounts": [{"at": each.at, "name": each.device} for each in stack.mounts if each.kind == "scale"],
        "storage_arrays": file_systems.arrays(stack),
        "storage_secrets": file_systems.secret_files(stack),
        "beegfs_files": list(file_systems.beegfs_files(stack)),
        "striped_folders": file_systems.striped_folders(stack),
        **_slurm_variables(stack, slurm),
        "homes": _homes(stack),
        "users": [
            {"name": user.name, "uid": user.uid, "account": user.account or "", "keys_of_login": list(user.keys)}
            for user in stack.users
        ],
        **directory_variables(stack),
        **_environment_variables(stack),
        **_monitoring_variables(stack, monitoring),
    }


def _slurm_variables(stack: Stack, files: Iterable[str]) -> Mapping[str, object]:
    """Variables of the roles `scheduler`, `access` and `backup`; empty without Slurm."""
    slurm = stack.slurm
    return {
        "slurm_accounting": stack.accounting,
        "slurm_adopt": slurm is not None and slurm.adopt,
        "slurm_release": slurm.release if slurm is not None else "",
        "slurm_files": [*files],
        "slurm_state": slurm.state if slurm is not None else "",
        "slurm_database_password": _drawn("slurm_database"),
    }


def _environment_variables(stack: Stack) -> Mapping[str, object]:
    """Variables of the role `environments`."""
    return {
        "environment_architectures": architectures(stack),
        "environments": [
            {
                "name": each.name,
                "at": each.at,
                **_place(stack, each.at),
                "torch": each.torch if each.torch.count(".") > 1 else f"{each.torch}.*",
                "index": index_of(each),
                "packages": list(each.packages),
            }
            for each in stack.environments
            if each.torch is not None
        ],
        "images": [
            {"name": each.name, "at": each.at, **_place(stack, each.at), "image": each.image}
            for each in stack.environments
            if each.image
        ],
    }


class _Place(TypedDict):
    """Where an environment is installed."""

    hosts: list[str]
    is_local: bool


def _place(stack: Stack, folder: str) -> _Place:
    """Hosts that install into a folder: one for all, as the folder is on a shared file system.

    Without Slurm, a folder below no mount is on each compute node, which installs into its own.
    """
    is_shared = stack.slurm is not None or any(PurePosixPath(folder).is_relative_to(each.at) for each in stack.mounts)
    first = [*stack.hosts("login"), *stack.hosts("controller"), *stack.hosts("compute")]
    return _Place(hosts=first[:1] if is_shared else [*stack.hosts("compute")], is_local=not is_shared)


def _drawn(name: str) -> str:
    """A secret that Ansible draws once where it runs, and keeps beside the project."""
    return (
        f"{{{{ lookup('ansible.builtin.password', 'secrets/{name}', length=32, chars=['ascii_letters', 'digits']) }}}}"
    )


def _monitoring_variables(stack: Stack, files: Iterable[str]) -> Mapping[str, object]:
    """Variables of the role `monitoring`; its play is left out without files."""
    grafana = [name for name in files if name.startswith("grafana/")]
    found: dict[str, object] = {"monitoring_files": [name for name in files if name not in grafana]}
    if stack.monitoring is not None:
        addresses = {name: at for group in stack.nodes for name, at in group.addresses.items()}
        found |= {
            "trainworks": stack.monitoring.trainworks,
            "trainworks_package": f"trainworks=={__version__}",
            "exporter_token": _drawn("exporter_token"),
            "exporters": {
                name: {"listen": str(ListenAddress(addresses[name], EXPORTER_PORTS["trainworks"])), "options": options}
                for name, options in exporters(stack).items()
            },
            "grafana_files": grafana,
            "grafana_password": _drawn("grafana"),
        }
    return found


def _homes(stack: Stack) -> Mapping[str, object]:
    """Folder of the users' homes, and the hosts that create them there.

    A file server squashes root of a node: homes on it are created on the server itself. Those on another system
    are created once, and those of a server outside of the stack by its administrator.
    """
    hosts = [name for group in stack.nodes for name in group.names]
    shared = next((mount for mount in stack.mounts if mount.at == HOMES), None)
    if shared is None:
        return {"at": HOMES, "hosts": hosts, "shared": False}
    if shared.kind != "nfs":
        return {"at": HOMES, "hosts": hosts[:1], "shared": True}
    own = [shared.server] if shared.server in stack.hosts("storage") else []
    return {"at": shared.export, "hosts": own, "shared": True}


def _ports(stack: Stack) -> Mapping[str, list[str]]:
    """Ports that all hosts, those of a role or a single one open to `network`, beside ssh.

    Compute nodes open all to each other.
    """
    kinds = {mount.kind for mount in stack.mounts}
    own = [port for kind, port in _CLIENT_PORTS.items() if kind in kinds]
    own += [f"{port}/tcp" for port in EXPORTER_PORTS.values()] if stack.monitoring else []
    ntp, ports = "123/udp", {"all": own, "storage": ["2049/tcp"], "compute": [], "monitoring": []}
    if stack.slurm is None:
        return ports | {host: [ntp] for host in stack.clocks}
    # 60001 to 63000: what `SrunPortRange` says
    srun = "60001-63000/tcp"
    ports |= {"login": [srun], "controller": ["6817/tcp", srun, ntp], "database": ["6819/tcp"]}
    return ports | {"compute": ["6818/tcp"]}


def _fabric_variables(stack: Stack) -> Mapping[str, object]:
    """Variables of the role `fabric` on all hosts; its play is left out where a group has no link."""
    fabric = stack.fabric
    if fabric is None or fabric.link is None:
        return {"fabric_managers": []}
    return {
        "fabric_kernel": fabric.kernel or "",
        "fabric_managers": list(fabric.subnet_managers),
        "fabric_mpi": fabric.mpi is not None,
    }


def _static(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    """Files below a folder of the package, by their paths; pip leaves compiled plugins there, which are not text."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        name = f"{path}{entry.name}"
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _static(entry, f"{name}/")
        else:
            yield name, entry.read_text(encoding="utf-8")
