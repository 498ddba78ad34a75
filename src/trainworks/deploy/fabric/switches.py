"""Text of Ethernet switches for RoCE: lossless priority, networks of rails, and BGP between leaves and spines.

BGP unnumbered (RFC 5549): neighbours meet over link-local IPv6, and links between switches need no addresses. Each leaf
has an autonomous system, the spines share one, so that a path over a leaf to another spine is refused as a loop
(RFC 7938).

Source: NVIDIA Cumulus Linux 5, guides to RoCE and to BGP, and the reference of NVUE; Arista EOS, user manual (QoS, BGP)
and the guide to AI networks. Neither program is here to try the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from trainworks.config.stack import Stack
from trainworks.deploy.fabric.priorities import (
    CNP_DSCP,
    CNP_PRIORITY,
    DSCP,
    ECN_MAX_KB,
    ECN_MIN_KB,
    PRIORITY,
    SWITCH_MTU,
)
from trainworks.deploy.fabric.rails import Rail, SwitchPorts, switches

_LANES = 8
"""Lanes of a port, by which EOS numbers the links of a split one."""
_EOS_HEADER = 2
"""EOS counts the packet without its frame, up to 9214 bytes."""


def switch_files(stack: Stack) -> dict[str, str]:
    """Text of each switch by the name of its file; empty for InfiniBand, whose subnet manager configures them, and for
    `switches: none`.

    Raises:
        ArgumentError: the network has more than two tiers, or too few addresses.
    """
    if stack.fabric is None or stack.fabric.link != "roce" or stack.fabric.switches == "none":
        return {}
    render, ending = _KINDS[stack.fabric.switches]
    found = switches(stack)
    systems = {each.name: each.asn for each in found}
    return {f"{each.name}.{ending}": render(each, systems) for each in found}


def _cumulus(switch: SwitchPorts, systems: dict[str, int]) -> str:
    split = sorted({port.partition("/")[0] for port in _ports(switch)}, key=int) if switch.split > 1 else []
    ports = [_swp(port) for port in _ports(switch)]
    router = "nv set vrf default router bgp"
    lines = [
        f"# {switch.name}: run it as a script, then `nv config apply`",
        f"nv set system hostname {switch.name}",
        *(f"nv set interface swp{port} link breakout {switch.split}x" for port in split),
        f"nv set interface {','.join(ports)} link mtu {SWITCH_MTU}",
        "",
        "# PFC, ECN and buffers by one word; buffers by hand fit one kind of switch alone. As on the hosts, code point",
        f"# {DSCP} has priority {PRIORITY}, and {CNP_DSCP} has {CNP_PRIORITY}; marks begin at {ECN_MIN_KB} KB",
        "nv set qos roce mode lossless",
        "",
        f"nv set interface lo ip address {switch.loopback}/32",
        *(f"nv set interface {_swp(port)} ip address {rail.gateway}/31" for port, rail in switch.rails),
        "",
        "# each leaf its own autonomous system, all spines one: a path down and up again is a loop, and refused",
        f"nv set router bgp autonomous-system {switch.asn}",
        f"nv set router bgp router-id {switch.loopback}",
        *(f"{router} neighbor {_swp(port)} remote-as external" for port, _, _ in switch.links),
        f"{router} address-family ipv4-unicast network {switch.loopback}/32",
        *(f"{router} address-family ipv4-unicast network {rail.gateway}/31" for _, rail in switch.rails),
    ]
    return "\n".join(lines) + "\n"


def _eos(switch: SwitchPorts, systems: dict[str, int]) -> str:
    lines = [
        f"hostname {switch.name}",
        "service routing protocols model multi-agent",
        "ip routing",
        "! packets of IPv4 over links that have an address of IPv6 alone",
        "ip routing ipv6 interfaces",
        "!",
        f"! code points as the hosts set them: {DSCP} is RDMA, {CNP_DSCP} a notification of congestion",
        f"qos map dscp {DSCP} to traffic-class {PRIORITY}",
        f"qos map dscp {CNP_DSCP} to traffic-class {CNP_PRIORITY}",
        "! a node that pauses without an end would stop the fabric: its port drops until it listens again",
        "priority-flow-control pause watchdog default timeout 0.2",
        "priority-flow-control pause watchdog default recovery-time 0.4",
        "!",
        "qos profile ROCE",
        "   qos trust dscp",
        "   priority-flow-control on",
        f"   priority-flow-control priority {PRIORITY} no-drop",
        f"   tx-queue {PRIORITY}",
        "      ! marks come long before PFC has to pause: adapters slow down, and nothing stands behind them",
        f"      random-detect ecn minimum-threshold {ECN_MIN_KB} kbytes maximum-threshold {ECN_MAX_KB} kbytes"
        " max-mark-probability 100 weight 0",
        f"   tx-queue {CNP_PRIORITY}",
        "      priority strict",
        "!",
        *(line for port, rail in switch.rails for line in _eos_port(switch, port, _rail_lines(rail))),
        *(line for port, peer, there in switch.links for line in _eos_port(switch, port, _link_lines(peer, there))),
        "interface Loopback0",
        f"   ip address {switch.loopback}/32",
        "!",
        "! each leaf its own autonomous system, all spines one: a path down and up again is a loop, and refused",
        f"router bgp {switch.asn}",
        f"   router-id {switch.loopback}",
        "   maximum-paths 64",
        "   neighbor FABRIC peer group",
        *(
            f"   neighbor interface {_ethernet(switch, port)} peer-group FABRIC remote-as {systems[peer]}"
            for port, peer, _ in switch.links
        ),
        "   address-family ipv4",
        "      neighbor FABRIC activate",
        "      neighbor FABRIC next-hop address-family ipv6 originate",
        f"      network {switch.loopback}/32",
        *(f"      network {rail.gateway}/31" for _, rail in switch.rails),
    ]
    return "\n".join(lines) + "\n"


def _rail_lines(rail: Rail) -> list[str]:
    return [f"   description {rail.host} {rail.device}", f"   ip address {rail.gateway}/31"]


def _link_lines(peer: str, port: str) -> list[str]:
    return [f"   description {peer} port {port}", "   ipv6 enable"]


def _eos_port(switch: SwitchPorts, port: str, own: list[str]) -> list[str]:
    return [
        f"interface {_ethernet(switch, port)}",
        f"   mtu {SWITCH_MTU - _EOS_HEADER}",
        "   no switchport",
        *own,
        "   service-profile ROCE",
        "!",
    ]


def _ports(switch: SwitchPorts) -> list[str]:
    """Ports with a cable, in the order of the switch."""
    ports = [port for port, _ in switch.rails] + [port for port, _, _ in switch.links]
    return sorted(ports, key=lambda port: [int(part) for part in port.split("/")])


def _swp(port: str) -> str:
    """A port in the words of Cumulus, which counts links of a split port from 0: `12/2` is `swp12s1`."""
    number, _, link = port.partition("/")
    return f"swp{number}s{int(link) - 1}" if link else f"swp{number}"


def _ethernet(switch: SwitchPorts, port: str) -> str:
    """A port in the words of EOS, which names a link of a split port by its first lane: `12/2` is `Ethernet12/5`."""
    number, _, link = port.partition("/")
    lane = (int(link) - 1) * _LANES // switch.split + 1 if link else 1
    return f"Ethernet{number}/{lane}"


_Kind = Literal["cumulus", "eos"]
_KINDS: dict[_Kind, tuple[Callable[[SwitchPorts, dict[str, int]], str], str]] = {
    "cumulus": (_cumulus, "nvue.sh"),
    "eos": (_eos, "eos"),
}
"""Renderers by operating system, and the ending of the files."""
