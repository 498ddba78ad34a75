"""The commands: names, summaries, and where their modules are."""

from __future__ import annotations

import importlib
from typing import Any

COMMANDS = {
    "run": "Plan and start a run, follow it to its end, then report.",
    "submit": "Plan a run, queue it and return.",
    "sweep": "Train with several settings, and name the best.",
    "dev": "Open an ssh server or JupyterLab on a node of a cluster.",
    "exec": "Run a command in a running job.",
    "ssh": "Open a shell in a running job.",
    "port-forward": "Forward a local port to a running job.",
    "plan": "Predict layout, step time, memory and duration of a run.",
    "size": "Propose what to buy or rent for a goal, with alternatives.",
    "network": "Design a cluster network: switches, cables, bandwidth.",
    "storage": "Compute storage requirements, and find storage that meets them.",
    "goodput": "Predict failures, spares and the finish time of a run.",
    "cost": "Compare the cost of renting and owning for a run or a year.",
    "capacity": "Replay a job trace: waiting time against cost of capacity.",
    "calibrate": "Correct the planner with a measurement of a cluster.",
    "bench": "Measure compute, memory, links, storage; find outliers.",
    "health": "Check a node: GPUs, links, memory, mounts; or compare nodes.",
    "drill": "Inject faults into a run, and tell what it survives.",
    "repair": "Drain, reset or reboot, check and return failed nodes.",
    "deploy": "Check a cluster's software stack, and render its files.",
    "review": "Find mistakes in scripts, configuration, code and texts.",
    "exporter": "Give metrics of runs, queue, GPUs, health to Prometheus.",
    "monitor": "Render Prometheus and Alertmanager files with alerts.",
    "data": "Prepare or verify training data.",
    "ps": "List jobs, with status and the reason why they wait.",
    "describe": "Show why a job waits, where it runs, or why it failed.",
    "edit": "Change the priority, limit or other values of waiting jobs.",
    "hold": "Hold a queued job.",
    "release": "Release a held job.",
    "retry": "Requeue failed or stopped jobs.",
    "jobs": "Rebuild the job store from run directories.",
    "nodes": "List the nodes that jobs run on.",
    "drain": "Drain a node: start no new jobs on it.",
    "serve": "Show jobs and runs as live web pages, with a REST API.",
    "ls": "List runs.",
    "status": "Show the state and progress of a run.",
    "logs": "Print the logs of a run.",
    "stop": "Stop runs; a workload saves a checkpoint first.",
    "wait": "Wait for the end of runs.",
    "rm": "Delete runs that have ended, or their checkpoints.",
    "profile": "Record some steps of a run with torch.profiler.",
    "resume": "Continue a run from its newest complete checkpoint.",
    "checkpoint": "List, verify, copy, restore or prune checkpoints.",
    "env": "Print the packages that a run has used, as a lock file.",
    "export": "Write a checkpoint as a Hugging Face model.",
    "usage": "Show what jobs held and cost, by month, user or team.",
    "track": "Send a run to TensorBoard, MLflow or W&B.",
    "report": "Compare what was planned with what was measured.",
    "top": "Watch runs, nodes and accelerators.",
    "why": "Find where a run lost time, with evidence and remedies.",
    "compare": "Compare two runs: settings, step parts, losses, cost.",
    "accuracy": "Show how well your own runs were predicted.",
    "score": "Score the planner's predictions against your measurements.",
    "catalog": "Look up accelerators, nodes and links, with sources.",
    "hooks": "Generate Slurm prolog and health-check scripts.",
    "autoscale": "Generate autoscaling config for Slurm or Kueue.",
    "sandbox": "Start a real Slurm of several nodes on this machine.",
    "schema": "Print the JSON Schema of the run file.",
}


ALIASES = {"launch": "submit", "queue": "ps", "squeue": "ps", "cancel": "stop", "scancel": "stop", "sinfo": "nodes"}
"""Command names of SkyPilot and Slurm."""

_COMMANDS_OF = {
    "planning.plan": ["plan"],
    "planning.size": ["size"],
    "planning.network": ["network"],
    "planning.storage": ["storage"],
    "planning.goodput": ["goodput"],
    "planning.cost": ["cost"],
    "planning.capacity": ["capacity"],
    "planning.accuracy": ["accuracy", "calibrate", "score"],
    "planning.catalog": ["catalog"],
    "runs.start": ["run", "submit"],
    "runs.sweep": ["sweep"],
    "runs.dev": ["dev"],
    "runs.attach": ["exec", "ssh", "port-forward"],
    "runs.listing": ["ls", "status"],
    "runs.record": ["logs", "report", "env"],
    "runs.end": ["stop", "wait", "rm"],
    "runs.resume": ["resume"],
    "runs.checkpoint": ["checkpoint", "export"],
    "runs.data": ["data"],
    "jobs.jobs": ["ps", "describe", "jobs"],
    "jobs.queue": ["hold", "release", "edit", "retry"],
    "jobs.nodes": ["nodes", "drain"],
    "observing.analysis": ["top", "why", "compare", "usage", "profile", "track"],
    "observing.prometheus": ["exporter", "monitor"],
    "observing.serve": ["serve"],
    "proving.bench": ["bench"],
    "proving.health": ["health"],
    "proving.drill": ["drill"],
    "proving.review": ["review"],
    "admin.deploy": ["deploy"],
    "admin.repair": ["repair"],
    "admin.generated_files": ["hooks", "autoscale", "schema"],
    "admin.sandbox": ["sandbox"],
}
_MODULES = {name: module for module, names in _COMMANDS_OF.items() for name in names}


def command_of(name: str) -> Any:
    """The function of a command: `port_forward_command` for `port-forward`; imports its module."""
    return getattr(importlib.import_module(f"trainworks.cli.{_MODULES[name]}"), f"{name.replace('-', '_')}_command")
