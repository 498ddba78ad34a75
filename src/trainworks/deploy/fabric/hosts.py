"""Files of a node's adapters: priorities and congestion control, addresses, and settings of NCCL, OpenSM, UCX and MPI.

Source: dcb-pfc(8), dcb-app(8), dcb-ets(8), dcb-dcbx(8), systemd.network(5), NCCL's user guide (IB variables), and the
sysfs of mlx5; opensm(8) and the comments of the file that `opensm --create-config` writes, of OpenSM 3.3.23; `ucx_info
-c` and `ompi_info --all`, and the guides of UCX 1.13 and of Open MPI 4.1 and 5.0.
"""

from __future__ import annotations

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.fabric import Fabric
from trainworks.deploy.fabric.switches import ROCE, rails
from trainworks.deploy.templating import render
from trainworks.plan.network.nccl import ADDING_SWITCHES

_HIGHEST_PRIORITY = 14


def host_files(fabric: Fabric) -> dict[str, str]:
    """Files of every compute node, by name.

    NCCL reads nccl.conf before the environment of a job, which overrides it.
    """
    files = {"nccl.conf": render("fabric/nccl.conf", fabric=fabric, roce=ROCE, adding_switches=ADDING_SWITCHES)}
    if fabric.link == "roce":
        ends = zip(fabric.interfaces, fabric.devices, strict=True)
        pairs = " ".join(f"{interface}:{device}" for interface, device in ends)
        for name in ("roce-host.sh", "roce-host.service", "roce-check.sh"):
            files[name] = render(f"fabric/{name}", pairs=pairs, roce=ROCE)
    return files


def rail_networks(stack: Stack) -> dict[str, dict[str, str]]:
    """Files of systemd-networkd by host, and by name; empty for InfiniBand, which needs no addresses.

    Raises:
        ArgumentError: `fabric.network` has too few addresses.
    """
    found: dict[str, dict[str, str]] = {}
    if stack.fabric is not None and stack.fabric.link == "roce":
        network = stack.fabric.network
        for rail in rails(stack):
            text = render("fabric/rail.network", rail=rail, network=network, table=100 + rail.number, roce=ROCE)
            found.setdefault(rail.host, {})[f"50-rail{rail.number}.network"] = text
    return found


def open_sm_files(place: int) -> dict[str, str]:
    """Files of /etc/opensm of a manager, by name.

    Args:
        place: of the manager, from 0 on; the first one is the master.
    """
    conf = render("fabric/opensm.conf", priority=_HIGHEST_PRIORITY - place)
    return {"opensm.conf": conf, "partitions.conf": render("fabric/partitions.conf")}


def mpi_files(fabric: Fabric) -> dict[str, str]:
    """Files by name; empty without `fabric.mpi`."""
    if fabric.mpi is None:
        return {}
    names = ("ucx.conf", "openmpi-mca-params.conf", "mpi-check.sh")
    return {name: render(f"fabric/{name}", fabric=fabric, roce=ROCE) for name in names}
