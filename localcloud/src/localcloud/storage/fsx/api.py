"""FSx's API: requests as botocore sends them, and answers from the service's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from moto.fsx.responses import FSxResponse

from localcloud.storage.fsx.service import Service

Handler = Callable[[Service, str, Mapping[str, Any]], dict[str, Any]]


def _tags(given: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in given.get("Tags") or ()}


def _create(service: Service, region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"FileSystem": service.create(region, given, _tags(given)).described()}


def _describe(service: Service, region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found = [one for one in service.systems.values() if one.region == region]
    if wanted := given.get("FileSystemIds"):
        found = [service.named(one) for one in wanted]
    return {"FileSystems": [one.described() for one in found]}


def _update(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"FileSystem": service.update(given).described()}


def _delete(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    service.delete(given["FileSystemId"])
    return {"FileSystemId": given["FileSystemId"], "Lifecycle": "DELETING"}


def _link(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found, link = service.link(given)
    return {"Association": found.association(link)}


def _links(service: Service, region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    wanted = given.get("AssociationIds")
    found = [one for one in service.systems.values() if one.region == region]
    every = [one.association(link) for one in found for link in one.links.values()]
    return {"Associations": [one for one in every if not wanted or one["AssociationId"] in wanted]}


def _unlink(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found = service.unlink(given["AssociationId"])
    return {
        "AssociationId": given["AssociationId"],
        "Lifecycle": "DELETING",
        "DeleteDataInFileSystem": bool(found and given.get("DeleteDataInFileSystem")),
    }


def _tag(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    service.of(given["ResourceARN"]).tags.update(_tags(given))
    return {}


def _untag(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    tags = service.of(given["ResourceARN"]).tags
    for key in given["TagKeys"]:
        tags.pop(key, None)
    return {}


def _list_tags(service: Service, _region: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"Tags": service.of(given["ResourceARN"]).described()["Tags"]}


HANDLERS: dict[str, Handler] = {
    "create_file_system": _create,
    "describe_file_systems": _describe,
    "update_file_system": _update,
    "delete_file_system": _delete,
    "create_data_repository_association": _link,
    "describe_data_repository_associations": _links,
    "delete_data_repository_association": _unlink,
    "tag_resource": _tag,
    "untag_resource": _untag,
    "list_tags_for_resource": _list_tags,
}
PATCHED = tuple(
    f"moto.fsx.responses.FSxResponse.{name}"
    for name in HANDLERS
    if "repository" not in name and name != "update_file_system"
)


def install(service: Service) -> None:
    """Answer the API from `service`'s file systems."""
    for name, handler in HANDLERS.items():
        setattr(FSxResponse, name, _answering(service, handler))


def _answering(service: Service, handler: Handler) -> Callable[[FSxResponse], str]:
    def answer(self: FSxResponse) -> str:
        return json.dumps(handler(service, self.region, json.loads(self.body or "{}")))

    return answer
