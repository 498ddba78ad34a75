"""Python code of a training program: its calls with full names, blocks, and the scopes that bind a name."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

from trainworks.review.finding import Problem

N = TypeVar("N", bound=ast.AST)
_ONE_RANK = re.compile(
    r"^(?:\w+\.)*(?:global_|world_|local_|ddp_)*rank(?:\(\))? == 0$|get_rank\(\) == 0$"
    r"|^(?:\w+\.)*(?:is_main|is_main_process|is_master|master_process|is_rank_?0)(?:\(\))?$"
)
_NOT_ONE_RANK = re.compile(
    r"^not (?:\w+\.)*is_(?:main|main_process|master|rank_?0)(?:\(\))?$|rank(?:\(\))? (?:!=|>) 0$"
)
_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Call:
    """A call, with the name that the imports give it: `DDP(...)` is `torch.nn.parallel.DistributedDataParallel`."""

    name: str
    node: ast.Call

    def argument(self, name: str) -> ast.expr | None:
        """Value of a keyword argument; None without it."""
        return next((keyword.value for keyword in self.node.keywords if keyword.arg == name), None)

    def constant(self, name: str) -> object:
        """Literal value of a keyword argument; None if it is missing or computed."""
        value = self.argument(name)
        return value.value if isinstance(value, ast.Constant) else None

    def problem(self, message: str) -> Problem:
        """A problem at the place of the call."""
        return Problem(self.node.lineno, self.node.col_offset + 1, message)


class PythonCode:
    """A module; without any node if its text is not Python.

    Parsing takes most of the time of a review, and most files call nothing that a rule is about. So begin a rule with
    `calls_of`, which parses only a text that has one of the names.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parents: dict[ast.AST, ast.AST] = {}
        self._by_kind: dict[type[ast.AST], list[ast.AST]] = {}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node, a parent before its children, without the contexts, which all names share.

        Faster than `ast.iter_child_nodes`, in which a review of Python would spend a third of its time.
        """
        try:
            nodes: list[ast.AST] = [ast.parse(self.text)]
        except (SyntaxError, ValueError, RecursionError):  # ValueError: a null byte
            return []
        for node in nodes:
            self._by_kind.setdefault(type(node), []).append(node)
            for value in node.__dict__.values():
                kind = type(value)
                if kind is int or kind is str or kind in _CONTEXTS:
                    continue
                for child in value if kind is list else (value,):
                    if isinstance(child, ast.AST):
                        self._parents[child] = node
                        nodes.append(child)
        return nodes

    @property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """The node around each node but the module."""
        return self._parents if self.nodes else {}

    def nodes_of(self, kind: type[N]) -> list[N]:
        """Every node of one kind."""
        return cast("list[N]", self._by_kind.get(kind, []) if self.nodes else [])

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every call whose function has a dotted name, or is a method."""
        found = ((_dotted(node.func).partition("."), node) for node in self.nodes_of(ast.Call))
        return tuple(Call(f"{self._imports.get(first, first)}{dot}{rest}", node) for (first, dot, rest), node in found)

    def calls_of(self, *endings: str) -> Iterator[Call]:
        """Calls of functions with these names, of any module and of any object."""
        calls = self.calls if any(name in self.text for name in endings) else ()
        return (call for call in calls if call.name.rpartition(".")[2] in endings)

    def values_of(self, target: ast.expr) -> list[ast.expr]:
        """What the file assigns to a name or an attribute, in any scope; empty if something else may bind it."""
        written = ast.unparse(target)
        values: list[ast.expr] = []
        for node in self.nodes_of(ast.Assign):
            values += [node.value for each in node.targets if ast.unparse(each) == written]
        typed = [(node.target, node.value) for node in self.nodes_of(ast.AnnAssign)]
        walrus = [(node.target, node.value) for node in self.nodes_of(ast.NamedExpr)]
        values += [value for each, value in (*typed, *walrus) if value is not None and ast.unparse(each) == written]
        names = [each for each in self.nodes_of(ast.Name) if isinstance(each.ctx, ast.Store)]
        attributes = [each for each in self.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Store)]
        bound = sum(ast.unparse(each) == written for each in (*names, *attributes))
        is_argument = any(node.arg == written for node in self.nodes_of(ast.arg))
        return [] if is_argument or bound != len(values) else values

    def binds(self, name: ast.Name) -> bool:
        """A scope around a name binds it, or code that cannot be followed could."""
        if name.id in dir(builtins) or name.id in self._globals:
            return True
        scope: ast.AST | None = name
        while scope is not None:
            scope = self.parents.get(scope)
            if isinstance(scope, _SCOPES) and name.id in self._bound(scope):
                return True
        return False

    def follows(self, later: ast.AST, earlier: ast.AST) -> bool:
        """The statement of `later`, or one around it, stands behind the statement of `earlier` in the same block."""
        statement = earlier
        while not isinstance(statement, ast.stmt):
            statement = self.parents[statement]
        parent = self.parents[statement]
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        block = next(each for each in blocks if isinstance(each, list) and statement in each)
        behind = block[block.index(statement) + 1 :]
        node: ast.AST | None = later
        while node is not None and node not in behind:
            node = self.parents.get(node)
        return node is not None

    def loop_around(self, node: ast.AST) -> ast.For | ast.While | None:
        """The innermost loop around a node in its function; None without one."""
        outer = self.parents.get(node)
        while outer is not None and not isinstance(outer, ast.For | ast.While | ast.FunctionDef):
            outer = self.parents.get(outer)
        return outer if isinstance(outer, ast.For | ast.While) else None

    def is_on_one_rank(self, node: ast.AST, until: ast.AST | None = None) -> bool:
        """A condition that one rank meets stands around a node, or made the others return before it.

        Conditions around `until` do not count, and with it no return does.
        """
        inner = node
        while (outer := self.parents.get(inner)) is not None and outer is not until:
            if isinstance(outer, ast.If) and inner in outer.body and _ONE_RANK.search(ast.unparse(outer.test)):
                return True
            if isinstance(outer, ast.FunctionDef):
                before = outer.body[: outer.body.index(inner)] if inner in outer.body else []  # type: ignore[arg-type]
                ends = [one for one in before if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return)]
                return until is None and any(_NOT_ONE_RANK.search(ast.unparse(one.test)) for one in ends)
            inner = outer
        return False

    @cached_property
    def _globals(self) -> frozenset[str]:
        """Names of `global` statements, and every name after a star import."""
        named = {one for node in self.nodes_of(ast.Global) for one in node.names}
        stars = any(node.names[0].name == "*" for node in self.nodes_of(ast.ImportFrom))
        loaded = {node.id for node in self.nodes_of(ast.Name)} if stars else set()
        return frozenset(named | loaded)

    def _bound(self, scope: ast.AST) -> set[str]:
        """Names that a scope binds, without those of functions and classes inside it."""
        names: set[str] = set()
        waiting = list(ast.iter_child_nodes(scope))
        while waiting:
            node = waiting.pop()
            names |= _names_bound_by(node)
            if not isinstance(node, (*_SCOPES, ast.ClassDef)):
                waiting += ast.iter_child_nodes(node)
        return names

    @cached_property
    def _imports(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for node in self.nodes_of(ast.ImportFrom):
            if node.module:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for plain in self.nodes_of(ast.Import):
            names |= {alias.asname: alias.name for alias in plain.names if alias.asname}
        return names


def _names_bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return {node.name}
    return set()


def _dotted(function: ast.expr) -> str:
    """`a.b.c` of an attribute; `?.c` for a method of something that is not a name."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    parts.append(function.id if isinstance(function, ast.Name) else "?")
    return ".".join(reversed(parts))
