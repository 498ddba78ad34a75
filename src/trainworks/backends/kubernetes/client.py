"""An API server, through the official client; every question has a time limit, and every answer one meaning."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, final

import yaml

from trainworks.errors import EnvironmentProblem, MissingExtraError, UnreachableError, UsageError

__all__ = ["Conflict", "KubernetesClient", "NotFound", "NotServed", "Refused"]

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
Query = Mapping[str, str]

_TIMEOUT_S = (5.0, 30.0)
"""To connect, and to read."""
_PAGE = 500
_CONFIGURATION = "~/.kube/config"
_BUSY = (429, 500, 502, 503, 504)
_UNKNOWN_USER = 401
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError)
"""What the client says of a configuration that is no kubectl's."""
_HINT = "does `kubectl get nodes` work?"


class Refused(UsageError):
    """The API server understood, and says no; the message is its own."""


class NotFound(Refused):
    """There is no such object."""


class NotServed(UnreachableError):
    """The server does not know that kind of objects, or not yet: it was started a moment ago."""


class Conflict(Refused):
    """An object of that name is there already."""


@final
class KubernetesClient:
    """Asks an API server; nothing is imported or read before the first question.

    Args:
        context: of kubectl's configuration; its current one when None, or that of the pod that this runs in.
        configuration: paths of kubectl's configuration; those of KUBECONFIG when None.
    """

    def __init__(self, context: str | None = None, configuration: str | None = None) -> None:
        self._context = context
        self._configuration = configuration
        self._api: Any = None

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """An object.

        Raises:
            UnreachableError: the server does not answer.
            NotFound: there is no such object.
            Refused: the server says no, for whatever other reason.
            EnvironmentProblem: there is no configuration, or it lets nobody in.
        """
        return self._ask("GET", path, query=query)

    def list(self, path: str, query: Query | None = None) -> list[dict[str, Any]]:
        """All objects of a kind, page by page. Raises: as `get`."""
        found: list[dict[str, Any]] = []
        query = {"limit": str(_PAGE), **(query or {})}
        while True:
            page = self._ask("GET", path, query=query)
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {**query, "continue": following}

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object; a field that the server does not know is refused. Raises: as `get`, and Conflict."""
        return self._ask("POST", path, body, {"fieldValidation": "Strict"})

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change some fields; None takes one away. Raises: as `get`."""
        return self._ask("PATCH", path, body)

    def delete(self, path: str, body: Mapping[str, Any] | None = None, query: Query | None = None) -> None:
        """Delete an object, or a collection. Raises: as `get`."""
        self._ask("DELETE", path, body, query)

    def lines(self, path: str, query: Query) -> Iterator[str]:
        """A log, line by line as it comes. Raises: as `get`."""
        response = self._call("GET", path, None, query, stream=True)
        errors = importlib.import_module("urllib3.exceptions")
        rest = b""
        try:
            for data in response.stream(decode_content=False):
                *whole, rest = (rest + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
        except errors.HTTPError as broken:
            raise _silent(broken) from None
        finally:
            response.release_conn()
        if rest:
            yield rest.decode(errors="replace")

    def _ask(
        self, verb: Verb, path: str, body: Mapping[str, Any] | None = None, query: Query | None = None
    ) -> dict[str, Any]:
        response = self._call(verb, path, body, query)
        return dict(json.loads(response.data or b"{}"))

    def _call(
        self, verb: Verb, path: str, body: Mapping[str, Any] | None, query: Query | None, *, stream: bool = False
    ) -> Any:
        client = self._client()
        errors = importlib.import_module("urllib3.exceptions")
        refusals = importlib.import_module("kubernetes.client.exceptions")
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        try:
            return client.call_api(
                path,
                verb,
                query_params=list((query or {}).items()),
                header_params={"Accept": "*/*" if stream else "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(_TIMEOUT_S[0], None) if stream else _TIMEOUT_S,
            )
        except refusals.ApiException as refused:
            raise _refused(refused, path) from None
        except (errors.HTTPError, OSError) as silent:
            raise _silent(silent) from None

    def _client(self) -> Any:
        if self._api is None:
            self._api = self._connected()
        return self._api

    def _connected(self) -> Any:
        """Half a second: not before it is needed."""
        try:
            config = importlib.import_module("kubernetes.config")
            client = importlib.import_module("kubernetes.client")
        except ImportError:
            raise MissingExtraError("kubernetes", "kubernetes") from None
        settings = client.Configuration()
        try:
            if self._context is None and self._configuration is None and _in_a_pod():
                config.load_incluster_config(client_configuration=settings)
            else:
                paths = self._configuration or os.environ.get("KUBECONFIG") or _CONFIGURATION
                config.load_kube_config(paths, self._context, settings, persist_config=False)
        except (config.ConfigException, *_UNREADABLE) as problem:
            hint = "set KUBECONFIG to kubectl's configuration, and `cluster.kubernetes.context` to one in it"
            raise EnvironmentProblem(f"no way to a Kubernetes cluster: {problem}", hint=hint) from None
        settings.retries = False
        return client.ApiClient(settings)


def _in_a_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _silent(error: Exception) -> UnreachableError:
    return UnreachableError(f"the API server does not answer: {error}", hint=_HINT)


def _refused(error: Any, path: str) -> EnvironmentProblem | Refused:
    message = _words(error)
    if error.status == 404 and not _is_json(error.body):
        return NotServed(f"the API server does not serve `{path}`", hint="are JobSet and Kueue installed there?")
    if error.status in _BUSY:
        return UnreachableError(f"the API server does not answer: {message}", hint="try again later")
    if error.status == _UNKNOWN_USER:
        return EnvironmentProblem(f"the API server does not know you: {message}", hint=_HINT)
    kind = {404: NotFound, 409: Conflict}.get(error.status, Refused)
    return kind(message)


def _is_json(text: Any) -> bool:
    """The server's own words about an object; a path that it does not know is answered in plain text."""
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError):
        return False


def _words(error: Any) -> str:
    """The message in the server's answer."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
