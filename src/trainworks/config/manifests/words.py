"""Variables and commands of a container, where Kubernetes expands `$(NAME)` and reads `$$` as `$`.

Source: third_party/forked/golang/expansion of Kubernetes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping, Sequence

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SHELLS = ("bash", "/bin/bash", "/usr/bin/bash")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Text as the container gets it; a name without a value stays as it is.

    >>> expand("$(A)/$$(A)/$(B)/$A", {"A": "x"})
    'x/$(A)/$(B)/$A'
    """

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else values.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def references(text: str) -> set[str]:
    """Names that a text refers to: `$(NAME)`."""
    return {found[1] for found in _REFERENCE.finditer(text) if found[1] is not None}


def shell_text(argv: Sequence[str], known: Container[str]) -> str:
    """Bash that starts a command as Kubernetes does; of `bash -c TEXT` the text.

    >>> print(shell_text(["python", "a b.py", "$(LR)", "$(X)"], {"LR"}))
    python 'a b.py' "${LR}" '$(X)'

    Args:
        argv: words of `command` and `args`.
        known: names of the container's variables; `$(NAME)` of any other stays text.
    """
    is_text = len(argv) == 3 and argv[0] in _SHELLS and argv[1] == "-c"
    if is_text and not any(name in known for name in references(argv[2])):
        return expand(argv[2], {})
    return " ".join(_word(word, known) for word in argv)


def _word(word: str, known: Container[str]) -> str:
    pieces, start = [], 0
    for found in _REFERENCE.finditer(word):
        if found[1] is not None and found[1] in known:
            pieces += [_quoted(word[start : found.start()]), f'"${{{found[1]}}}"']
            start = found.end()
    pieces.append(_quoted(word[start:]))
    return "".join(pieces) or "''"


def _quoted(text: str) -> str:
    return shlex.quote(expand(text, {})) if text else ""
