"""Text of files for a cluster, from the templates of Jinja in `templates`: each reads like the file that it becomes."""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """Text of a template; a value that it prints or asks for and does not get is a bug, unless it asks `is none`.

    A statement on a line of its own leaves nothing. The filter `quote` makes one word of bash.
    """
    return _environment().get_template(f"{template}.j2").render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415, 20 ms that `deploy check` saves

    environment = Environment(
        loader=PackageLoader("trainworks.deploy"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701, none of them is HTML
    )
    environment.filters["quote"] = shlex.quote
    return environment
