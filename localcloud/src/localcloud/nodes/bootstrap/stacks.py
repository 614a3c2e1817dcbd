"""CloudFormation's two operations for instances, signed by the instance's identity or with an access key."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
import xml.etree.ElementTree as Xml
from typing import Any

from localcloud.nodes.bootstrap import web
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.signing import Keys, signed

_AWS_HOST = re.compile(r"https?://cloudformation\.(?P<region>[\w-]+)\.amazonaws\.com(\.cn)?/?")


class CloudFormation:
    """The service of a region at `endpoint`. Without `keys`, the instance proves itself by its identity document."""

    def __init__(self, endpoint: str, region: str, keys: Keys | None) -> None:
        self._endpoint = endpoint.rstrip("/") + "/"
        self._region = region
        self._keys = keys

    def describe(self, stack: str, resource: str) -> dict[str, Any]:
        """Return what DescribeStackResource knows of a resource; `Metadata` is an object, if there is some."""
        answer = Xml.fromstring(self._call("DescribeStackResource", StackName=stack, LogicalResourceId=resource))
        found: dict[str, Any] = {part.tag.rpartition("}")[2]: (part.text or "") for part in answer.iter()}
        if found.get("Metadata"):
            found["Metadata"] = json.loads(found["Metadata"])
        return found

    def metadata(self, stack: str, resource: str) -> dict[str, Any]:
        """Return a resource's metadata. Raises FailedError if it has none."""
        found = self.describe(stack, resource).get("Metadata")
        if not found:
            raise FailedError(f"{resource} does not specify any metadata")
        return found

    def signal(self, stack: str, resource: str, unique_id: str, status: str) -> None:
        """Send SignalResource."""
        self._call("SignalResource", StackName=stack, LogicalResourceId=resource, UniqueId=unique_id, Status=status)

    def _call(self, action: str, **parameters: str) -> bytes:
        body = urllib.parse.urlencode({"Action": action, "Version": "2010-05-15", **parameters}).encode()
        headers = {
            "Host": f"cloudformation.{self._region}.amazonaws.com",
            "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
        }
        return web.request("POST", self._endpoint, body, {**headers, **self._signature(body, headers)})

    def _signature(self, body: bytes, headers: dict[str, str]) -> dict[str, str]:
        if self._keys:
            scope = f"{self._region}/cloudformation"
            return signed(self._keys, "POST", self._endpoint, body, scope, headers)
        document = base64.b64encode(web.metadata("dynamic/instance-identity/document").encode()).decode()
        signature = web.metadata("dynamic/instance-identity/signature").replace("\n", "")
        return {"Authorization": f"CFN_V1 {document}:{signature}"}


def region_of(url: str) -> str:
    """Return the region of an address of AWS's CloudFormation; "" for any other address."""
    found = _AWS_HOST.fullmatch(url)
    return found["region"] if found else ""
