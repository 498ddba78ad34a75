"""The commands: names, summaries, where their modules are, and options that are not given."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

_PARTS = {
    "Plan": {
        "plan": ("planning.plan", "Predict layout, step time, memory and duration of a run."),
        "size": ("planning.size", "Propose what to buy or rent for a goal, with alternatives."),
        "network": ("planning.network", "Design a cluster network: switches, cables, bandwidth."),
        "storage": ("planning.storage", "Compute storage requirements, and find storage that meets them."),
        "goodput": ("planning.goodput", "Predict failures, spares and the finish time of a run."),
        "cost": ("planning.cost", "Compare the cost of renting and owning for a run or a year."),
        "capacity": ("planning.capacity", "Replay a job trace: waiting time against cost of capacity."),
        "catalog": ("planning.catalog", "Look up accelerators, nodes and links, with sources."),
        "calibrate": ("planning.accuracy", "Correct the planner with a measurement of a cluster."),
        "score": ("planning.accuracy", "Score the planner's predictions against your measurements."),
        "accuracy": ("planning.accuracy", "Show how well your own runs were predicted."),
    },
    "Prove": {
        "bench": ("proving.bench", "Measure compute, memory, links, storage; find outliers."),
        "health": ("proving.health", "Check a node: GPUs, links, memory, mounts; or compare nodes."),
        "drill": ("proving.drill", "Inject faults into a run, and tell what it survives."),
        "review": ("proving.review", "Find mistakes in scripts, configuration, code and texts."),
    },
    "Run": {
        "run": ("runs.start", "Plan and start a run, follow it to its end, then report."),
        "submit": ("runs.start", "Plan a run, queue it and return."),
        "sweep": ("runs.sweep", "Train with several settings, and name the best."),
        "resume": ("runs.resume", "Continue a run from its newest complete checkpoint."),
        "stop": ("runs.end", "Stop runs; a workload saves a checkpoint first."),
        "wait": ("runs.end", "Wait for the end of runs."),
        "dev": ("runs.attach", "Open an ssh server or JupyterLab on a node of a cluster."),
        "exec": ("runs.attach", "Run a command in a running job."),
        "ssh": ("runs.attach", "Open a shell in a running job."),
        "port-forward": ("runs.attach", "Forward a local port to a running job."),
        "profile": ("observing.analysis", "Record some steps of a run with torch.profiler."),
        "data": ("runs.data", "Prepare or verify training data."),
        "checkpoint": ("runs.checkpoint", "List, verify, copy, restore or prune checkpoints."),
        "export": ("runs.checkpoint", "Write a checkpoint as a Hugging Face model."),
        "rm": ("runs.end", "Delete runs that have ended, or their checkpoints."),
        "schema": ("admin.generated_files", "Print the JSON Schema of the run file."),
    },
    "See": {
        "status": ("runs.listing", "Show the state and progress of a run."),
        "logs": ("runs.record", "Print the logs of a run."),
        "report": ("runs.report", "Compare what was planned with what was measured."),
        "why": ("observing.analysis", "Find where a run lost time, with evidence and remedies."),
        "compare": ("observing.analysis", "Compare runs: settings, step parts, losses, cost, seeds."),
        "top": ("observing.analysis", "Watch runs, nodes and accelerators."),
        "serve": ("observing.serve", "Show jobs and runs as live web pages, with a REST API."),
        "ls": ("runs.listing", "List runs."),
        "ps": ("jobs.jobs", "List jobs, with status and the reason why they wait."),
        "describe": ("jobs.jobs", "Show why a job waits, where it runs, or why it failed."),
        "nodes": ("jobs.nodes", "List the nodes that jobs run on."),
        "usage": ("observing.analysis", "Show what jobs held and cost, by month, user or team."),
        "track": ("observing.analysis", "Send a run to TensorBoard, MLflow or W&B."),
        "env": ("runs.record", "Print the packages that a run has used, as a lock file."),
    },
    "Administer": {
        "deploy": ("admin.deploy", "Check a cluster's software stack, and render its files."),
        "repair": ("admin.repair", "Drain, reset or reboot, check and return failed nodes."),
        "drain": ("jobs.nodes", "Drain a node: start no new jobs on it."),
        "edit": ("jobs.queue", "Change the priority, limit or other values of waiting jobs."),
        "hold": ("jobs.queue", "Hold a queued job."),
        "release": ("jobs.queue", "Release a held job."),
        "retry": ("jobs.queue", "Requeue failed or stopped jobs."),
        "jobs": ("jobs.jobs", "Rebuild the job store from run directories."),
        "exporter": ("observing.prometheus", "Give metrics of runs, queue, GPUs, health to Prometheus."),
        "monitor": ("observing.prometheus", "Render Prometheus and Alertmanager files with alerts."),
        "hooks": ("admin.generated_files", "Generate Slurm prolog and health-check scripts."),
        "autoscale": ("admin.generated_files", "Generate autoscaling config for Slurm or Kueue."),
        "sandbox": ("admin.sandbox", "Start a real Slurm of several nodes on this machine."),
    },
}
"""Module and summary of each command, by what it is for."""
_COMMANDS = {name: found for commands in _PARTS.values() for name, found in commands.items()}
COMMANDS = {name: summary for name, (_, summary) in _COMMANDS.items()}
PARTS = {part: tuple(commands) for part, commands in _PARTS.items()}

ALIASES = {"launch": "submit", "queue": "ps", "squeue": "ps", "cancel": "stop", "scancel": "stop", "sinfo": "nodes"}
"""Command names of SkyPilot and Slurm."""

_RENAMED = {
    "": {"plot": "html"},
    "goodput": {"write": "save-write", "notice": "spot-notice", "wait": "spot-wait"},
}
"""Options under their old names, which keep working: of every command, and of one."""


def current_name(command: str, option: str) -> str:
    """The name that an option of a command has now.

    >>> current_name("plan", "plot"), current_name("goodput", "wait"), current_name("plan", "wait")
    ('html', 'spot-wait', 'wait')
    """
    return (_RENAMED[""] | _RENAMED.get(command, {})).get(option, option)


def command_of(name: str) -> Any:
    """The function of a command: `port_forward_command` for `port-forward`; imports its module."""
    return getattr(importlib.import_module(f"trainworks.cli.{_COMMANDS[name][0]}"), f"{name.replace('-', '_')}_command")


def sparing_defaults(parameters: list[Any]) -> list[Any]:
    """Options that keep their default as it is where they are not given.

    Typer would check it as well, and import pydantic for that, which takes longer than all that `ps` does.
    """
    for one in parameters:
        if not (one.required or one.multiple or one.nargs != 1 or isinstance(one.process_value, partial)):
            one.process_value = partial(_processed, one, one.process_value)
    return parameters


def _processed(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    if value is not None and not (type(value) in (bool, int) and value == parameter.default):
        return process(context, value)
    return parameter.callback(context, parameter, value) if parameter.callback else value
