"""The only importer of botocore: S3 and what speaks like it; a later process goes on with an upload in parts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from remote.output.objects import ONE_REQUEST_BYTES, ChangedError, Found, blocks, md5
from remote.output.parts_file import PartsFile, PartsUpload
from remote.packages import load_package

_GONE = ("NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall")


class S3Objects:
    """Credentials, region and endpoint by botocore's whole chain: environment, profiles, SSO, web identity, role."""

    def __init__(self, url: str) -> None:
        session = load_package("botocore.session", "--object-store").get_session()
        config = load_package("botocore.config", "--object-store").Config
        exceptions = load_package("botocore.exceptions", "--object-store")
        garbled = load_package("botocore.parsers", "--object-store").ResponseParserError
        self.errors: tuple[type[Exception], ...] = (exceptions.BotoCoreError, exceptions.ClientError, garbled)
        self._refused = exceptions.ClientError
        self._failures = (*self.errors, OSError, ChangedError)
        parts = urlsplit(url)
        self._url, self._bucket, self._prefix = url, parts.netloc, parts.path.strip("/")
        try:
            self._client = session.create_client(
                "s3",
                region_name=os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1",
                endpoint_url=os.environ.get("AWS_ENDPOINT") or None,
                config=config(
                    connect_timeout=10,
                    read_timeout=120,
                    retries={"mode": "standard", "total_max_attempts": 4},
                    # Not every store that speaks like S3 knows the newer checksums; all know Content-MD5.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except exceptions.BotoCoreError as error:
            raise ValueError(str(error)) from None

    def head(self, name: str) -> Found | None:
        try:
            meta = self._client.head_object(**self._at(name))
        except self._refused as error:
            if _code(error) in ("404", "NoSuchKey", "NoSuchBucket"):
                return None
            if _code(error).isdigit():
                # The answer to a HEAD has no body; a listing's says why.
                self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
            raise
        return Found(int(meta["ContentLength"]), str(meta.get("ETag", "")).strip('"'))

    def put(self, path: Path, sha256: str) -> None:
        if path.stat().st_size > ONE_REQUEST_BYTES:
            self._put_parts(path, sha256)
            return
        data = b"".join(blocks(path, sha256))
        self._client.put_object(**self._at(path.name), Body=data, ContentMD5=_base64(md5(data)))

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._client.put_object(**self._at(name), Body=data, IfNoneMatch="*")
        except self._refused as error:
            if _code(error) == "PreconditionFailed":
                return False
            if _code(error) != "NotImplemented":
                raise
            if self.head(name) is not None:
                return False
            self._client.put_object(**self._at(name), Body=data)
        return True

    def read(self, name: str) -> Iterator[bytes]:
        yield from self._client.get_object(**self._at(name))["Body"].iter_chunks(1 << 20)

    def _put_parts(self, path: Path, sha256: str) -> None:
        file = PartsFile(path.parent)
        upload = file.upload
        if upload is None or upload != PartsUpload(self._url, path.name, sha256, upload.id):
            self._abort(file)
            begun = self._client.create_multipart_upload(**self._at(path.name))
            upload = PartsUpload(self._url, path.name, sha256, begun["UploadId"])
            file.begin(upload)
        at = {**self._at(path.name), "UploadId": upload.id}
        try:
            tags = [self._put_part(at, file, number, block) for number, block in enumerate(blocks(path, sha256), 1)]
            listed = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
            self._client.complete_multipart_upload(**at, MultipartUpload={"Parts": listed})
        except self._failures as error:
            if not file.kept or isinstance(error, ChangedError) or _code(error) in _GONE:
                self._abort(file)
            raise
        file.forget()

    def _put_part(self, at: dict[str, Any], file: PartsFile, number: int, block: bytes) -> str:
        digest = md5(block)
        known = file.e_tag(number, digest.hexdigest())
        if known is None:
            answer = self._client.upload_part(**at, PartNumber=number, Body=block, ContentMD5=_base64(digest))
            known = str(answer["ETag"])
            file.add(number, digest.hexdigest(), known)
        return known

    def _abort(self, file: PartsFile) -> None:
        """Removes the parts if that can be; what is left is the business of the bucket's lifecycle rule."""
        if file.upload is not None:
            parts = urlsplit(file.upload.url)
            key = "/".join(filter(None, (parts.path.strip("/"), file.upload.shard)))
            with contextlib.suppress(*self.errors):
                self._client.abort_multipart_upload(Bucket=parts.netloc, Key=key, UploadId=file.upload.id)
        file.forget()

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": "/".join(filter(None, (self._prefix, name)))}


def _code(error: Exception) -> str:
    """S3's word for what is wrong; empty for an error that isn't the store's answer."""
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _base64(digest: hashlib._Hash) -> str:
    return base64.b64encode(digest.digest()).decode()
