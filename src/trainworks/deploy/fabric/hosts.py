"""Files of a node's adapters: priorities and congestion control, addresses, and settings of NCCL, OpenSM, UCX and MPI.

Source: dcb-pfc(8), dcb-app(8), dcb-ets(8), dcb-dcbx(8), systemd.network(5), NCCL's user guide (IB variables), and the
sysfs of mlx5; opensm(8) and the comments of the file that `opensm --create-config` writes, of OpenSM 3.3.23; `ucx_info
-c` and `ompi_info --all`, and the guides of UCX 1.13 and of Open MPI 4.1 and 5.0.
"""

from __future__ import annotations

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.fabric import Fabric
from trainworks.deploy.fabric.switches import (
    CNP_DSCP,
    CNP_PRIORITY,
    DSCP,
    GID_INDEX,
    HOST_MTU,
    PRIORITY,
    TRAFFIC_CLASS,
    rails,
)
from trainworks.plan.network.nccl import ADDING_SWITCHES


def host_files(fabric: Fabric) -> dict[str, str]:
    """Files of every compute node, by name."""
    files = {"nccl.conf": nccl_conf(fabric)}
    if fabric.link == "roce":
        pairs = zip(fabric.interfaces, fabric.devices, strict=True)
        ends = " ".join(f"{interface}:{device}" for interface, device in pairs)
        files |= {"roce-host.sh": _script(ends), "roce-host.service": _UNIT, "roce-check.sh": _check(ends)}
    return files


def rail_networks(stack: Stack) -> dict[str, dict[str, str]]:
    """Files of systemd-networkd by host, and by name; empty for InfiniBand, which needs no addresses.

    Raises:
        ArgumentError: `fabric.network` has too few addresses.
    """
    found: dict[str, dict[str, str]] = {}
    if stack.fabric is not None and stack.fabric.link == "roce":
        for rail in rails(stack):
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
                f"Destination={stack.fabric.network}",
                f"Gateway={rail.gateway}",
                f"Table={table}",
                "",
                "# programs that name no address still reach the other nodes; the first rail is taken while it is up",
                "[Route]",
                f"Destination={stack.fabric.network}",
                f"Gateway={rail.gateway}",
                f"Metric={table}",
            ]
            found.setdefault(rail.host, {})[f"50-rail{rail.number}.network"] = "\n".join(lines) + "\n"
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


def _script(pairs: str) -> str:
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


def _check(pairs: str) -> str:
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


_HIGHEST_PRIORITY = 14


def open_sm_files(place: int) -> dict[str, str]:
    """Files of /etc/opensm of a manager, by name.

    Args:
        place: of the manager, from 0 on; the first one is the master.
    """
    lines = [
        "# the first port that is up; the number of an adapter changes with the adapter",
        "guid 0x0000000000000000",
        "# the highest one is the master; equal ones would decide by their numbers, and move with a repair",
        f"sm_priority {_HIGHEST_PRIORITY - place}",
        "# the others wait for it to fail: two that ignore each other would give the same numbers twice",
        "ignore_other_sm FALSE",
        "# paths of a fat tree do not meet; where a cable is missing, up-down has no deadlock either",
        "routing_engine ftree,updn",
        "# paths of nodes that stay are kept while others come and go",
        "use_ucast_cache TRUE",
        "sweep_interval 10",
        "# a log without a limit fills the drive of a manager, which then ends",
        "log_max_size 100",
        "partition_config_file /etc/opensm/partitions.conf",
    ]
    return {"opensm.conf": "\n".join(lines) + "\n", "partitions.conf": _PARTITIONS}


_PARTITIONS = """# 5 is 4096 bytes: half of the packets of IP over InfiniBand that the default of 2048 has
Default=0x7fff, ipoib, mtu=5 : ALL=full ;
"""


def mpi_files(fabric: Fabric) -> dict[str, str]:
    """Files by name; empty without `fabric.mpi`."""
    if fabric.mpi is None:
        return {}
    return {"ucx.conf": _ucx(fabric), "openmpi-mca-params.conf": _open_mpi(fabric), "mpi-check.sh": _mpi_check(fabric)}


def _ucx(fabric: Fabric) -> str:
    lines = [
        "# the rails alone: the adapter of the storage network is slower, and UCX would share messages with it",
        f"UCX_NET_DEVICES={','.join(f'{device}:1' for device in fabric.devices)}",
        "# no UCX_TLS: UCX takes shared memory, RDMA and CUDA where they are, and a list leaves one out",
    ]
    if fabric.link == "roce":
        lines += [
            "# the same entry and byte as NCCL: hosts and switches have one lossless priority",
            f"UCX_IB_GID_INDEX={GID_INDEX}",
            f"UCX_IB_TRAFFIC_CLASS={TRAFFIC_CLASS}",
        ]
    return "\n".join(lines) + "\n"


def _open_mpi(fabric: Fabric) -> str:
    assert fabric.mpi is not None
    lines = [
        "# an end instead of a quiet fall back to TCP where UCX finds no device; Debian's own file leaves UCX out",
        "pml = ucx",
        "osc = ucx",
    ]
    if fabric.mpi.openmpi.split(".")[0] == "4":
        lines += ["# the older path to InfiniBand warns on each rank, and 5 removed it", "btl = ^openib"]
    return "\n".join(lines) + "\n"


def _mpi_check(fabric: Fabric) -> str:
    assert fabric.mpi is not None
    lines = [
        "#!/bin/bash",
        "# Do MPI jobs use the adapters? Prints what is missing, and exits with 1 if something is.",
        "failed=0",
        'missing() { echo "$1"; failed=1; }',
        "ompi_info --parsable 2> /dev/null | grep -q '^mca:pml:ucx:' || missing 'Open MPI was built without UCX'",
        "devices=$(ucx_info -d 2> /dev/null)",
        f"for device in {' '.join(fabric.devices)}; do",
        '    grep -q "Device: $device:1" <<< "$devices" || missing "UCX does not see $device"',
        "done",
        "grep -Eq 'Transport: (rc_mlx5|rc_verbs|dc_mlx5)' <<< \"$devices\" || missing 'UCX has no transport over RDMA'",
    ]
    if fabric.mpi.cuda:
        lines += [
            "grep -q 'Transport: cuda_copy' <<< \"$devices\" || missing 'UCX was built without CUDA'",
            "ompi_info --parsable --all 2> /dev/null | grep -q 'mpi_built_with_cuda_support:value:true' \\",
            "    || missing 'Open MPI was built without CUDA: a message in the memory of a GPU ends the job'",
        ]
    return "\n".join([*lines, "exit $failed"]) + "\n"
