"""What Trainworks deliberately leaves out, and why: the terms of the catalogue, where a user or a file names one."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from trainworks.catalog.catalog import explain_term
from trainworks.catalog.facts import Term
from trainworks.catalog.row_files import kept_with_rows
from trainworks.catalog.rows import read_rows
from trainworks.errors import TrainworksError, UsageError

_QUOTED = re.compile(r"`([^`]{2,60})`")


@kept_with_rows
def left_out() -> tuple[Term, ...]:
    """All terms that are left out, in the order of the catalogue."""
    found = (Term.model_validate(row.facts()) for row in read_rows("terms").values())
    return tuple(term for term in found if term.left_out)


def term_of_package(name: str) -> Term | None:
    """The term that a module, package or program belongs to; None for any other.

    >>> term_of_package("mxnet-cu112").name
    'MXNet'
    """
    wanted = name.lower().replace("_", "-")
    return next((term for term in left_out() if any(fnmatch(wanted, one) for one in term.packages)), None)


def explained(problem: TrainworksError) -> TrainworksError:
    """An error about a word that is left out, in place of one that only refuses it; else the same error."""
    for word in reversed(_QUOTED.findall(problem.message)):
        found = explain_term(word)
        if found is not None and found.message.partition("` ")[2] in {term.meaning for term in left_out()}:
            return UsageError(found.message, place=problem.place, hint=found.hint)
    return problem
