"""Read objects in S3 as files, with the job's own credentials, by obstore."""

import io
import json
import os
import urllib.request
from datetime import datetime
from typing import Any

import obstore
from obstore.store import S3Store

BUFFER_BYTES = 8 << 20


def role_of_jobs() -> dict[str, Any]:
    """Return the credentials that the node's agent lends to a job; obstore asks again before they expire."""
    request = urllib.request.Request(
        os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"],
        headers={"Authorization": os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"]},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        lent = json.load(answer)
    return {
        "access_key_id": lent["AccessKeyId"],
        "secret_access_key": lent["SecretAccessKey"],
        "token": lent["Token"],
        "expires_at": datetime.fromisoformat(lent["Expiration"].replace("Z", "+00:00")),
    }


class Bucket:
    """Opens what is below s3://bucket/."""

    def __init__(self, url: str) -> None:
        self.root = "/".join(url.split("/")[:3])
        endpoint = os.environ.get("AWS_ENDPOINT_URL")  # of the local cloud; AWS's own without it
        self._store = S3Store.from_url(
            self.root,
            region=os.environ["AWS_DEFAULT_REGION"],
            credential_provider=role_of_jobs,
            client_options={"allow_http": True} if endpoint else {},
            **({"endpoint": endpoint} if endpoint else {}),
        )

    def open(self, url: str) -> io.BufferedReader:
        """Open an object for reading; it is fetched in ranges of BUFFER_BYTES."""
        return io.BufferedReader(_Object(self._store, url.removeprefix(f"{self.root}/")), BUFFER_BYTES)


class _Object(io.RawIOBase):
    def __init__(self, store: S3Store, key: str) -> None:
        self._store, self._key, self._at = store, key, 0
        self._size = obstore.head(store, key)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        buffer[:length] = bytes(obstore.get_range(self._store, self._key, start=self._at, length=length))
        self._at += length
        return length
