"""A trainer that asks servers for rewards, as a trainer of a language model asks its inference servers for samples.

The servers answer at TRAINWORKS_PORT; the trainer finds them in TRAINWORKS_ADDRESSES_REWARD. It moves one number
towards the highest reward, and prints its steps. Only the standard library is used.
"""

from __future__ import annotations

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from urllib.error import URLError
from urllib.request import urlopen

BEST = 3.0


class Reward(BaseHTTPRequestHandler):
    """Answers `GET /2.5` with the reward of 2.5."""

    def do_GET(self) -> None:
        value = -((float(self.path.strip("/")) - BEST) ** 2)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(value).encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing of a request."""


def serve() -> None:
    """Serve until the job ends."""
    ThreadingHTTPServer(("", int(os.environ["TRAINWORKS_PORT"])), Reward).serve_forever()


def reward(address: str, value: float) -> float:
    """Ask a server, which may still start, or start again."""
    for _ in range(600):
        try:
            with urlopen(f"http://{address}/{value}", timeout=10) as answer:
                return float(answer.read())
        except (URLError, ConnectionError):
            time.sleep(0.1)  # noqa: TID251  # it runs without Trainworks, too
    raise SystemExit(f"the server at {address} does not answer")


def train() -> None:
    """Climb along the slope between two rewards."""
    servers = cycle(os.environ["TRAINWORKS_ADDRESSES_REWARD"].split(","))
    value = 0.0
    for step in range(1, 16):
        low, high = (reward(next(servers), value + shift) for shift in (-0.1, 0.1))
        value += 0.2 * (high - low) / 0.2
        print(f"step {step} loss={-reward(next(servers), value):.6f}")
        time.sleep(0.2)  # noqa: TID251  # a step takes its time


if __name__ == "__main__":
    serve() if os.environ["TRAINWORKS_ROLE"] == "reward" else train()
