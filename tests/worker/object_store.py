"""An S3-compatible store on the loopback address: moto's server, which keeps objects in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def s3_server() -> Iterator[Any]:
    """A server with the bucket `bucket`; the environment points at it, as it would at any S3-compatible store."""
    server_module = pytest.importorskip("moto.server", reason="NOT TESTED: S3; needs moto and flask")
    s3fs = pytest.importorskip("s3fs", reason="NOT TESTED: S3; needs trainworks[s3]")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    wanted = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
        yield server
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
