"""Entry point of a rank. It imports nothing, so that the node agent can name it without importing the trainer."""

from __future__ import annotations

import importlib


def run_rank(run_folder: str, data_folder: str, node: int, agent_pid: int, board: str, evaluation_folder: str) -> None:
    """Train as one rank; in a process forked from the fork server, where the trainer is imported already."""
    importlib.import_module("trainworks.worker.train").train(
        run_folder, data_folder, node, agent_pid, board, evaluation_folder
    )
