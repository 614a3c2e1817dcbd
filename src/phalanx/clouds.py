"""Makes the API of a cloud: AWS's or the local one's, with what differs by the place and the maker of its machines.

It loads botocore, so connection.py imports it with the first request.
"""

from __future__ import annotations

from phalanx.aws.auto_scaling import AutoScaling
from phalanx.aws.aws import Aws
from phalanx.aws.aws_account import Account
from phalanx.emr.instance_groups import InstanceGroups
from phalanx.local.this_machine import LocalAws, ThisMachine
from phalanx.spec.cloud_names import is_local
from phalanx.spec.makers import EMR, maker_of


def of(name: str, region: str) -> Aws:
    """Return the cloud of this name. Connects to nothing yet and starts nothing."""
    aws = _here(name, region) if is_local(name) else _account(name, region)
    aws.machines = InstanceGroups(aws) if maker_of(name) is EMR else AutoScaling(aws)
    return aws


def _account(name: str, region: str) -> Aws:
    aws = Aws(region, name)
    aws.site = Account(aws)
    return aws


def _here(name: str, region: str) -> Aws:
    aws = LocalAws(region, name)
    aws.site = ThisMachine(aws)
    return aws
