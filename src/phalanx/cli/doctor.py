"""phalanx doctor: say what in an account will stop or surprise a cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from phalanx import connection
from phalanx.aws import doctor, transcript
from phalanx.aws.regions import home_of
from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import DEFAULT_FILE, debug_option, json_option, known_region
from phalanx.counts import counted
from phalanx.errors import LocalCloudError
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec_load import load

STOPPED = 1
_ATTEMPTS = 3


@click.command("doctor")
@click.option("--cloud", type=click.Choice(sorted(CLOUDS)), help="The cloud. Without it: that of phalanx.yaml, or aws.")
@click.option("--region", callback=known_region, help="The region. Without it: that of phalanx.yaml, or us-east-1.")
@json_option
@debug_option
def command(cloud: str | None, region: str | None, as_json: bool) -> int:
    """Say what in this account and region will stop or surprise a cluster, and what to do about it. Changes nothing.

    It looks at whether the region is enabled, VPC Block Public Access, whether you may make a VPC (by a dry run), the
    default key of disks, the images that the account allows, quotas, the roles that services make for themselves,
    permissions boundaries, tag policies, metadata defaults and shared subnets. What you have no right to read is
    "unknown". A service control policy can't be read: `phalanx plan` and `up` show what it refuses.

    --json is meant for a bug report: account numbers, users and addresses are left out.

    The exit code is 1 if something stops clusters.

    \b
    Examples:
      phalanx doctor
      phalanx doctor --region eu-central-1
      phalanx doctor --json > doctor.json
    """
    named_cloud, named_region = _named()
    cloud, region = cloud or named_cloud, region or named_region
    at = connection.connect(cloud, region)
    if at.site.is_off():
        hint = "Start it: phalanx local start. Or add --cloud aws."
        raise LocalCloudError("the local cloud is not running", hint, code="local-cloud-off")
    home = connection.connect(cloud, home_of(region))
    for one in (at, home):
        one.limit_attempts(_ATTEMPTS)
    if not as_json:
        note(f"asking AWS about {region} …")
    account, found = doctor.examine(at, home)
    if as_json:
        rows = [{key: transcript.redacted(text) for key, text in asdict(one).items()} for one in found]
        print_json({"cloud": cloud, "region": region, "findings": rows})
    else:
        _show(account, region, found)
    return STOPPED if any(one.verdict == doctor.STOPS for one in found) else 0


def _named() -> tuple[str, str]:
    """Return the cloud and the region of phalanx.yaml, or the defaults where there is none."""
    if not Path(DEFAULT_FILE).exists():
        return "aws", "us-east-1"
    spec = load(Path(DEFAULT_FILE))
    return spec.cloud, spec.region


def _show(account: doctor.Account | None, region: str, found: list[doctor.Finding]) -> None:
    if account:
        say(f"Account {account.number} in {region}, as {account.caller}")
    for one in found:
        if one.verdict != doctor.OK:
            say(f"\n{one.verdict}: {one.check}\n  {one.text}")
            if one.remedy:
                say(f"  → {one.remedy}")
    if fine := [one.check for one in found if one.verdict == doctor.OK]:
        say(f"\n{doctor.OK}: {', '.join(fine)}")
    stops = sum(one.verdict == doctor.STOPS for one in found)
    say(f"\n{counted(stops, 'finding')} that stop clusters." if stops else "\nNothing here stops a cluster.")
