"""HTTP as these programs need it: tries again what may pass, and asks the metadata service."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as Xml

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.signing import Keys

METADATA = "http://169.254.169.254/latest/"
TRIES = 5
TIMEOUT_S = 60.0
LONGEST_ERROR_BYTES = 4096


def request(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """Return a server's answer; try again for half a minute if it fails or can't be reached. Raises FailedError."""
    asked = urllib.request.Request(url, body, headers or {}, method=method)
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            reason = _reason(error)
            if error.code < 500 and error.code != 429:
                raise FailedError(reason) from None
        except OSError as error:
            reason = f"{url} can't be reached: {getattr(error, 'reason', error)}"
        if not left:
            raise FailedError(reason)
        time.sleep(2.0 ** (TRIES - 1 - left))
    raise AssertionError("never reached")


def _reason(error: urllib.error.HTTPError) -> str:
    """Word a refusal as AWS's tools do: `Code: Message`."""
    text = error.read(LONGEST_ERROR_BYTES)
    try:
        found = {part.tag.rpartition("}")[2]: (part.text or "").strip() for part in Xml.fromstring(text).iter()}
    except Xml.ParseError:
        found = {}
    if "Code" in found:
        return f"{found['Code']}: {found.get('Message', '')}"
    return f"{error.url} answered {error.code} {error.reason}"


def metadata(path: str) -> str:
    """Return a document of the metadata service, with IMDSv2. Raises FailedError."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = request("PUT", f"{METADATA}api/token", None, lifetime).decode()
    return request("GET", METADATA + path, None, {"X-aws-ec2-metadata-token": token}).decode()


def keys_of_role(role: str) -> Keys:
    """Return the credentials of the instance's role."""
    found = json.loads(metadata(f"meta-data/iam/security-credentials/{role}"))
    if found.get("Code") != "Success":
        raise FailedError(str(found.get("Message", f"the instance has no credentials of the role {role}")))
    return Keys(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])
