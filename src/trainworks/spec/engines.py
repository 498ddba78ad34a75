"""What a job asks of the queue, and what each engine wants to be told.

A run file may hold the words of several engines: `engine:` chooses one, and the others are left alone.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from trainworks.spec.quantities import DurationS, Spec

__all__ = ["Container", "Engine", "Job", "Kubernetes", "Slurm"]

Engine = Literal["local", "described", "slurm", "kubernetes"]

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/:+=,\[\]-]*$", max_length=253)]
"""A name in another program's language: no blank, no quote, nothing that a shell reads."""

Place = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._@/:+=-]*$", max_length=4096)]
"""A path, or an image: no blank, no comma, no quote, nothing that a shell reads."""


def _one_option(text: str) -> str:
    """An option of sbatch as one line; its value may hold anything but a line's end."""
    if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n\r\0]*)?", text):
        raise ValueError(f"`{text}` is no option of sbatch\x1fwrite it like `--reservation=maintenance`")
    return text


class Job(Spec):
    """What the queue has to know. An engine that lacks one of these says so before anything is submitted."""

    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Who goes first among those that wait."""
    preemptible: bool = True
    """Whether a job of higher priority may take its place; it saves a checkpoint first, and waits again."""
    time_limit: DurationS | None = None
    """Longest time of one attempt. A job that has one may start before others that it does not delay."""
    grace: DurationS = 120.0
    """From the request to end until the end: at a stop, before the time limit, and when the place is taken."""
    min_nodes: Annotated[int, Field(ge=1)] | None = None
    """Fewest nodes to start with; all of them when left out."""
    exclude: tuple[Word, ...] = ()
    """Nodes that it must not get."""
    depends_on: tuple[Word, ...] = ()
    """Jobs, by number or run, that have to succeed first."""
    hold: bool = False
    """Wait until somebody says `trainworks release`."""


class Container(Spec):
    """An image that every rank runs in."""

    image: Place
    """`docker://nvcr.io/nvidia/pytorch:26.09-py3`, or a file (`.sqsh`, `.sif`) that all nodes see."""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """What starts it: Slurm's plug-in Pyxis with Enroot, or Apptainer."""
    mounts: tuple[Place, ...] = ()
    """`FROM:TO` or one path for both, beside the folders of the run."""


class Slurm(Spec):
    """A cluster under Slurm, through its command line."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_&|\[\]()*!,.-]+$")] | None = None
    """Features that every node must have, in Slurm's words: `rack1`, `[rack1|rack2]`."""
    switches: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(@[0-9:-]+)?$")] | None = None
    """Most leaf switches to be spread over, and how long to wait for that: `1@60`."""
    reservation: Word | None = None
    login: Word | None = None
    """Where sbatch is, as ssh names it (`ada@login1`); this machine when left out."""
    container: Container | None = None
    options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """More options of sbatch, as they are: `--mail-type=END`."""


class Kubernetes(Spec):
    """A cluster under Kubernetes with JobSet, queued by Kueue where a queue is named."""

    context: Word | None = None
    """Of kubectl's configuration; its current one when left out."""
    namespace: Word = "default"
    queue: Word | None = None
    """Kueue's LocalQueue; without one the pods start as soon as there is room."""
    image: Word | None = None
    """Image with Trainworks and what the run needs."""
    volume: Word | None = None
    """PersistentVolumeClaim that all pods write to; it holds the run directory."""
    priority_class: Word | None = None
    service_account: Word | None = None
    node_selector: dict[Word, Word] = Field(default_factory=dict)
