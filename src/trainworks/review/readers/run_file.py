"""Run files and SkyPilot tasks: their commands and variables as shell code, with the places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from trainworks.review.readers import tree
from trainworks.review.readers.shell import Script, Setting

_LAUNCHES_ONCE = ("mpi", "slurm")


@dataclass(frozen=True, slots=True)
class RunFileText:
    """A run file as written."""

    root: yaml.Node
    lines: Sequence[str]

    def node(self, *path: str) -> yaml.Node | None:
        """The node under a path of keys; None without it."""
        return tree.get(self.root, *path)

    def text(self, *path: str) -> str | None:
        """The scalar under a path of keys; None without it."""
        return tree.scalar(self.node(*path))

    @property
    def nodes(self) -> int:
        """Nodes of the job; 1 where they are not written as a number."""
        return tree.integer(self.node("num_nodes")) or tree.integer(self.node("cluster", "nodes")) or 1

    @property
    def starts_on_each_rank(self) -> bool:
        """`run` starts once for each rank, and not once for each node or job; see `RunFile.starts`."""
        as_skypilot = self.node("num_nodes") or self.node("resources")
        per_node = as_skypilot and self.text("cluster", "processes_per_node") in (None, "auto")
        return self.text("framework") not in _LAUNCHES_ONCE and not per_node

    def scripts(self) -> Iterator[Script]:
        """`setup` and `run`, where each line of the command is a line of the file."""
        for key in ("setup", "run"):
            node = self.node(key)
            if not isinstance(node, yaml.ScalarNode):
                continue
            line, column = tree.place(node)
            if node.style == "|":
                yield Script(node.value, line=line + 1, indent=tree.indent(self.lines, node))
            elif node.value in self.lines[line - 1]:
                yield Script(node.value, line=line, indent=self.lines[line - 1].index(node.value, column - 1))

    def settings(self) -> Iterator[Setting]:
        """Variables of `envs`."""
        for name, (_, value) in tree.entries(self.node("envs")).items():
            if isinstance(value, yaml.ScalarNode):
                line, column = tree.place(value)
                yield Setting(name, str(value.value), line, column, column)


def read_run_file(documents: Sequence[yaml.Node], lines: Sequence[str]) -> RunFileText | None:
    """The run file in the documents of a YAML file; None for any other file."""
    keys = tree.entries(documents[0]) if len(documents) == 1 else {}
    if ("run" in keys) == ("workload" in keys):
        return None
    from trainworks.config.run_file import RunFile  # noqa: PLC0415  # pydantic models, which few reviews need
    from trainworks.config.skypilot_task import MOVED, NOT_A_JOB  # noqa: PLC0415

    known = RunFile.model_fields.keys() | {*MOVED, *NOT_A_JOB}
    return RunFileText(documents[0], lines) if keys.keys() <= known else None
