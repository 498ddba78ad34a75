"""Configuration of OpenSM, the subnet manager of InfiniBand.

Source: opensm(8), and the comments of the file that `opensm --create-config` writes, of OpenSM 3.3.23.
"""

from __future__ import annotations

_HIGHEST_PRIORITY = 14


def open_sm_files(place: int) -> dict[str, str]:
    """Files of /etc/opensm of a manager, by name.

    Args:
        place: of the manager, from 0 on; the first one is the master.
    """
    return {"opensm.conf": _configuration(place), "partitions.conf": _PARTITIONS}


def _configuration(place: int) -> str:
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
    return "\n".join(lines) + "\n"


_PARTITIONS = """# 5 is 4096 bytes: half of the packets of IP over InfiniBand that the default of 2048 has
Default=0x7fff, ipoib, mtu=5 : ALL=full ;
"""
