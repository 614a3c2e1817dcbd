"""What the instance metadata service (IMDSv2) says: identity, and the role's credentials."""

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
    """Who this machine is, in EC2's words."""

    instance_id: str
    address: str
    zone: str
    type: str


class Metadata:
    """One session with the service; `AWS_EC2_METADATA_SERVICE_ENDPOINT` overrides where it is, as in the SDKs."""

    def __init__(self) -> None:
        self._base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
        self._token = ""
        self._token_ends = 0.0
        self._keys = Credentials("", "")
        self._expires = ""

    def get(self, path: str) -> str:
        """Text at `/latest/<path>`. Raises OSError after 30 s without an answer."""
        if time.monotonic() > self._token_ends:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = self._ask("PUT", "/latest/api/token", wish)
            self._token_ends = time.monotonic() + _TOKEN_S - _EARLY_S
        return self._ask("GET", "/latest/" + path, {"X-aws-ec2-metadata-token": self._token})

    def identity(self) -> Identity:
        known = json.loads(self.get("dynamic/instance-identity/document"))
        return Identity(known["instanceId"], known["privateIp"], known["availabilityZone"], known["instanceType"])

    def credentials(self, fresh: bool = False) -> Credentials:
        """The role's credentials; asked again 5 minutes before they end, or when `fresh` is wanted."""
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
