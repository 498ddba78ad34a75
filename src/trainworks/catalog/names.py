"""Names of the catalogue as users write them: without remarks and marks, and the nearest to an unknown one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import SequenceMatcher

_REMARK = re.compile(r"[(\[][^()\[\]]*[)\]]")
_CHINESE = {"英伟达": "", "华为": "", "昇腾": "ascend"}
"""Vendors and series in Chinese, as the names of the catalogue have them."""
_SIMILAR = 0.5
"""Least similarity of a name that is suggested where the kind is known."""
_SIMILAR_OF_ANY_KIND = 0.7
"""The same where a name may be of any kind."""


def nearest_rows(wanted: str, indexes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The three rows with the most similar names or aliases, of the kind of the most similar; only similar ones.

    `wanted` is normalised, and so are the names in the `indexes`: by kind, the name of the row by each of its names.

    >>> nearest_rows("h10o", {"accelerators": {"h100": "H100-SXM-80GB"}, "links": {"hdr100": "InfiniBand HDR100"}})
    ['H100-SXM-80GB']
    """
    rows = [
        (SequenceMatcher(None, wanted, key).ratio(), kind, name)
        for kind, index in indexes.items()
        for key, name in index.items()
    ]
    least = _SIMILAR if len(indexes) == 1 else _SIMILAR_OF_ANY_KIND
    near = sorted((row for row in rows if row[0] >= least), key=lambda row: -row[0])
    return list(dict.fromkeys(name for _, kind, name in near if kind == near[0][1]))[:3]


def without_remark(name: str) -> str:
    """Remove remarks in brackets from a name, unless it has nothing else.

    >>> without_remark("H100-80GB (SXM, air cooled)")
    'H100-80GB'
    """
    if not _REMARK.search(name):
        return name
    return " ".join(_REMARK.sub(" ", name).split()) or name


def normal_name(name: str) -> str:
    """A name in small letters, without spaces and dashes, so that spellings of one name are equal.

    >>> normal_name("昇腾 910B"), normal_name("Ascend-910B")
    ('ascend910b', 'ascend910b')
    """
    for chinese, english in _CHINESE.items():
        name = name.replace(chinese, english)
    return "".join(letter for letter in name.lower() if letter not in " -_")
