"""Assembles the parts of the template and serializes it."""

from __future__ import annotations

import json

from troposphere import Template

from phalanx import __version__
from phalanx.plan.plan import Plan
from phalanx.template import access, fleet, network, outputs, parameters, rendezvous, storage, userdata

LIMIT_BYTES = 51_200
"""CloudFormation's limit for a template inside a request (docs/aws-behaviour.md 1.14)."""


def synthesize(plan: Plan) -> str:
    """Return the CloudFormation document of a plan; `phalanx.cluster.delivery` handles one beyond LIMIT_BYTES."""
    return json.dumps(build(plan).to_dict(), separators=(",", ":"), ensure_ascii=False)


def build(plan: Plan) -> Template:
    template = Template(Description="A cluster for distributed deep learning, made by phalanx " + __version__)
    template.set_version()
    template.set_metadata({"phalanx": {"version": __version__}, **parameters.interface()})
    template.add_mapping("Agent", {"payload": userdata.payload(plan.spec.boot)})
    for part in (parameters, network, access, storage, rendezvous, fleet, outputs):
        part.add_to(template, plan)
    return template
