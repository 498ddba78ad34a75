"""The voice: plain English. The counts of what is left may only go down."""

from __future__ import annotations

import re

from tests.architecture.source import docstrings, texts

VAGUE = re.compile(
    r"\b(?:nobody|somebody|anybody|whoever|whatever|has not got|have not got|stands still|goes on|go on|so much"
    r"|told|wish|wishes|in the way|nothing of ours)\b|\b(?:is|are) no \w",
    re.IGNORECASE,
)
FRAGMENT = re.compile(r"(?:Of|That|By|As|For|From|Whether it|Which|To which|In which|By which) ")
MOST_VAGUE = 0
MOST_FRAGMENTS = 0
HINT = "more than before: write active sentences that stand alone, with the subject named"


def test_texts_name_who_does_what() -> None:
    places = [f"{place}: {match[0]}" for place, text in texts() for match in VAGUE.finditer(text)]
    assert len(places) <= MOST_VAGUE, f"{HINT}\n" + "\n".join(places)


def test_a_docstring_can_be_read_without_the_line_above() -> None:
    places = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if text and FRAGMENT.match(text)]
    assert len(places) <= MOST_FRAGMENTS, f"{HINT}\n" + "\n".join(places)
