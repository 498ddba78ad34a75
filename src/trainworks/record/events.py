"""events.jsonl: the events of a run in order, from all its processes. Append-only; readable while it is written."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Literal

from trainworks.files import append_text

EventKind = Literal[
    "changed",  # changes (key, before, after of each): the run is resumed with other settings
    "submitted",  # nodes, processes_per_node, restarts (earlier allocations); on a cluster also hosts, job, started_at
    "node_check",  # node, host, message (empty if the node passed), hint: `job.health`
    "nodes_unhealthy",  # nodes (numbers among all nodes), message: ranks do not start on them
    "state",  # fields of `status.End`: the supervisor's view; ended_at if the allocation ended before this was written
    "agent_started",  # node
    "environment",  # node, key, seconds (0 if the node had it): the packages of the ranks are there
    "agent_lost",  # node, exit_code
    "restart",  # node (null for all of them): the supervisor starts the agent again
    "decision",  # node, action, message: what follows the failure of a node
    "resized",  # nodes, places (numbers among all nodes), layout, step_s, message: the job continues on these nodes
    "straggler",  # rank, node, extra_s (beyond the median of its peers), step_s, message
    "ranks_started",  # the first node's agent starts the ranks of a workload, as all agents do
    "data_progress",  # done_bytes, total_bytes: tokenizing; done_bytes is 0 in the first one alone
    "data_ready",  # folder, num_tokens, fingerprint, tokenization (fingerprint of tokenizer and template), seconds,
    # cached, template (where it is from), chats: conversations, cut, dropped, answer_tokens
    "compiled",  # compile_s, compiled_s, eager_s: time to compile, and of one forward and backward with and without
    "attempt",  # attempt, world_size, layout, resumed_from_step, pids (by rank), rendezvous: all ranks have met
    "failure",  # rank, node, host, pid, cause, exit_code, signal, message, hint, traceback, step, phase, memory;
    # fingerprint (equal for the same failure), rendezvous (equal for all failures of one start of the ranks)
    "restart_refused",  # node, rank, cause, rendezvous, message: reason why this failure is final
    "checkpoint",  # attempt, step, stall_s, write_s, bytes: the manifest is written
    "checkpoint_damaged",  # step, folder, file, problem, fallback_step: complete before, skipped by a resume
    "checkpoint_interval",  # before_s, after_s, stall_s, write_s, mttf_s: `auto`, corrected by what saves cost
    "checkpoint_failed",  # step, message
    "memory_checkpoints_ended",  # step, message: one could not be written, and there will be no more
    "checkpoint_restored",  # step, place: a resume found it there, and none as new in the run
    "checkpoint_copied",  # step, to, bytes, seconds: it is complete in another place of `checkpoint.copies`
    "checkpoint_copy_failed",  # step, to, message: tried again
    "skipped",  # attempt, step, reason (nonfinite, spike), loss, grad_norm, losses (by rank): no update of the weights
    "rollback",  # those of skipped, to_step, batches_left_out: back to that checkpoint, without these batches
    "profile",  # first_step, last_step, ranks, folder: the traces of these steps are written
    "profile_refused",  # first_step, last_step, message: the steps could not be recorded
    "notice",  # node, cloud, what, ends, deadline_at: of the cloud's metadata service
    "notice_answered",  # node, cloud, what, saves, left_s, needed_s, message: the job ends for a notice
    "idle",  # since, accelerator, cpu_cores, io_bytes_per_s (since then, of the busiest node): the job counts as idle
    "busy",  # idle_for_s: the job uses its nodes again
    "stop_requested",  # reason
    "stopped",  # step: the ranks ended early, with a checkpoint; callbacks_s as in finished
    "sample",  # step, prompt, text
    "finished",  # step; early if evaluations did not improve any more; callbacks_s: seconds of each of
    # `workload.callbacks` after the last step, on rank 0
]

Event = dict[str, Any]
"""`t` (seconds since the epoch), `kind` and the fields of that kind."""


def append_event(path: Path, kind: EventKind, **fields: Any) -> None:
    """Append one event, stamped with the time and the writer's process id."""
    event = {"t": time.time(), "kind": kind, "writer": os.getpid(), **fields}
    append_text(path, json.dumps(event) + "\n")


def read_events(path: Path) -> list[Event]:
    """All complete events in the order of writing; torn lines are skipped."""
    events, _ = read_lines_from(path, 0)
    return events


def read_lines_from(path: Path, offset: int, *, most_bytes: int = -1) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects after byte `offset`, and the offset for the next call.

    A line without its newline is left for the next call; a line that is not JSON (its writer was killed) is skipped. A
    missing file counts as empty. `most_bytes` limits a call, and is longer than any line; -1 reads to the end.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(most_bytes)
    except FileNotFoundError:
        return [], offset
    complete = data[: data.rfind(b"\n") + 1]
    return [row for line in complete.splitlines() if (row := _json_object(line))], offset + len(complete)


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
