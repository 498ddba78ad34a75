"""HTTP client of Ray's dashboard, with a timeout for every call and one exception per outcome.

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

__all__ = ["RayClient", "RayRefusedError"]

_MAX_ROWS = "10000"
"""Row limit of the State interface; Ray refuses a larger one."""
_UNAVAILABLE = (502, 503, 504)
_NO_AGENT = "No available agent to submit job"


class RayRefusedError(UsageError):
    """Ray refused the request; the message is Ray's."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keeps the token from being sent to another host."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


@final
class RayClient:
    """Calls the dashboard of one cluster.

    Args:
        options: address, token variable and certificate.
        env: environment of the shell; when None the environment of this process.
        timeout_s: timeout of a query; uploads get four times as long.
    """

    def __init__(self, options: RayOptions, env: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        self._options = options
        self._timeout_s = timeout_s
        env = os.environ if env is None else env
        token = env.get(options.token_from, "").strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener: urllib.request.OpenerDirector | None = None

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that Ray knows.

        Raises:
            UnreachableError: Ray does not answer.
            RayRefusedError: Ray refuses the request.
            EnvironmentProblem: the token or certificate is invalid, or another service answers.
        """
        jobs = self._request("GET", "/api/jobs/")
        return jobs if isinstance(jobs, list) else self._not_ray(jobs)

    def job(self, name: str) -> dict[str, Any] | None:
        """One job, or None if Ray does not know it.

        Raises: as `jobs`.
        """
        job = self._request("GET", f"/api/jobs/{quote(name, safe='')}", missing=True)
        return job if job is None or isinstance(job, dict) else self._not_ray(job)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job.

        Raises: as `jobs`.
        """
        self._request("POST", "/api/jobs/", body=json.dumps(request).encode())

    def stop(self, name: str) -> None:
        """Stop a job; ignore one that has ended or does not exist.

        Raises: as `jobs`.
        """
        self._request("POST", f"/api/jobs/{quote(name, safe='')}/stop", missing=True)

    def upload(self, package: str, content: bytes) -> str:
        """Upload a package unless it exists; returns its URI.

        Args:
            package: name, which identifies the content.
            content: a zip archive.

        Raises: as `jobs`.
        """
        path = f"/api/packages/gcs/{quote(package, safe='')}"
        if self._call("GET", path, missing=True) is None:
            self._call("PUT", path, body=content)
        return f"gcs://{package}"

    def logs(self, name: str) -> str:
        """Output of a job; empty if Ray does not know it.

        Raises: as `jobs`.
        """
        answer = self._request("GET", f"/api/jobs/{quote(name, safe='')}/logs", missing=True)
        return str((answer or {}).get("logs") or "")

    def state(self, kind: str) -> list[dict[str, Any]]:
        """Rows of the State interface: `nodes`, `placement_groups`, `actors`.

        Raises: as `jobs`.
        """
        answer = self._request("GET", f"/api/v0/{kind}?{urlencode({'detail': 1, 'limit': _MAX_ROWS})}")
        try:
            rows: list[dict[str, Any]] = answer["data"]["result"]["result"]
        except (TypeError, KeyError):
            self._not_ray(answer)
        return rows

    def _request(self, method: str, path: str, *, body: bytes | None = None, missing: bool = False) -> Any:
        content = self._call(method, path, body=body, missing=missing)
        if content is None:
            return None
        try:
            return json.loads(content)
        except ValueError:
            self._not_ray(content[:80])

    def _call(self, method: str, path: str, *, body: bytes | None = None, missing: bool = False) -> bytes | None:
        """Body of the response; None for status 404 if `missing` is allowed."""
        try:
            with self._open(method, path, body) as answer:
                content: bytes = answer.read()
                return content
        except _Missing:
            if missing:
                return None
            raise
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)

    def _open(self, method: str, path: str, body: bytes | None) -> Any:
        timeout_s = self._timeout_s if body is None else 4 * self._timeout_s
        headers = self._headers | ({"Content-Type": "application/json"} if body else {})
        request = urllib.request.Request(self._address + path, data=body, headers=headers, method=method)  # noqa: S310
        try:
            return self._url_opener().open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                self._refuse(error.code, error.read(20_000).decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)

    @property
    def _address(self) -> str:
        if self._options.address is None:
            hint = "set it to the address of the dashboard, like `http://ray-head:8265`"
            raise UsageError("`cluster.ray.address` is missing", hint=hint)
        return self._options.address.rstrip("/")

    def _url_opener(self) -> urllib.request.OpenerDirector:
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
            raise UsageError(f"cannot read `cluster.ray.ca_file`: {error}") from None
        if not self._options.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _unreachable(self, error: Exception) -> Never:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "set `cluster.ray.ca_file` to the certificate of the authority"
            raise EnvironmentProblem(
                f"cannot verify the certificate of `{self._address}`: {reason.verify_message}", hint=hint
            ) from None
        raise UnreachableError(f"Ray does not answer at {self._address}: {reason}", hint="try again later") from None

    def _refuse(self, code: int, text: str) -> Never:
        message = _reason(text) or f"status {code}"
        if code in (401, 403):
            hint = f"set {self._options.token_from} to the cluster's token"
            raise EnvironmentProblem(f"Ray at {self._address} refused the token: {message[:200]}", hint=hint)
        if code in _UNAVAILABLE or _NO_AGENT in text:
            raise UnreachableError(f"Ray does not answer at {self._address}: {message[:200]}", hint="try again later")
        if code == 404:
            raise _Missing(f"Ray: {message[:500]}")
        raise RayRefusedError(f"Ray: {message[:500]}")

    def _not_ray(self, answer: object) -> Never:
        hint = "set `cluster.ray.address` to the dashboard of Ray, by default on port 8265"
        raise EnvironmentProblem(f"{self._address} is not a Ray dashboard: {str(answer)[:80]!r}", hint=hint)


def _reason(text: str) -> str:
    """Message of the last exception in a traceback, or the last line with a word in it."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [match[1] for line in lines if (match := re.match(r"(?:\w+\.)*\w+(?:Error|Exception): (.+)", line))]
    return [*lines[-1:], *errors][-1] if lines else ""


class _Missing(RayRefusedError):
    """Ray does not know the object."""
