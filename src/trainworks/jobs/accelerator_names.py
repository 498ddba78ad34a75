"""Names of accelerators: the `A100` of a run file is `a100`, `tesla-a100` or `nvidia_a100_80gb_pcie` elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainworks.config.command import split_mig

_BRANDS = frozenset(
    ("nvidia", "amd", "intel", "google", "tesla", "geforce", "quadro", "instinct", "radeon", "graphics", "generation")
) | {"gpu", "rtx", "gtx"}

AMD = r"(amd|instinct|radeon)(\b|_).*|mi\d+.*"
"""Names of AMD's accelerators, in small letters."""
_MEMORY = re.compile(r"\d+(gb|g|gib)")
_FORM = re.compile(r"(sxm|pcie|nvl|oam|hbm)\d*[a-z]?")


def matching_names(wanted: str, known: Iterable[str]) -> list[str]:
    """Those of the known names of a cluster's accelerators that mean the one that is wanted (`A100`, `A100-80GB`,
    `H100-SXM`, `RTX3090`), in their order.

    A name that is the same but for its case is the only one. Otherwise the model has to be the same; memory and form
    factor have to be the same where both names say them. A part by MIG is another accelerator than the whole; its
    profile alone, `1g.10gb`, is that of any model.
    """
    names = list(dict.fromkeys(known))
    same = [name for name in names if name.lower() == wanted.lower()]
    return same[:1] or [name for name in names if _is_same(wanted, name)]


def is_amd(name: str | None) -> bool:
    """Whether a name is that of an accelerator of AMD.

    >>> is_amd("MI300X"), is_amd("amd_instinct_mi210"), is_amd("h100"), is_amd(None)
    (True, True, False, False)
    """
    return re.fullmatch(AMD, (name or "").lower()) is not None


def _is_same(wanted: str, name: str) -> bool:
    (wanted, part), (name, other_part) = split_mig(wanted), split_mig(name)
    if part != other_part:
        return False
    ours, theirs = _parts(wanted), _parts(name)
    if part and not ours:
        return True
    models = [
        {part for part in parts if not _MEMORY.fullmatch(part) and not _FORM.fullmatch(part)}
        for parts in (ours, theirs)
    ]
    if not models[0] or models[0] != models[1]:
        return False
    return _agree(_MEMORY, ours, theirs) and _agree(_FORM, ours, theirs)


def _parts(name: str) -> set[str]:
    """The words of a name, without brands: `rtx3090` is `3090`."""
    return {re.sub(r"^(rtx|gtx)(?=.)", "", word) for word in re.findall(r"[a-z0-9]+", name.lower())} - _BRANDS


def _agree(pattern: re.Pattern[str], ours: set[str], theirs: set[str]) -> bool:
    """Whether one of the two says nothing of it, or both say the same; `sxm` is `sxm4`, and `hbm3` is not a form."""
    found = [{_stem(part) for part in parts if pattern.fullmatch(part)} - {"hbm"} for parts in (ours, theirs)]
    return not found[0] or not found[1] or found[0] == found[1]


def _stem(part: str) -> str:
    form = _FORM.fullmatch(part)
    return form[1] if form else re.sub(r"(gib|gb|g)$", "", part)
