"""A real HTTP S3 endpoint on loopback (moto's), with faults in front of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from remote.output.object_store import CLAIM_FILE

_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_GARBLED = "<html><body>A proxy says %s<br></body>"
_ERROR = '<?xml version="1.0"?><Error><Code>%s</Code><Message>A fault of the test.</Message></Error>'


@dataclass(eq=False)
class S3:
    """`faults` are used up one a PUT or part: 503, slow, reset, an error's code (403), or none; `puts` counts them all.
    `denied` is the code that everything is refused with. `complete_faults` are used up one a completion, as a 200 with
    that code, or with no XML (garbled). With `encrypted` an ETag is no MD5, as under SSE-KMS. It passes for GCS too,
    whose XML requests are S3's but for the token, and the header of a put that must not write over anything.
    """

    url: str = ""
    faults: list[str] = field(default_factory=list)
    complete_faults: list[str] = field(default_factory=list)
    denied: str = ""
    encrypted: bool = False
    puts: int = 0

    @cached_property
    def _client(self) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def client(self) -> Any:
        return self._client

    def objects(self, bucket: str = "bucket") -> dict[str, bytes]:
        client = self.client()
        listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        keys = [o["Key"] for o in listed if not o["Key"].endswith(CLAIM_FILE)]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def clear(self, bucket: str = "bucket") -> None:
        """Removes all objects and uploads, and every fault."""
        client = self.client()
        for found in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            client.delete_object(Bucket=bucket, Key=found["Key"])
        for key, upload in self.uploads(bucket):
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
        self.faults, self.complete_faults, self.denied, self.encrypted, self.puts = [], [], "", False, 0

    def uploads(self, bucket: str = "bucket") -> list[tuple[str, str]]:
        """Key and id of those under way."""
        listed = self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return [(upload["Key"], upload["UploadId"]) for upload in listed]

    def environ(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        return {**keys, "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true"}


class _Faulty:
    def __init__(self, app: Any, s3: S3) -> None:
        self._app, self._s3 = app, s3

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        s3, method = self._s3, environ["REQUEST_METHOD"]
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("AWS4"):
            environ["HTTP_AUTHORIZATION"] = _SIGNED
            if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
                environ["HTTP_IF_NONE_MATCH"] = "*"
        if method == "PUT":
            s3.puts += 1
            fault = s3.faults.pop(0) if s3.faults else ""
            if fault == "slow":
                time.sleep(0.2)
            elif fault == "reset":
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                return _answer(start, "500 Gone")
            elif fault:
                return _answer(start, "503 Slow Down") if fault == "503" else _answer(start, "403 Forbidden", fault)
        if s3.denied:
            return _answer(start, "403 Forbidden", "" if method == "HEAD" else s3.denied)
        if method == "POST" and "uploadId=" in environ["QUERY_STRING"] and s3.complete_faults:
            fault = s3.complete_faults.pop(0)
            return _answer(start, "200 OK", fault, _GARBLED if fault == "garbled" else _ERROR)
        begin = self._encrypting(start) if s3.encrypted and method == "HEAD" else start
        answer: Iterable[bytes] = self._app(environ, begin)
        return answer

    @staticmethod
    def _encrypting(start: Callable[..., Any]) -> Callable[..., Any]:
        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [(k, f'"{7:032x}"' if k.lower() == "etag" else v) for k, v in headers], *rest)

        return begin


def _answer(start: Callable[..., Any], status: str, code: str = "", text: str = _ERROR) -> list[bytes]:
    body = (text % code).encode() if code else b""
    start(status, [("Content-Length", str(len(body)))])
    return [body]


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        """A line for each request helps nobody."""


@contextmanager
def s3_server() -> Iterator[S3]:
    """An endpoint with an empty bucket named bucket."""
    s3 = S3()
    app = _Faulty(DomainDispatcherApplication(create_backend_app), s3)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)  # type: ignore[arg-type]
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
