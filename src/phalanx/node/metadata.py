"""Read identity and the role's credentials from the instance metadata service (IMDSv2)."""

from __future__ import annotations

import json
import os
import time
from typing import Callable, NamedTuple, Optional

from phalanx.node import wire
from phalanx.node.settings import ON_AWS, Patience
from phalanx.node.sigv4 import Credentials, Request

_ROLE = "meta-data/iam/security-credentials/"
_TOKEN_S = 21600
_EARLY_S = 300


class Identity(NamedTuple):
    """This machine's identity in EC2."""

    instance_id: str
    address: str
    zone: str
    type: str


class Metadata:
    """A session with the service; `AWS_EC2_METADATA_SERVICE_ENDPOINT` overrides its address, as in the SDKs."""

    def __init__(self, patience: Patience = ON_AWS) -> None:
        self._patience = patience
        self._base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
        self._token = ""
        self._token_ends = 0.0
        self._identity: Optional[Identity] = None
        self._keys = Credentials("", "")
        self._expires = ""

    def identity(self) -> Identity:
        """Return this machine's identity. Raises OSError if there is no good answer."""
        if self._identity is None:
            known = self._document(lambda: "dynamic/instance-identity/document", "instanceType")
            place = known["availabilityZone"]
            self._identity = Identity(known["instanceId"], known["privateIp"], place, known["instanceType"])
        return self._identity

    def credentials(self, fresh: bool = False) -> Credentials:
        """Return the role's credentials; read them again 5 minutes before they expire, or if `fresh`.

        Raises OSError if there are none in time.
        """
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _EARLY_S))
        if fresh or self._expires < soon:
            answer = self._document(self._role, "AccessKeyId")
            self._keys = Credentials(answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
            self._expires = answer["Expiration"]
        return self._keys

    def _role(self) -> str:
        names = self.get(_ROLE).decode().split()
        if not names:
            raise OSError("no role yet")
        return _ROLE + names[0]

    def _document(self, path: Callable[[], str], proof: str) -> dict[str, str]:
        """Read a JSON document; request it again until it has the key `proof`."""

        def read() -> bytes:
            text = self.get(path())
            if f'"{proof}"'.encode() not in text:
                raise OSError(f"no {proof} yet: {text[:500].decode('utf-8', 'replace')}")
            return text

        what = f"the metadata service at {self._base}"
        patience = self._patience
        return json.loads(wire.insist(read, patience.metadata_s, patience.pause_s, what, refusals_pass=True))

    def get(self, path: str) -> bytes:
        """Read `/latest/<path>`, with a new token if the service does not accept the present one."""
        if time.monotonic() > self._token_ends:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = wire.fetch(Request("PUT", self._base + "/latest/api/token", wish), 5).decode()
            self._token_ends = time.monotonic() + _TOKEN_S - _EARLY_S
        try:
            return wire.fetch(
                Request("GET", f"{self._base}/latest/{path}", {"X-aws-ec2-metadata-token": self._token}), 5
            )
        except wire.HttpError as error:
            if error.status == 401:
                self._token_ends = 0.0
            raise
