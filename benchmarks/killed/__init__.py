"""The queues that `queue_kills` attacks: how their users are set up, and which of their processes are killed."""

from benchmarks.killed.kubernetes import kubernetes_queue
from benchmarks.killed.local import local_queue
from benchmarks.killed.slurm import slurm_queue
from benchmarks.killed.ssh import ssh_queue

__all__ = ["QUEUES"]

QUEUES = {"local": local_queue, "ssh": ssh_queue, "slurm": slurm_queue, "kubernetes": kubernetes_queue}
