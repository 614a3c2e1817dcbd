"""phalanx policy: print the IAM policy that a person needs who runs phalanx."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from phalanx.cli.console import note, print_json
from phalanx.cli.image_making import order_of
from phalanx.cli.options import debug_option, file_option
from phalanx.cli.planning import note_unchecked, offline_option, planned
from phalanx.errors import SpecError
from phalanx.images import rights
from phalanx.images.base import base
from phalanx.images.image_stack import request
from phalanx.images.place import OWN_NETWORK, Place
from phalanx.jobs.environments import recipe
from phalanx.spec.spec_load import load
from phalanx.template.document import build
from phalanx.template.policy import MOST, length, of_service_role, parts, policy

if TYPE_CHECKING:
    from phalanx.spec.spec import ClusterSpec


@click.command("policy")
@file_option
@click.option("--any-name", is_flag=True, help="For clusters of any name, not only the one of the file.")
@click.option("--images", is_flag=True, help="For `phalanx image` instead, with every recipe.")
@click.option("--part", type=click.IntRange(1), help="Print a part of a policy that is too long for a managed policy.")
@click.option("--service-role", is_flag=True, help="The trust and the policy of the file's `cloudformation_role`.")
@offline_option
@debug_option
def command(file: Path, any_name: bool, images: bool, part: int | None, service_role: bool, offline: bool) -> None:
    """Print the least IAM policy for a person who runs `up`, `status`, `scale`, `extend`, `why` and `down`.

    CloudFormation acts with the rights of the person who runs `up`, so the policy follows from the document of this
    file. If the file has a `cloudformation_role`, CloudFormation acts with that role's rights, and --service-role
    prints them. With --images, the file counts only if --file names it, as in `phalanx image build --file`.

    \b
    Examples:
      phalanx policy > policy.json
      phalanx policy --images > images.json
      aws iam create-policy --policy-name phalanx --policy-document file://policy.json
    """
    if images:
        given = click.get_current_context().get_parameter_source("file") is not ParameterSource.DEFAULT
        _print(_of_images(load(file) if given else None, service_role), part)
        return
    plan = planned(file, offline)
    note_unchecked(plan)
    spec, document = plan.spec, build(plan).to_dict()
    name = "*" if any_name else spec.name
    of_person = policy(document, name, spec.bucket, spec.cloudformation_role)
    _print(of_service_role(document, name) if service_role else of_person, part)


def _print(made: dict[str, Any], part: int | None) -> None:
    """Print a policy, a role with its policy, or a part of the policy; tell of parts if IAM takes nothing else."""
    whole = made.get("PolicyDocument", made)
    pieces = parts(whole)
    if part is not None and part > len(pieces):
        raise SpecError(f"--part {part}: there are {len(pieces)} parts", "Use a smaller number.", code="out-of-range")
    print_json(made if part is None else pieces[part - 1])
    if part is None and len(pieces) > 1:
        words = ", ".join(f"`--part {number}`" for number in range(1, len(pieces) + 1))
        note(
            f"The policy has {length(whole):,} characters, and a managed policy may have {MOST:,}: {words} print parts."
        )


def _of_images(spec: ClusterSpec | None, service_role: bool) -> dict[str, Any]:
    """Return the policy for images: of what takes rights, their stacks differ only in boundary and key.

    A file of a cluster says it.
    """
    chosen = recipe("torch")
    where = Place(boundary=spec.permissions_boundary or "", key=spec.kms_key or "") if spec else OWN_NETWORK
    document, _ = request(replace(order_of(chosen, base(chosen.image["base"])), place=where))
    made = json.loads(document)
    if service_role:
        return rights.of_service_role(made)
    return rights.policy(made, spec is not None, spec.cloudformation_role if spec else None)
