"""A real HTTP S3 endpoint on loopback (moto's), with faults in front of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

_DENIED = (
    b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>'
)


@dataclass
class S3:
    """`faults` are used up one a PUT or part: 503, slow, reset, expired; `puts` counts them all."""

    url: str = ""
    faults: list[str] = field(default_factory=list)
    expired: bool = False
    puts: int = 0

    def client(self) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def objects(self, bucket: str = "bucket") -> dict[str, bytes]:
        client = self.client()
        listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {o["Key"]: client.get_object(Bucket=bucket, Key=o["Key"])["Body"].read() for o in listed}

    def environ(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        return {**keys, "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true"}


class _Faulty:
    def __init__(self, app: Any, s3: S3) -> None:
        self._app, self._s3 = app, s3

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        s3 = self._s3
        if environ["REQUEST_METHOD"] == "PUT":
            s3.puts += 1
            fault = "expired" if s3.expired else s3.faults.pop(0) if s3.faults else ""
            if fault == "503":
                start("503 Slow Down", [("Content-Length", "0")])
                return [b""]
            if fault == "expired":
                start("403 Forbidden", [("Content-Length", str(len(_DENIED)))])
                return [_DENIED]
            if fault == "slow":
                time.sleep(0.5)
            if fault == "reset":
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                start("500 Gone", [("Content-Length", "0")])
                return [b""]
        answer: Iterable[bytes] = self._app(environ, start)
        return answer


@contextmanager
def s3_server() -> Iterator[S3]:
    """An endpoint with an empty bucket named bucket."""
    s3 = S3()
    app = _Faulty(DomainDispatcherApplication(create_backend_app), s3)
    server = make_server("127.0.0.1", 0, app, threaded=True)  # type: ignore[arg-type]
    s3.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        s3.client().create_bucket(Bucket="bucket")
        s3.puts = 0
        yield s3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
