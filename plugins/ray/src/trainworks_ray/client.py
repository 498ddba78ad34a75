"""Ray's dashboard over HTTP, by the standard library alone; every call has a time limit, and every answer one meaning.

Source: the Jobs and State interfaces of Ray 2.60 (python/ray/dashboard/modules/job/job_head.py, state/state_head.py).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Never, final
from urllib.parse import quote, urlencode

from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks_ray.options import RayOptions

__all__ = ["RayClient", "Refused"]

_MOST = "10000"
"""Rows that the State interface gives; more is refused by Ray."""
_AWAY = (502, 503, 504)
_NO_AGENT = "No available agent to submit job"


class Refused(UsageError):
    """Ray understood, and says no; the message is its own."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not follow to another host."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


@final
class RayClient:
    """Calls one dashboard.

    Args:
        options: its address, its token and its certificate.
        env: variables of this shell; those of this process when None.
        timeout_s: of a question; what is sent to the cluster has four times as long.
    """

    def __init__(self, options: RayOptions, env: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        self._options = options
        self._timeout_s = timeout_s
        env = os.environ if env is None else env
        token = env.get(options.token_from, "").strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener: urllib.request.OpenerDirector | None = None

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that Ray remembers.

        Raises:
            UnreachableError: nobody answers there.
            Refused: Ray says no.
            EnvironmentProblem: the token or the certificate is not good, or something else answers there.
        """
        found = self._ask("GET", "/api/jobs/")
        return found if isinstance(found, list) else self._not_ray(found)

    def job(self, name: str) -> dict[str, Any] | None:
        """One job; None if there is none.

        Raises: as `jobs`.
        """
        found = self._ask("GET", f"/api/jobs/{quote(name, safe='')}", missing=True)
        return found if found is None or isinstance(found, dict) else self._not_ray(found)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job.

        Raises: as `jobs`.
        """
        self._ask("POST", "/api/jobs/", body=json.dumps(request).encode())

    def stop(self, name: str) -> None:
        """Ask a job to end; one that has ended, or never was, is left alone.

        Raises: as `jobs`.
        """
        self._ask("POST", f"/api/jobs/{quote(name, safe='')}/stop", missing=True)

    def upload(self, package: str, content: bytes) -> str:
        """Store a package, unless it is there; returns its URI.

        Args:
            package: its name, which says what is in it.
            content: a zip archive.

        Raises: as `jobs`.
        """
        path = f"/api/packages/gcs/{quote(package, safe='')}"
        if self._call("GET", path, missing=True) is None:
            self._call("PUT", path, body=content)
        return f"gcs://{package}"

    def logs(self, name: str) -> str:
        """What a job has printed; nothing of one that is not there.

        Raises: as `jobs`.
        """
        found = self._ask("GET", f"/api/jobs/{quote(name, safe='')}/logs", missing=True)
        return str((found or {}).get("logs") or "")

    def state(self, what: str) -> list[dict[str, Any]]:
        """Rows of the State interface: `nodes`, `placement_groups`, `actors`.

        Raises: as `jobs`.
        """
        found = self._ask("GET", f"/api/v0/{what}?{urlencode({'detail': 1, 'limit': _MOST})}")
        try:
            rows: list[dict[str, Any]] = found["data"]["result"]["result"]
        except (TypeError, KeyError):
            self._not_ray(found)
        return rows

    def _ask(self, method: str, path: str, *, body: bytes | None = None, missing: bool = False) -> Any:
        content = self._call(method, path, body=body, missing=missing)
        if content is None:
            return None
        try:
            return json.loads(content)
        except ValueError:
            self._not_ray(content[:80])

    def _call(self, method: str, path: str, *, body: bytes | None = None, missing: bool = False) -> bytes | None:
        """The answer; None for 404 where something may be missing."""
        try:
            with self._open(method, path, body) as answer:
                content: bytes = answer.read()
                return content
        except _Missing:
            if missing:
                return None
            raise
        except (OSError, http.client.HTTPException) as error:
            self._silent(error)

    def _open(self, method: str, path: str, body: bytes | None) -> Any:
        timeout_s = self._timeout_s if body is None else 4 * self._timeout_s
        headers = self._headers | ({"Content-Type": "application/json"} if body else {})
        request = urllib.request.Request(self._address + path, data=body, headers=headers, method=method)  # noqa: S310
        try:
            return self._through().open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error.code, error.read(20_000).decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            self._silent(error)

    @property
    def _address(self) -> str:
        if self._options.address is None:
            hint = "set it to the dashboard, like `http://ray-head:8265`"
            raise UsageError("`cluster.ray.address` is missing: where Ray answers", hint=hint)
        return self._options.address.rstrip("/")

    def _through(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
            if self._address.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=self._tls()))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"`cluster.ray.ca_file` cannot be read: {error}") from None
        if not self._options.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _silent(self, error: Exception) -> Never:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "name the authority's certificate in `cluster.ray.ca_file`"
            raise EnvironmentProblem(f"`{self._address}` is not trusted: {reason.verify_message}", hint=hint) from None
        raise UnreachableError(f"Ray does not answer at {self._address}: {reason}", hint="try again later") from None

    def _refused(self, code: int, text: str) -> Never:
        said = _reason(text) or f"status {code}"
        if code in (401, 403):
            hint = f"set {self._options.token_from} to the cluster's token"
            raise EnvironmentProblem(f"Ray at {self._address} refuses the token: {said[:200]}", hint=hint)
        if code in _AWAY or _NO_AGENT in text:
            raise UnreachableError(f"Ray does not answer at {self._address}: {said[:200]}", hint="try again later")
        if code == 404:
            raise _Missing(f"Ray: {said[:500]}")
        raise Refused(f"Ray: {said[:500]}")

    def _not_ray(self, answer: object) -> Never:
        hint = "`cluster.ray.address` is that of Ray's dashboard, port 8265 unless somebody changed it"
        raise EnvironmentProblem(f"what answers at {self._address} is no Ray: {str(answer)[:80]!r}", hint=hint)


def _reason(text: str) -> str:
    """The message of the last exception of a traceback; else the last line with a word in it."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [found[1] for line in lines if (found := re.match(r"(?:\w+\.)*\w+(?:Error|Exception): (.+)", line))]
    return [*lines[-1:], *errors][-1] if lines else ""


class _Missing(Refused):
    """There is no such thing."""
