"""Assembles the parts of the template and serializes it."""

from __future__ import annotations

import json
from typing import Any

from troposphere import Template

from phalanx import __version__
from phalanx.plan.plan import Plan
from phalanx.spec.makers import EMR, maker_of
from phalanx.template import (
    access,
    encryption,
    fleet,
    network,
    outputs,
    parameters,
    removal,
    rendezvous,
    request_limits,
    storage,
)
from phalanx.template.emr import bootstrap_action, builder


def synthesize(plan: Plan) -> str:
    """Return the CloudFormation document of a plan. Nothing else is needed to create the stack, as in the console."""
    document = build(plan).to_dict()
    encryption.ask_for_key(document)
    return _serialized(document)


def request(plan: Plan) -> tuple[str, dict[str, str]]:
    """Return what `up` sends: the document without the agent, and the parameters.

    The agent's parameters have their texts as values here, and as defaults in the complete document. Raises SpecError
    if CloudFormation does not take the document in a request or, where the spec names a bucket, from there.
    """
    document = _without_agent(plan)
    request_limits.refuse_large_document(plan, document, lambda other: len(_without_agent(other).encode()))
    return document, {**plan.parameters(), **parameters.agent(plan)}


def _without_agent(plan: Plan) -> str:
    document = build(plan).to_dict()
    for name in parameters.agent(plan):
        del document["Parameters"][name]["Default"]
    return _serialized(document)


def _serialized(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def build(plan: Plan) -> Template:
    description = f"A cluster for distributed deep learning, made by phalanx {__version__}"
    for url in uploads(plan):
        description += (
            f". Before you create it from the console, store what `phalanx template --bootstrap-action` prints at {url}"
        )
    template = Template(Description=description)
    template.set_version()
    if maker_of(plan.spec.cloud) is EMR:
        builder.add_to(template, plan)
    else:
        for part in (parameters, network, access, storage, rendezvous, fleet, removal, outputs):
            part.add_to(template, plan)
    if plan.spec.kms_key:
        encryption.add_to(template)
    image = plan.facts.image.recipe if plan.facts.image else ""
    made_with = {"version": __version__, **({"image": image} if image else {})}
    template.set_metadata({"phalanx": made_with, **parameters.metadata(template, plan)})
    return template


def uploads(plan: Plan) -> dict[str, str]:
    """Return the objects that must be in S3 before the stack is created: URL → text."""
    return {} if maker_of(plan.spec.cloud).has_user_data else bootstrap_action.uploads(plan)
