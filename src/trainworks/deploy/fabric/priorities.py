"""Numbers that hosts, switches, NCCL and UCX have to agree on, so that RoCE loses no packet.

Source: NVIDIA Cumulus Linux, RDMA over Converged Ethernet, whose lossless mode has these code points and priorities.
"""

from __future__ import annotations

DSCP = 26
"""Code point of RDMA packets."""
PRIORITY = 3
"""Priority that PFC pauses, and no other."""
CNP_DSCP, CNP_PRIORITY = 48, 6
"""Congestion notifications: they overtake what they are to slow down."""
TRAFFIC_CLASS = DSCP << 2 | 0b10
"""The byte of the IP header: the code point, and the bit that says that the sender understands ECN."""
GID_INDEX = 3
"""Entry of an adapter's table with RoCE v2 and its IPv4 address, where it has one address: 0 and 1 are of IPv6."""
HOST_MTU, SWITCH_MTU = 9000, 9216
"""Largest packets: RDMA takes 4096 of it; a switch carries more than a host sends."""
ECN_MIN_KB, ECN_MAX_KB = 150, 1500
"""Queue from which packets are marked, and from which all are."""
