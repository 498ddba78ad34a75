"""Files of a node's adapters: priorities and congestion control, addresses, and NCCL's settings.

Source: dcb-pfc(8), dcb-app(8), dcb-ets(8), dcb-dcbx(8), systemd.network(5), NCCL's user guide (IB variables), and the
sysfs of mlx5.
"""

from __future__ import annotations

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.fabric import Fabric
from trainworks.deploy.fabric.priorities import (
    CNP_DSCP,
    CNP_PRIORITY,
    DSCP,
    GID_INDEX,
    HOST_MTU,
    PRIORITY,
    TRAFFIC_CLASS,
)
from trainworks.deploy.fabric.rails import Rail, rails
from trainworks.plan.network.nccl import ADDING_SWITCHES


def host_files(fabric: Fabric) -> dict[str, str]:
    """Files of every compute node, by name."""
    files = {"nccl.conf": nccl_conf(fabric)}
    if fabric.link == "roce":
        files |= {"roce-host.sh": _script(fabric), "roce-host.service": _UNIT, "roce-check.sh": _check(fabric)}
    return files


def rail_networks(stack: Stack) -> dict[str, dict[str, str]]:
    """Files of systemd-networkd by host, and by name; empty for InfiniBand, which needs no addresses.

    Raises:
        ArgumentError: `fabric.network` has too few addresses.
    """
    found: dict[str, dict[str, str]] = {}
    if stack.fabric is not None and stack.fabric.link == "roce":
        for rail in rails(stack):
            found.setdefault(rail.host, {})[f"50-rail{rail.number}.network"] = _network(stack.fabric, rail)
    return found


def nccl_conf(fabric: Fabric) -> str:
    """Text of /etc/nccl.conf, which NCCL reads before the environment of a job, and which that overrides."""
    lines = [
        "# these adapters are the rails; one for storage is left out. `=` is for whole names: mlx5_1 is not mlx5_10",
        f"NCCL_IB_HCA=={','.join(fabric.devices)}",
        "# addresses of the first messages; a bridge of containers has one that no other node reaches",
        "NCCL_SOCKET_IFNAME=^lo,docker0",
    ]
    if fabric.link == "roce":
        lines += [
            "# RoCE v2 with the IPv4 address; entry 0 is RoCE v1, which no router forwards",
            f"NCCL_IB_GID_INDEX={GID_INDEX}",
            f"# {DSCP} << 2, and the bit of ECN: without it, packets have priority 0, and are dropped when it is full",
            f"NCCL_IB_TC={TRAFFIC_CLASS}",
        ]
    if fabric.design is not None and fabric.design.sharp:
        lines += [f"# {ADDING_SWITCHES.why}", f"{ADDING_SWITCHES.name}={ADDING_SWITCHES.value}"]
    return "\n".join(lines) + "\n"


def _script(fabric: Fabric) -> str:
    pairs = " ".join(
        f"{interface}:{device}" for interface, device in zip(fabric.interfaces, fabric.devices, strict=True)
    )
    return f"""#!/bin/bash
# Lossless Ethernet on this node's adapters, as on the switches: RDMA has code point {DSCP} and priority {PRIORITY}.
set -euo pipefail
for pair in {pairs}; do
    interface=${{pair%%:*}} device=${{pair##*:}}
    # this file decides, and not the firmware: in the mode of the firmware, a switch changes priorities over LLDP
    dcb dcbx set dev "$interface" host ieee
    # an entry for code points makes the adapter trust them; by default it looks at VLAN tags, which routed packets lack
    dcb app replace dev "$interface" dscp-prio {DSCP}:{PRIORITY} {CNP_DSCP}:{CNP_PRIORITY}
    # one priority is paused: with all of them, ssh and storage wait for RDMA, and pauses spread over the fabric
    dcb pfc set dev "$interface" prio-pfc all:off {PRIORITY}:on
    # half of the port at least for RDMA; notifications of congestion go before everything
    dcb ets set dev "$interface" prio-tc all:0 {PRIORITY}:{PRIORITY} {CNP_PRIORITY}:{CNP_PRIORITY} \\
        tc-tsa all:ets {CNP_PRIORITY}:strict tc-bw all:0 0:50 {PRIORITY}:50
    # slow down before PFC has to stop: react to marks (rp), and send notifications (np). In the driver's sysfs with
    # DOCA-OFED; the driver of the kernel has them in debugfs, on by default
    ecn=/sys/class/net/$interface/ecn
    if [ -d "$ecn" ]; then
        echo 1 > "$ecn/roce_np/enable/{PRIORITY}"
        echo 1 > "$ecn/roce_rp/enable/{PRIORITY}"
        echo {CNP_DSCP} > "$ecn/roce_np/cnp_dscp"
    fi
    # connections by RDMA-CM, as NFS, Lustre and UCX make them, do not ask NCCL for their code point
    cm=/sys/kernel/config/rdma_cm/$device
    mkdir -p "$cm"
    echo {TRAFFIC_CLASS} > "$cm/ports/1/default_roce_tos"
done
"""


_UNIT = """[Unit]
Description=Lossless Ethernet on the adapters
# priorities are lost when a driver is loaded again
After=sys-kernel-config.mount network-pre.target
Before=network-online.target slurmd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStartPre=-/sbin/modprobe rdma_cm
ExecStart=/usr/local/sbin/roce-host.sh

[Install]
WantedBy=multi-user.target
"""


def _check(fabric: Fabric) -> str:
    pairs = " ".join(
        f"{interface}:{device}" for interface, device in zip(fabric.interfaces, fabric.devices, strict=True)
    )
    return f"""#!/bin/bash
# Do the adapters agree with nccl.conf and with the switches? Prints each difference, and exits with 1 if there is one.
failed=0
differs() {{ echo "$1"; failed=1; }}
for pair in {pairs}; do
    interface=${{pair%%:*}} device=${{pair##*:}}
    port=${{SYS:-/sys}}/class/infiniband/$device/ports/1
    grep -qx 'RoCE v2' "$port/gid_attrs/types/{GID_INDEX}" || differs "$device: GID {GID_INDEX} is not RoCE v2"
    grep -qi '^0000:0000:0000:0000:0000:ffff' "$port/gids/{GID_INDEX}" || differs "$device: GID {GID_INDEX} is not IPv4"
    dcb pfc show dev "$interface" prio-pfc | grep -q '{PRIORITY}:on' || differs "$interface: no PFC on {PRIORITY}"
    dcb app show dev "$interface" dscp-prio | grep -Eq '(AF31|{DSCP}):{PRIORITY}' || differs "$interface: DSCP {DSCP}"
    grep -qx {HOST_MTU} "${{SYS:-/sys}}/class/net/$interface/mtu" || differs "$interface: MTU is not {HOST_MTU}"
done 2> /dev/null
exit $failed
"""


def _network(fabric: Fabric, rail: Rail) -> str:
    table = 100 + rail.number
    lines = [
        "[Match]",
        f"Name={rail.interface}",
        "",
        "[Link]",
        f"MTUBytes={HOST_MTU}",
        "",
        "[Network]",
        f"Address={rail.address}/31",
        "# an address that an adapter makes up would move the entries of its table",
        "LinkLocalAddressing=no",
        "",
        "# packets leave by the rail whose address they have: with one table, all would take the first rail",
        "[RoutingPolicyRule]",
        f"From={rail.address}",
        f"Table={table}",
        "",
        "[Route]",
        f"Destination={fabric.network}",
        f"Gateway={rail.gateway}",
        f"Table={table}",
        "",
        "# programs that name no address still reach the other nodes; the first rail is taken while it is up",
        "[Route]",
        f"Destination={fabric.network}",
        f"Gateway={rail.gateway}",
        f"Metric={table}",
    ]
    return "\n".join(lines) + "\n"
