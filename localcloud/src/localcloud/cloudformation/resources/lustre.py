"""AWS::FSx types: Lustre file systems, and their links to S3."""

from __future__ import annotations

from localcloud.cloudformation.resources.registry import Made, Request, resource
from localcloud.storage import fsx


def _delete_file_system(_request: Request, physical_id: str) -> None:
    if physical_id in fsx.running().systems:
        fsx.running().delete(physical_id)


@resource("AWS::FSx::FileSystem", _delete_file_system, "DNSName Id LustreMountName ResourceARN RootVolumeId")
def _file_system(request: Request) -> Made:
    made = fsx.running().create(request.region, request.properties, request.tag_map())
    attributes = {
        "DNSName": made.dns_name,
        "Id": made.file_system_id,
        "LustreMountName": made.mount_name,
        "ResourceARN": made.arn,
        # Other kinds of FSx's have volumes.
        "RootVolumeId": "",
    }
    return Made(made.file_system_id, attributes)


def _delete_link(_request: Request, physical_id: str) -> None:
    if any(physical_id in one.links for one in fsx.running().systems.values()):
        fsx.running().unlink(physical_id)


@resource("AWS::FSx::DataRepositoryAssociation", _delete_link, "AssociationId ResourceARN")
def _link(request: Request) -> Made:
    found, link = fsx.running().link(request.properties)
    described = found.association(link)
    return Made(link.association_id, {name: described[name] for name in ("AssociationId", "ResourceARN")})
