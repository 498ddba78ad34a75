"""Client of an API server: the official library, with a timeout for every request and one exception per outcome."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, final

import yaml

from trainworks.errors import EnvironmentProblem, MissingExtraError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock

_LOG = logging.getLogger(__name__)

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
Query = Mapping[str, str]
Object = Mapping[str, Any]
"""A JSON object of the API; its kind says which keys it has."""

_TIMEOUT_S = (5.0, 30.0)
"""Timeouts to connect and to read."""
_PATIENCE_S = 30.0
"""Time for which a server that is busy or away is asked again."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
"""Waits before a request is repeated, each twice as long as the one before, where the server names none."""
_TOO_MANY = 429
_PAGE = 500
_CONFIGURATION = "~/.kube/config"
_BUSY = (429, 500, 502, 503, 504)
_UNKNOWN_USER = 401
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError)
"""Exceptions of the library for an invalid kubectl configuration."""
_HINT = "check that `kubectl get nodes` works"
_FORBIDDEN = 403
_NO_RIGHT = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<kind>[\w/]+)"')
"""What RBAC says; 403 without it is of a quota, or of an admission controller."""


class KubernetesRefusedError(UsageError):
    """The API server refused the request; the message is the server's."""


class _BusyError(UnreachableError):
    """The server cannot answer now; it may ask for a wait, and say that it has not read the request."""

    retry_after_s: float | None = None
    is_unread = False


class NotFound(KubernetesRefusedError):
    """The object does not exist."""


class NotServed(UnreachableError):
    """The server does not serve this kind of object, or does not serve it yet after its start."""


class Conflict(KubernetesRefusedError):
    """An object of this name already exists."""


@final
class KubernetesClient:
    """Sends requests to an API server; imports and reads nothing before the first one.

    `context` of kubectl's configuration is the current one, or that of this pod, when None. `configuration` has the
    paths of that configuration; those in KUBECONFIG when None.

    A request without an answer, or with a busy one, is repeated for half a minute, after the wait of `Retry-After` if
    the server names one; a POST after 429 alone, because the server has not read that.
    """

    def __init__(
        self, context: str | None = None, configuration: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self._context = context
        self._configuration = configuration
        self._api: Any = None
        self._timeout_s = _TIMEOUT_S
        self._patience_s = _PATIENCE_S
        self._clock = clock or SystemClock()

    def within(self, seconds: float) -> Self:
        """A client of the same server that waits for each answer only so long, and for a busy server."""
        hurried = copy.copy(self)
        hurried._timeout_s, hurried._patience_s = (seconds, seconds), seconds
        return hurried

    def get(self, path: str, query: Query | None = None) -> Object:
        """Get an object.

        Raises:
            UnreachableError: the server does not answer.
            NotFound: the object does not exist.
            KubernetesRefusedError: the server refuses the request for another reason.
            EnvironmentProblem: the configuration is missing, or its credentials are not accepted.
        """
        return self._request("GET", path, query=query)

    def list(self, path: str, query: Query | None = None) -> list[Object]:
        """List all objects of a kind, page by page. Raises: as `get`."""
        objects: list[Object] = []
        query = {"limit": str(_PAGE), **(query or {})}
        while True:
            page = self._request("GET", path, query=query)
            objects += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return objects
            query = {**query, "continue": token}

    def create(self, path: str, body: Object) -> Object:
        """Create an object; the server refuses unknown fields. Raises: as `get`, and Conflict."""
        return self._request("POST", path, body, {"fieldValidation": "Strict"})

    def patch(self, path: str, body: Object) -> Object:
        """Change some fields; None removes a field. Raises: as `get`."""
        return self._request("PATCH", path, body)

    def delete(self, path: str, body: Object | None = None, query: Query | None = None) -> None:
        """Delete an object, or a collection. Raises: as `get`."""
        self._request("DELETE", path, body, query)

    def lines(self, path: str, query: Query) -> Iterator[str]:
        """Stream a log line by line. Raises: as `get`."""
        response = self._call("GET", path, None, query, stream=True)
        errors = importlib.import_module("urllib3.exceptions")
        rest = b""
        try:
            for data in response.stream(decode_content=False):
                *complete, rest = (rest + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in complete)
        except errors.HTTPError as broken:
            raise _unreachable(broken) from None
        finally:
            response.release_conn()
        if rest:
            yield rest.decode(errors="replace")

    def _request(self, verb: Verb, path: str, body: Object | None = None, query: Query | None = None) -> Object:
        response = self._call(verb, path, body, query)
        found: Object = json.loads(response.data or b"{}") if response is not None else {}
        return found

    def _call(self, verb: Verb, path: str, body: Object | None, query: Query | None, *, stream: bool = False) -> Any:
        """Send a request, and repeat it while the server is busy or away, and patience is left."""
        began_at, wait_s, requests = self._clock.now(), _FIRST_WAIT_S, 1
        while True:
            try:
                return self._call_once(verb, path, body, query, stream=stream)
            except _BusyError as busy:
                pause_s = wait_s if busy.retry_after_s is None else busy.retry_after_s
                is_over = self._clock.now() + pause_s > began_at + self._patience_s
                if is_over or (verb == "POST" and not busy.is_unread):
                    asked = f" (asked {requests} times in {self._clock.now() - began_at:.0f} s)" if requests > 1 else ""
                    raise UnreachableError(f"{busy.message}{asked}", hint=busy.hint) from None
                self._clock.sleep(pause_s)
                wait_s, requests = min(_LONGEST_WAIT_S, 2 * wait_s), requests + 1
            except NotFound:
                if verb == "DELETE" and requests > 1:  # an earlier request has done it
                    return None
                raise

    def _call_once(
        self, verb: Verb, path: str, body: Object | None, query: Query | None, *, stream: bool = False
    ) -> Any:
        if self._api is None:
            self._api = self._connected()
        errors = importlib.import_module("urllib3.exceptions")
        refusals = importlib.import_module("kubernetes.client.exceptions")
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        started_s, result = time.perf_counter(), "no answer"
        try:
            response = self._api.call_api(
                path,
                verb,
                query_params=list((query or {}).items()),
                header_params={"Accept": "*/*" if stream else "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(self._timeout_s[0], None) if stream else self._timeout_s,
            )
            if not stream:
                _ = response.data  # read while the server may still go away
            result = "answered"
            return response
        except refusals.ApiException as refused:
            result = f"refused with {refused.status}"
            raise _refused(refused, path) from None
        except (errors.HTTPError, OSError) as error:
            raise _unreachable(error) from None
        finally:
            _LOG.info("%s %s: %s after %.2f s", verb, path, result, time.perf_counter() - started_s)

    def _connected(self) -> Any:
        """Connect on first use: the imports take half a second."""
        try:
            config = importlib.import_module("kubernetes.config")
            client = importlib.import_module("kubernetes.client")
        except ImportError:
            raise MissingExtraError("kubernetes", "kubernetes") from None
        settings = client.Configuration()
        try:
            is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
            if self._context is None and self._configuration is None and is_in_pod:
                config.load_incluster_config(client_configuration=settings)
            else:
                paths = self._configuration or os.environ.get("KUBECONFIG") or _CONFIGURATION
                config.load_kube_config(paths, self._context, settings, persist_config=False)
        except (config.ConfigException, *_UNREADABLE) as problem:
            hint = "set KUBECONFIG to kubectl's configuration, and `cluster.kubernetes.context` to one in it"
            raise EnvironmentProblem(
                f"cannot load the configuration of a Kubernetes cluster: {problem}", hint=hint
            ) from None
        settings.retries = False
        return client.ApiClient(settings)


def _unreachable(error: Exception) -> _BusyError:
    return _BusyError(f"the API server does not answer: {error}", hint=_HINT)


def _refused(error: Any, path: str) -> EnvironmentProblem | KubernetesRefusedError:
    try:
        answer = json.loads(error.body)
    except (TypeError, ValueError):
        answer = None
    is_object = isinstance(answer, dict)  # for an unknown path the server answers in plain text
    message = str(answer["message"]) if is_object and "message" in answer else f"{error.status} {error.reason}"
    if error.status == 404 and not is_object:
        return NotServed(
            f"the API server does not serve `{path}`", hint="install JobSet, and Kueue for queues, in the cluster"
        )
    if error.status in _BUSY:
        busy = _BusyError(f"the API server does not answer: {message}", hint="try again later")
        after = str((error.headers or {}).get("Retry-After") or "")
        busy.retry_after_s, busy.is_unread = float(after) if after.isdecimal() else None, error.status == _TOO_MANY
        return busy
    if error.status == _UNKNOWN_USER:
        return EnvironmentProblem(f"the API server does not accept your credentials: {message}", hint=_HINT)
    kind = {404: NotFound, 409: Conflict}.get(error.status, KubernetesRefusedError)
    lacks = _NO_RIGHT.search(message) if error.status == _FORBIDDEN else None
    return kind(message, hint=_rights(lacks["user"], lacks["verb"], lacks["kind"]) if lacks else None)


def _rights(user: str, verb: str, kind: str) -> str:
    """What an administrator applies so that a user may do this."""
    part = "operator" if (verb, kind) == ("patch", "nodes") else "base"
    given = f"an administrator has to apply deploy/kubernetes/{part}"
    if user == "system:serviceaccount:trainworks:trainworks":
        return given
    return f"{given}, and to list the user `{user}` in the subjects of its bindings"
