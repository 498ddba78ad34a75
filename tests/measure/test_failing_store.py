"""A store that fails every tenth request, in front of moto's server."""

from __future__ import annotations

import os

import pytest

from tests.worker.object_store import s3_server
from trainworks.measure.drill.failing_store import FailingStore


def test_every_tenth_request_fails_while_the_store_fails_and_all_others_arrive() -> None:
    botocore_session = pytest.importorskip("botocore.session", reason="NOT TESTED: S3; needs trainworks[s3]")
    config = pytest.importorskip("botocore.config")
    with s3_server(), FailingStore(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        once = config.Config(retries={"total_max_attempts": 1})
        s3 = botocore_session.get_session().create_client("s3", endpoint_url=proxy.address, config=once)

        def refused(number: int) -> bool:
            try:
                s3.put_object(Bucket="bucket", Key=f"key-{number}", Body=b"x" * number)
            except s3.exceptions.ClientError as error:
                return error.response["Error"]["Code"] == "SlowDown"
            return False

        assert not any(refused(number) for number in range(15))
        proxy.fail()
        assert [number for number in range(100, 130) if refused(number)] == [109, 119, 129]
        proxy.recover()
        assert not any(refused(number) for number in range(200, 215))
        assert proxy.failed == 3
        assert s3.head_object(Bucket="bucket", Key="key-105")["ContentLength"] == 105
        assert s3.get_object(Bucket="bucket", Key="key-105")["Body"].read() == b"x" * 105
        s3.delete_object(Bucket="bucket", Key="key-105")
        with pytest.raises(s3.exceptions.ClientError):
            s3.head_object(Bucket="bucket", Key="key-105")
