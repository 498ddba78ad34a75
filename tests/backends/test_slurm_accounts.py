"""Accounts of a stack in a real slurmdbd: the script brings them to what it says, and a second run changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.backends.slurm_cluster import Cluster
from trainworks.config.stack import Stack
from trainworks.deploy.slurm_conf import accounts_script

pytestmark = pytest.mark.slurm

STACK = """
name: sandbox
os: Ubuntu 24.04
network: 10.0.0.0/24
admin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1s]
nodes:
  - {hosts: head, address: 10.0.0.1, roles: [controller, database]}
  - {hosts: node1, address: 10.0.0.11, roles: [compute], machine: DGX H100}
slurm:
  release: "22.05"
  qos:
    - {name: idle}
    - {name: debug, priority: 9, max_time: "30:00", max_gpus_per_user: 8, max_jobs_per_user: 2, preempts: [idle]}
  accounts: [{name: vision, share: 2, max_gpus: 16, accelerator_hours_per_month: 100, qos: [idle, debug]}]
users: [{name: alice, uid: 2001, account: vision, administers: true}]
"""


def changes(cluster: Cluster, script: Path, *options: str) -> list[str]:
    """Commands that the script ran, or would have run."""
    command = ["bash", script, *options]
    done = subprocess.run(command, env=cluster.env, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_a_second_run_changes_nothing_and_drift_is_named(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.accounting:
        pytest.skip("NOT TESTED: accounts; no slurmdbd")
    script = tmp_path / "accounts.sh"
    script.write_text(accounts_script(Stack.model_validate(yaml.safe_load(STACK))))
    assert "changed: sacctmgr add coordinator account=vision names=alice" in changes(cluster, script)
    assert changes(cluster, script) == []
    cluster.call("sacctmgr", "-i", "modify", "account", "where", "name=vision", "set", "GrpTRES=gres/gpu=99")
    drift = ["changed: sacctmgr modify account where name=vision cluster=sandbox set GrpTRES=gres/gpu=16"]
    assert changes(cluster, script, "--check") == drift
