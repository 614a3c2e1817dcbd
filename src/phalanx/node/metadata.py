"""Read identity and the role's credentials from the instance metadata service (IMDSv2)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from phalanx.node import wire
from phalanx.node.sigv4 import Credentials, Request

_ROLE = "meta-data/iam/security-credentials/"
_TOKEN_S = 21600
_EARLY_S = 300


@dataclass(frozen=True)
class Identity:
    """This machine's identity in EC2."""

    instance_id: str
    address: str
    zone: str
    type: str


class Metadata:
    """A session with the service; `AWS_EC2_METADATA_SERVICE_ENDPOINT` overrides its address, as in the SDKs."""

    def __init__(self) -> None:
        self._base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
        self._token = ""
        self._token_ends = 0.0
        self._keys = Credentials("", "")
        self._expires = ""

    def get(self, path: str) -> str:
        """Read `/latest/<path>`. Raises OSError after 30 s without an answer."""
        if time.monotonic() > self._token_ends:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = self._ask("PUT", "/latest/api/token", wish)
            self._token_ends = time.monotonic() + _TOKEN_S - _EARLY_S
        return self._ask("GET", "/latest/" + path, {"X-aws-ec2-metadata-token": self._token})

    def identity(self) -> Identity:
        known = json.loads(self.get("dynamic/instance-identity/document"))
        return Identity(known["instanceId"], known["privateIp"], known["availabilityZone"], known["instanceType"])

    def credentials(self, fresh: bool = False) -> Credentials:
        """Return the role's credentials; read them again 5 minutes before they expire, or if `fresh`."""
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _EARLY_S))
        if fresh or self._expires < soon:
            role = self.get(_ROLE).split()[0]
            answer = json.loads(self.get(_ROLE + role))
            self._keys = Credentials(answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
            self._expires = answer["Expiration"]
        return self._keys

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = Request(method, self._base + path, headers)
        return wire.insist(lambda: wire.fetch(request, 5), 30, f"the metadata service at {self._base}").decode()
