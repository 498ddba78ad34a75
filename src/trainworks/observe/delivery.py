"""Deliver a message through apprise."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from trainworks.config.notify import Notifications, Occasion, filled_in, public_name
from trainworks.errors import EnvironmentProblem
from trainworks.observe.following import hidden
from trainworks.observe.libraries import check_library
from trainworks.observe.notify import Deliver, RunMessage

_TYPES: dict[Occasion, str] = {"finished": "success", "failed": "failure", "recovered": "info"}
"""Apprise's type of an occasion, which chats show as a colour; the others are warnings."""


class _Reasons(logging.Handler):
    """Collects why apprise could not deliver, which it only logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def apprise_delivery(options: Notifications, environment: Mapping[str, str], secrets: Iterable[str]) -> Deliver:
    """A function that delivers a message to one URL of the options.

    Neither the message nor an error contains a secret, or the value of a variable that a URL names.

    Args:
        options: those of the run file.
        environment: variables of the URLs.
        secrets: of the run.

    Raises:
        MissingExtraError: apprise is not installed.
    """
    check_library("apprise", "notify")
    apprise: Any = import_module("apprise")
    secrets = {*secrets, *(environment.get(name, "") for name in options.variables)}

    def deliver(url: str, message: RunMessage) -> None:
        service, reasons = apprise.Apprise(), _Reasons()
        logger = logging.getLogger("apprise")
        logger.addHandler(reasons)
        logger.propagate = False
        try:
            taken = service.add(filled_in(url, environment)) and service.notify(
                title=hidden(message.title, secrets),
                body=hidden(message.body, secrets),
                notify_type=_TYPES.get(message.occasion, "warning"),
                body_format="text",
            )
        finally:
            logger.removeHandler(reasons)
        if not taken:
            why = hidden("; ".join(reasons.texts), secrets) or "apprise does not know its form"
            raise EnvironmentProblem(f"`{public_name(url)}` did not take the message: {why[:500]}")

    return deliver
