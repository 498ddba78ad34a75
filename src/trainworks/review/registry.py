"""All rules, and which of them a review applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

from trainworks.errors import ArgumentError, suggest
from trainworks.review import rules
from trainworks.review.rule import ReviewRule

DOMAINS: Mapping[str, str] = {
    "TW1": "launch lines",
    "TW2": "network and NCCL",
    "TW3": "Slurm",
    "TW4": "Kubernetes and containers",
    "TW5": "data loading and storage",
    "TW6": "devices, precision and memory",
    "TW7": "software, versions and monitoring",
    "TW8": "figures and statements in texts",
    "TW9": "run files",
}
"""What the rules are about, by the start of their ids."""


_MODULES = [import_module(f"{rules.__name__}.{found.name}") for found in iter_modules(rules.__path__)]
_VALUES = [value for module in _MODULES for value in vars(module).values()]
_FOUND = [
    rule
    for value in _VALUES
    for rule in (value if isinstance(value, tuple) else (value,))
    if isinstance(rule, ReviewRule)
]
RULES: Mapping[str, ReviewRule] = {rule.id: rule for rule in sorted(_FOUND, key=lambda rule: rule.id)}
"""Every rule by its id, of every module in the folder `rules`: a new module needs no entry here."""


def selected_rules(select: Sequence[str], ignore: Sequence[str]) -> tuple[ReviewRule, ...]:
    """Rules whose id begins with one of `select` and with none of `ignore`; of two, the longer decides.

    Both have ids or their starts, such as `TW2`; without `select` it is all rules.

    Raises:
        ArgumentError: no rule begins with one of them.
    """
    for argument, prefixes in (("select", select), ("ignore", ignore)):
        for prefix in prefixes:
            if not any(id_.startswith(prefix) for id_ in RULES) or not prefix:
                hint = suggest(prefix, RULES, otherwise="`trainworks review --explain all` lists the rules")
                raise ArgumentError(f"no rule `{prefix}`", argument=argument, hint=hint)
    return tuple(rule for id_, rule in RULES.items() if _longest(id_, select or ("TW",)) > _longest(id_, ignore))


def _longest(id_: str, prefixes: Sequence[str]) -> int:
    """Length of the longest prefix that an id begins with; 0 without one."""
    return max((len(prefix) for prefix in prefixes if id_.startswith(prefix)), default=0)


def rule_named(id_: str) -> ReviewRule:
    """The rule with an id.

    Raises:
        ArgumentError: there is none.
    """
    if id_ not in RULES:
        raise ArgumentError(f"no rule `{id_}`", argument="explain", hint=suggest(id_, RULES, otherwise="try `TW101`"))
    return RULES[id_]
