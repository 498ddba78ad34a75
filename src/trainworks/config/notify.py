"""`notify`: messages about a run, to chats, mail and webhooks by their apprise URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from trainworks.config.quantities import DurationS
from trainworks.config.spec import FieldError, Spec

Occasion = Literal["finished", "failed", "recovered", "waiting", "danger"]
"""Occasions of a message."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WITHOUT_SECRETS = ("json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos", "syslog", "dbus")
"""Schemes whose plain form, host and path, has no secret; those of chats have a token in their path."""
_SECRET_KEY = re.compile(r"[?&][^=&]*(?:pass|token|secret|key|auth)[^=&]*=(?!\$\{)[^&]", re.IGNORECASE)
"""A key of a URL whose value is a secret, unless it is a variable: `?pass=...`, `?+Authorization=...`."""


def _checked_url(url: str) -> str:
    """Refuse what is not a URL, and a secret that would stay in the run file."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z0-9]+", scheme.lower()):
        raise FieldError(
            "`notify` needs apprise URLs with a scheme", hint="write them like `json://host:8080/hook`, `${SLACK_URL}`"
        )
    _, _, password = _VARIABLE.sub("", rest).rpartition("@")[0].partition(":")
    has_token = scheme.lower() not in _WITHOUT_SECRETS and not _VARIABLE.search(rest)
    if has_token or password or _SECRET_KEY.search(rest):
        raise FieldError(
            f"a `{scheme}` URL in `notify` has a secret",
            hint=f"keep it in the environment: `{scheme}://${{NOTIFY_TOKEN}}`, or the whole URL as `${{NOTIFY_URL}}`",
        )
    return url


NotifyUrl = Annotated[
    str,
    AfterValidator(lambda url: url if _VARIABLE.fullmatch(url) else _checked_url(url)),
    WithJsonSchema({"type": "string", "examples": ["${SLACK_URL}", "json://host:8080/hook"]}),
]


class Notifications(Spec):
    """Messages about a run. A list of URLs is short for `{to: [...]}`."""

    to: Annotated[
        tuple[NotifyUrl, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(min_length=1, max_length=20),
    ]
    """Recipients as apprise URLs; `${NAME}` is an environment variable of the shell that starts the run."""
    when: Annotated[tuple[Occasion, ...], Field(min_length=1)] = get_args(Occasion)
    """Occasions: the run has finished or was stopped, failed, recovered from a failure, waits too long in the queue, or
    will miss its deadline at the recent pace or loses a node to its cloud (`danger`)."""
    waiting_after: DurationS = 3600.0
    """Time in the queue after which the run waits too long."""
    at_most_every: DurationS = 300.0
    """Shortest time between two messages of one occasion; the next message counts those left out."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that the URLs name."""
        return tuple(dict.fromkeys(name for url in self.to for name in _VARIABLE.findall(url)))


def notifications_from_list(value: Any) -> Any:
    """Read a URL, or a list of URLs, as `{to: [...]}`."""
    return {"to": value} if isinstance(value, str | list | tuple) else value


def filled_in(url: str, environment: Mapping[str, str]) -> str:
    """A URL with the values of its variables; an unset variable is empty."""
    return _VARIABLE.sub(lambda found: environment.get(found[1], ""), url)


def public_name(url: str) -> str:
    """A URL without anything that may be secret: its scheme, or the variable that holds it.

    >>> public_name("slack://${SLACK_TOKEN}"), public_name("${TEAM_URL}")
    ('slack://...', '${TEAM_URL}')
    """
    return url if _VARIABLE.fullmatch(url) else f"{url.partition('://')[0]}://..."
