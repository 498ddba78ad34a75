"""One JSON object per line of stdout for each result of a task, and one for the counts of each host at the end."""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]

DOCUMENTATION = """
name: result_lines
type: stdout
short_description: one JSON object per result
description: results that changed or failed, and the counts of each host; the contents of files are left out
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible-core has no annotations
    """Writes results for `trainworks deploy`; contents of files stay out, since they can be secret."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "result_lines"

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task that succeeded: written where it changed something, or with its output where it is tagged `report`."""
        if "report" in result.task.tags:
            answer = [result.result.get("rc"), result.result.get("stdout", "")]
            _write_line(json.dumps({"host": result.host.get_name(), "answer": answer}))
        if result.result.get("changed"):
            changed = [part for part in result.result.get("results", [result.result]) if part.get("changed")]
            self._write("changed", result, ", ".join(dict.fromkeys(name for name in map(_place, changed) if name)))

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task that failed: written unless the playbook ignores it."""
        if not ignore_errors:
            # a script says on stderr why it failed
            self._write("failed", result, f"{result.result.get('msg', '')} {result.result.get('stderr', '')}")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host without an answer."""
        self._write("unreachable", result, str(result.result.get("msg", "")))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Counts of each host."""
        for host in sorted(stats.processed):
            counts = stats.summarize(host)
            names = ("ok", "changed", "unreachable", "failures")
            _write_line(json.dumps({"host": host, "counts": [counts[name] for name in names]}))

    def _write(self, outcome: str, result: Any, detail: str) -> None:
        task = result.task.get_name()
        line = {"host": result.host.get_name(), "outcome": outcome, "task": task, "detail": " ".join(detail.split())}
        _write_line(json.dumps(line))


def _write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _place(part: dict[str, Any]) -> str:
    """Path or name of an item; a dry run of `copy` has its path only above the differences."""
    differences = part.get("diff") or {}
    first = differences[0] if isinstance(differences, list) else differences
    header = first.get("before_header") or first.get("after_header") if isinstance(first, dict) else None
    asked = part.get("invocation", {}).get("module_args", {}).get("name") or ""  # of packages
    names = ", ".join(asked) if isinstance(asked, list) else asked
    label = part.get("_ansible_item_label") or part.get("item")
    return str(part.get("dest") or part.get("path") or part.get("name") or header or label or names)
