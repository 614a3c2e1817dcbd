"""AWS's API in a region. All calls go through `call`, which retries them and translates errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError
from botocore.session import Session

from phalanx.aws import regions, sessions, transcript
from phalanx.aws.refusals import is_gone, translate
from phalanx.errors import CloudError
from phalanx.node.sigv4 import Credentials
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.model import Machines, Site

# A plan is not worth a long wait for the price list: it is asked once and briefly, and a dated table is there.
_PRICING = "pricing"
_ATTEMPTS = 3
_SERVER_ERROR, _PAGES = 500, (b"<!doctype html", b"<html")
_SHORTLY = Config(connect_timeout=2, read_timeout=4, retries={"total_max_attempts": 1, "mode": "standard"})
# The price list is served in three regions, with the prices of all.
_PRICING_REGIONS = {"eu": "eu-central-1", "me": "eu-central-1", "af": "eu-central-1", "ap": "ap-south-1"}
# How services name the token in their answers, and in the request for the next page.
_TOKENS = {
    "NextToken": "NextToken",
    "PaginationToken": "PaginationToken",
    "nextToken": "nextToken",
    "Marker": "Marker",
    "NextMarker": "Marker",
    "NextContinuationToken": "ContinuationToken",
    "LastEvaluatedTableName": "ExclusiveStartTableName",
}
# EFS repeats the request's (docs/aws-behaviour.md 4.22).
_REPEATED = ("efs", "Marker")


class Aws:
    """AWS's API, with credentials from the environment, ~/.aws, SSO or an instance's role.

    `name` is the cloud's in phalanx.yaml. `machines` is the service that makes its clusters' machines, and `site` where
    they are. Every method raises CloudError when AWS refuses or does not answer.
    """

    machines: Machines
    site: Site
    poll_interval_s = 2.0
    retry_mode: Literal["standard", "adaptive"] = "adaptive"

    def __init__(self, region: str, name: str = "aws") -> None:
        self.region, self.name = region, name
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._most_attempts = 10

    def attempts(self) -> int:
        """How often a call is tried that is throttled, or gets no answer."""
        return self._most_attempts

    def limit_attempts(self, most: int) -> None:
        """Try each call at most that often before its failure is reported, if no call was made yet."""
        self._most_attempts = most

    def session(self) -> Session:
        """Return a botocore session with the credentials to use."""
        try:
            return sessions.make(self.region)
        except Exception as error:  # the constructor raises ProfileNotFound and the like
            raise translate(error, "sts:GetCallerIdentity", f"AWS in {self.region}") from error

    def endpoint_url(self) -> str | None:
        """Return where to send the calls; None means AWS's own endpoints."""
        return None

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make an API call by botocore's names. Raises CloudError, with its error as the cause."""
        action = f"{service}:{''.join(word.title() for word in operation.split('_'))}"
        try:
            with waiting(f"the answer to {action}"):
                return getattr(self.client(service), operation)(**arguments)
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            where = self.endpoint_url() or f"AWS in {self.region}"
            raise self._explained(translate(error, action, where)) from error
        except (AttributeError, KeyError, TypeError) as error:  # botocore expects the service's own JSON or XML
            raise CloudError(
                f"{action} failed: the answer is not {service}'s ({error!r})", code="call-failed"
            ) from error

    def _explained(self, error: CloudError) -> CloudError:
        """Return what a refusal of the account's keys means in this region."""
        home = regions.home_of(self.region)
        if error.code != "unknown-credentials" or self.region == home:
            return error
        asked = type(self)(home, self.name)
        asked.limit_attempts(_ATTEMPTS)
        if not regions.is_off(asked, self.region):
            return error
        off = CloudError(*regions.off(self.region), code="region-off")
        off.was_refused = error.was_refused
        return off

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the entries under `key` of all pages. Raises CloudError, also if they repeat themselves."""
        token: dict[str, Any] = {}
        while True:
            page = self.call(service, operation, **arguments, **token)
            yield from page.get(key, [])
            token = next_page(service, page, token)
            if not token:
                return

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer, or None when the resource does not exist."""
        try:
            return self.call(service, operation, **arguments)
        except CloudError as error:
            if is_gone(error.__cause__):
                return None
            raise

    def client(self, service: str) -> Any:
        """Return the service's client, created once. (Creating one is not thread-safe; using it is.)"""
        if service not in self._clients:
            with self._lock:
                if service not in self._clients:
                    self._clients[service] = self._make_client(service)
        return self._clients[service]

    def prepare(self, services: Iterable[str]) -> None:
        """Create clients ahead, in a thread: the eight that a clean-up needs take half a second."""
        threading.Thread(target=lambda: [self.client(service) for service in services], daemon=True).start()

    def s3_endpoint(self) -> str:
        """Return the URL of S3 in this region, as this machine reaches it."""
        return self.client("s3").meta.endpoint_url

    def user_keys(self) -> Credentials:
        """Return the present credentials of the user who runs phalanx."""
        found = (self._session or self.session()).get_credentials()
        if found is None:
            raise translate(NoCredentialsError(), "s3:GetObject", self.endpoint_url() or "S3")
        frozen = found.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    def _make_client(self, service: str) -> Any:
        if self._session is None:
            self._session = self.session()
        retries = {"mode": self.retry_mode, "max_attempts": self.attempts()}
        config = Config(retries=cast("Any", retries), connect_timeout=10, read_timeout=60)
        where: dict[str, Any] = {"config": config, "region_name": self.region}
        if service == _PRICING:
            where = {"config": _SHORTLY, "region_name": pricing_region(self.region)}
        client = cast("Any", self._session).create_client(service, endpoint_url=self.endpoint_url(), **where)
        client.meta.events.register("before-parse", _refuse_a_page)
        transcript.attach(client)
        return client


def _refuse_a_page(response_dict: Mapping[str, Any], **_: Any) -> None:
    """Refuse a proxy's web page, in which botocore finds nothing, as in an empty list.

    botocore knows the pages with which AWS's load balancers say 502 or 503, and tries the call again.
    """
    body, status = response_dict.get("body"), response_dict["status_code"]
    if status < _SERVER_ERROR and isinstance(body, bytes) and body[:64].lstrip().lower().startswith(_PAGES):
        raise ResponseParserError("the answer is a web page, perhaps a proxy's")


def pricing_region(region: str) -> str:
    """Return the region whose endpoint of the price list is the nearest."""
    return _PRICING_REGIONS.get(region.partition("-")[0], "us-east-1")


def next_page(service: str, page: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument that requests the page after this one, which `before` requested; {} after the last page.

    Raises CloudError if that would be the same page again.
    """
    found = {sent: page[name] for name, sent in _TOKENS.items() if page.get(name) and (service, name) != _REPEATED}
    if found and found == before:
        raise CloudError(
            f"{service} lists the same page again and again", "Try again; AWS may have a fault.", code="endless-list"
        )
    return found
