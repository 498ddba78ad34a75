"""A Ray of two nodes of two cores each, until its stdin is closed; run by a Python that has Ray.

Not at 127.0.0.1, which Ray replaces by an address of the machine.
"""

from __future__ import annotations

import socket
import sys

from ray.cluster_utils import Cluster

with socket.socket() as free:
    free.bind(("127.0.0.2", 0))
    port = free.getsockname()[1]
head = {"num_cpus": 2, "include_dashboard": True, "dashboard_host": "127.0.0.2", "dashboard_port": port}
cluster = Cluster(initialize_head=True, head_node_args=head | {"node_ip_address": "127.0.0.2"})
cluster.add_node(num_cpus=2, node_ip_address="127.0.0.3")
sys.stdout.write(f"READY {cluster.head_node.webui_url}\n")
sys.stdout.flush()
sys.stdin.read()
cluster.shutdown()
