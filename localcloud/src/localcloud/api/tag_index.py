"""The index of tags over all services, which the Resource Groups Tagging API reads: GetResources.

It lacks what AWS's lacks: IAM's resources and Auto Scaling's groups (docs/aws-behaviour.md 13.3). In bad weather it is
late, as AWS's is (11.19).
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from moto.backends import get_backend
from moto.core.resource_tagging import TaggedResource, make_tag_matcher, match_resource_type
from moto.ec2.models import ec2_backends
from moto.events.models import events_backends
from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.cloudformation.model import Stack
from localcloud.context import Context
from localcloud.ec2 import placement_groups
from localcloud.emr.records import ENDED, Cluster
from localcloud.iam import errors
from localcloud.iam.calls import Call
from localcloud.storage.fsx.records import Lustre

ACTION = "tag:GetResources"
NEW_LATE_S, GONE_LATE_S = (10.0, 300.0), (60.0, 3600.0)
TOKEN_VALID_S = 15 * 60.0
_PER_PAGE, _MOST_PER_PAGE = 50, 100
_LEAST_TAGS, _MOST_TAGS = 100, 500
# Services whose resources moto lists in full, but for some of EC2's; parameters of Systems Manager are left out.
_OF_MOTO: tuple[Any, ...] = ("ec2", "efs", "sqs", "sns", "dynamodb", "logs", "lambda")
# AWS names types as in ARNs.
_TYPES = {"logs:loggroup": "logs:log-group"}
_LOOKS = 100
_INVALID = "InvalidParameterException"
_THROTTLED = "ThrottledException"
_EXPIRED = "PaginationTokenExpiredException"


class RefusedError(Exception):
    """The request is refused; `code` is AWS's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class _Entry:
    """A resource of the index: when it appears there, and when it goes, once it was deleted."""

    resource: TaggedResource
    from_s: float
    until_s: float = float("inf")


@dataclass(frozen=True)
class Sources:
    """The resources that are not moto's: the stacks, EMR's clusters and FSx's file systems."""

    stacks: Callable[[], Iterable[Stack]]
    clusters: Callable[[], Iterable[Cluster]]
    file_systems: Callable[[], Iterable[Lustre]]


class Index:
    """What GetResources knows. It looks at the services when it is asked, and counts its delays from then."""

    def __init__(self, context: Context, sources: Sources) -> None:
        self._context, self._sources = context, sources
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _Entry] = {}

    def resources(self, region: str) -> list[TaggedResource]:
        """Return what the index shows of a region, by ARN."""
        there = self._look(region)
        now_s = self._context.clock.now().timestamp()
        with self._lock:
            self._take_in(region, there, now_s)
            self._let_go(region, there, now_s)
            known = [(arn, one) for (where, arn), one in self._entries.items() if where == region]
        return [one.resource for _, one in sorted(known, key=lambda pair: pair[0]) if one.from_s <= now_s]

    def _look(self, region: str) -> dict[str, TaggedResource]:
        for _ in range(_LOOKS):
            # Other requests change the services' records meanwhile.
            with suppress(RuntimeError):
                return {one.arn: one for one in self._there(region) if one.tags}
        raise RefusedError(_THROTTLED, "The records of services change all the time: the index could not be read.")

    def _take_in(self, region: str, there: Mapping[str, TaggedResource], now_s: float) -> None:
        new = sorted(arn for arn in there if (region, arn) not in self._entries)
        for arn in new:
            self._entries[region, arn] = _Entry(there[arn], now_s + self._late_s(there[arn], NEW_LATE_S, "new"))
        for arn, one in there.items():
            entry = self._entries[region, arn]
            entry.resource, entry.until_s = one, float("inf")

    def _let_go(self, region: str, there: Collection[str], now_s: float) -> None:
        for (where, arn), entry in sorted(self._entries.items(), key=lambda pair: pair[0]):
            if where != region or arn in there:
                continue
            if entry.until_s == float("inf"):
                entry.until_s = now_s + self._late_s(entry.resource, GONE_LATE_S, "deleted")
            if entry.until_s <= now_s:
                del self._entries[where, arn]

    def _late_s(self, resource: TaggedResource, bounds: tuple[float, float], what: str) -> float:
        draw = self._context.weather.draw("tag-index", what, resource.resource_type)
        if draw is None:
            return 0.0
        late_s = draw.seconds(*bounds)
        self._context.weather.struck("tag-index", f"a {what} {resource.resource_type} is noticed in {late_s:.1f} s")
        return late_s

    def _there(self, region: str) -> Iterator[TaggedResource]:
        """Yield what exists now, whether it has tags or not."""
        account = self._context.account
        for service in _OF_MOTO:
            backend: Any = get_backend(service)
            for one in backend[account][region].iter_tagged_resources():
                yield replace(one, resource_type=_TYPES.get(one.resource_type, one.resource_type))
        yield from _buckets(account, region)
        yield from _more_of_ec2(account, region)
        rules = chain.from_iterable(bus.rules.values() for bus in events_backends[account][region].event_buses.values())
        tagger = events_backends[account][region].tagger
        yield from (TaggedResource(one.arn, tagger.get_tag_dict_for_resource(one.arn), "events:rule") for one in rules)
        for stack in self._sources.stacks():
            if stack.region == region and not stack.gone:
                yield TaggedResource(stack.stack_id, dict(stack.tags), "cloudformation:stack")
        for cluster in self._sources.clusters():
            if cluster.region == region and cluster.life.state not in ENDED:
                yield TaggedResource(_arn_of_cluster(cluster), dict(cluster.tags), "elasticmapreduce:cluster")
        for system in self._sources.file_systems():
            if system.region == region:
                yield TaggedResource(system.arn, dict(system.tags), "fsx:file-system")


def _buckets(account: str, region: str) -> Iterator[TaggedResource]:
    """Yield the buckets of a region: moto keeps those of all together."""
    backend: Any = s3_backends[account][partitions.played()]
    here = {one.arn for one in list(backend.buckets.values()) if one.region_name == region}
    yield from (one for one in backend.iter_tagged_resources() if one.arn in here)


def _arn_of_cluster(cluster: Cluster) -> str:
    return f"{partitions.arn()}:elasticmapreduce:{cluster.region}:{cluster.account}:cluster/{cluster.id}"


def _more_of_ec2(account: str, region: str) -> Iterator[TaggedResource]:
    """Yield the resources of EC2 that moto's index lacks."""
    backend: Any = ec2_backends[account][region]
    more = {
        "elastic-ip": [one.id for one in backend.addresses if one.id],
        "key-pair": [one.id for one in backend.key_pairs.values()],
        "launch-template": list(backend.launch_templates),
        "placement-group": [one.group_id for one in placement_groups.of_region(region)],
        "vpc-endpoint": [one.id for one in backend.vpc_end_points.values() if one.state != "deleted"],
    }
    for kind, ids in more.items():
        for one in ids:
            arn = f"{partitions.arn()}:ec2:{region}:{account}:{kind}/{one}"
            yield TaggedResource(arn, dict(backend.tags.get(one, {})), f"ec2:{kind}")


def answer(context: Context, index: Index, call: Call, start_response: Any) -> Iterable[bytes]:
    """Answer GetResources."""
    try:
        document = _page(context, index, call)
    except RefusedError as refused:
        return errors.refused(call, refused.code, str(refused), start_response, 400)
    body = json.dumps(document).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]


def _page(context: Context, index: Index, call: Call) -> dict[str, Any]:
    given = call.params
    _refuse_what_does_not_go_together(given)
    most = _between(given, "ResourcesPerPage", 1, _MOST_PER_PAGE, _PER_PAGE)
    most_tags = _between(given, "TagsPerPage", _LEAST_TAGS, _MOST_TAGS, _MOST_TAGS * _MOST_PER_PAGE)
    now_s = context.clock.now().timestamp()
    after = _read_token(str(given.get("PaginationToken") or ""), now_s)
    chosen = [one for one in index.resources(call.region) if one.arn > after and _is_wanted(one, given)]
    shown = chosen[: _fitting(chosen[:most], most_tags)]
    token = _token(shown[-1].arn, now_s) if len(shown) < len(chosen) else ""
    return {"PaginationToken": token, "ResourceTagMappingList": [_shown(one) for one in shown]}


def _fitting(chosen: Iterable[TaggedResource], most_tags: int) -> int:
    """Return how many resources of a page have together no more tags than it may have, and at least one."""
    count = tags = 0
    for one in chosen:
        tags += max(1, len(one.tags))
        if count and tags > most_tags:
            break
        count += 1
    return count


def _shown(resource: TaggedResource) -> dict[str, Any]:
    tags = [{"Key": key, "Value": value} for key, value in resource.tags.items()]
    return {"ResourceARN": resource.arn, "Tags": tags}


def _is_wanted(resource: TaggedResource, given: Mapping[str, Any]) -> bool:
    named = given.get("ResourceARNList")
    return (
        (not named or resource.arn in named)
        and match_resource_type(resource.resource_type, given.get("ResourceTypeFilters"))
        and make_tag_matcher(given.get("TagFilters"))(resource.tags)
    )


def _refuse_what_does_not_go_together(given: Mapping[str, Any]) -> None:
    if given.get("IncludeComplianceDetails") or given.get("ExcludeCompliantResources"):
        raise RefusedError(errors.NOT_SERVED, "The local cloud does not serve the compliance with tag policies.")
    others = ("TagFilters", "ResourceTypeFilters", "ResourcesPerPage", "TagsPerPage", "PaginationToken")
    together = [name for name in others if given.get(name)]
    if given.get("ResourceARNList") and together:
        raise RefusedError(_INVALID, f"ResourceARNList and {together[0]} can't be specified together.")


def _between(given: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not least <= int(value) <= most:
        raise RefusedError(_INVALID, f"{name} must be between {least} and {most}")
    return int(value)


def _token(arn: str, now_s: float) -> str:
    return base64.urlsafe_b64encode(f"{now_s:.0f} {arn}".encode()).decode()


def _read_token(token: str, now_s: float) -> str:
    """Return the ARN after which a page begins."""
    if not token:
        return ""
    try:
        made_s, _, arn = base64.b64decode(token, altchars=b"-_", validate=True).decode().partition(" ")
        made = float(made_s)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(_INVALID, "The PaginationToken is invalid.") from error
    if now_s - made > TOKEN_VALID_S:
        raise RefusedError(_EXPIRED, "The PaginationToken has expired.")
    return arn
