"""Secrets in what is printed: which variables hold one, and texts and commands without them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_SECRET = re.compile(
    r"TOKEN(?![A-Z])|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|WEBHOOK|CREDENTIAL|(?<![^_])KEY(?![^_])"
)
_MASK = "***"
_IN_URL = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_HEADER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_ASSIGNED = re.compile(r"""\b([A-Za-z_][\w-]*)(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&"']+)""")
_LONGEST_WORD = 160
"""Characters of an argument that a printed command shows."""


def is_secret(name: str) -> bool:
    """True if the name of a variable says that its value is secret.

    >>> is_secret("WANDB_API_KEY"), is_secret("db_password"), is_secret("SIGNING_KEY"), is_secret("MONKEYS")
    (True, True, True, False)
    >>> is_secret("HF_TOKEN"), is_secret("MAX_TOKENS"), is_secret("TOKENIZERS_PARALLELISM")
    (True, False, False)
    """
    return _SECRET.search(name.upper().replace("-", "_")) is not None


def masked(text: str) -> str:
    """A text without passwords of addresses, credentials of headers and values of secret variables.

    >>> masked("GET https://me:hunter2@host/ with HF_TOKEN=hf_abc, MAX_TOKENS=7")
    'GET https://me:***@host/ with HF_TOKEN=***, MAX_TOKENS=7'
    """
    text = _HEADER.sub(rf"\1 {_MASK}", _IN_URL.sub(rf"\1:{_MASK}@", text))
    return _ASSIGNED.sub(lambda found: f"{found[1]}{found[2]}{_MASK}" if is_secret(found[1]) else found[0], text)


def masked_command(command: Sequence[str]) -> str:
    """A command as a shell reads it, with the values of secret variables and options masked and long words cut.

    >>> masked_command(["sky", "launch", "--env", "HF_TOKEN=a b", "--password", "hunter2", "run.yaml"])
    'sky launch --env HF_TOKEN=*** --password *** run.yaml'
    """
    words, hides_next = [], False
    for word in command:
        name, equals, _ = word.partition("=")
        if hides_next and not word.startswith("-"):
            words.append(_MASK)
        elif equals and is_secret(name.lstrip("-")):
            words.append(f"{name}={_MASK}")
        else:
            cut = masked(word)
            words.append(shlex.quote(cut if len(cut) <= _LONGEST_WORD else f"{cut[:_LONGEST_WORD]}..."))
        hides_next = word.startswith("--") and not equals and is_secret(word[2:])
    return " ".join(words)
