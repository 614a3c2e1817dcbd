"""phalanx policy: print the IAM policy that a person needs who runs phalanx."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import print_json
from phalanx.cli.options import debug_option, file_option
from phalanx.cli.planning import offline_option, planned


@click.command("policy")
@file_option
@click.option("--any-name", is_flag=True, help="For clusters of any name, not only the one of the file.")
@offline_option
@debug_option
def command(file: Path, any_name: bool, offline: bool) -> None:
    """Print the least IAM policy for a person who runs `up`, `status`, `scale`, `extend`, `why` and `down`.

    It follows from the CloudFormation document of this file: CloudFormation makes everything with the rights of the
    person who asks for it.

    \b
    Examples:
      phalanx policy > policy.json
      aws iam create-policy --policy-name phalanx --policy-document file://policy.json
    """
    from phalanx.template.document import build
    from phalanx.template.permissions import policy

    plan = planned(file, offline)
    print_json(policy(build(plan).to_dict(), "*" if any_name else plan.spec.name))
