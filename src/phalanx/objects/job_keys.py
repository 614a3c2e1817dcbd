"""The credentials of this job's role, from its node's agent, by the protocol that AWS's SDKs use in containers."""

from __future__ import annotations

import calendar
import json
import os
import time
import urllib.request
from typing import Optional

from phalanx.node.sigv4 import Credentials
from phalanx.objects.s3_client import S3Error

_FRESH_S = 600
# The agent may have just started, and knows its node's jobs within 2 s.
_TRIES = 10


class OfJob:
    """Returns the job's credentials, and fetches new ones before they expire. Raises S3Error."""

    def __init__(self) -> None:
        self._found: Optional[Credentials] = None
        self._until_s = 0.0

    def __call__(self) -> Credentials:
        if self._found is None or self._until_s < time.time() + _FRESH_S:
            answer = _answer()
            self._found = Credentials(answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
            self._until_s = calendar.timegm(time.strptime(answer["Expiration"][:19], "%Y-%m-%dT%H:%M:%S"))
        return self._found


def _answer() -> "dict[str, str]":
    # A proxy must not see the token, nor could it reach this node.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    token = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    request = urllib.request.Request(
        os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", ""), headers={"Authorization": token}
    )
    for count in range(_TRIES):
        try:
            with direct.open(request, timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            if count == _TRIES - 1:
                raise S3Error(f"this node's agent gives no credentials of the role of jobs: {error}") from error
            time.sleep(1)
    raise AssertionError
