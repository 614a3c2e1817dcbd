"""phalanx local: start, inspect or stop the local cloud, change its weather or nodes, build images."""

from __future__ import annotations

from typing import Any

import click

from phalanx import connection
from phalanx.aws import file_systems
from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.images import image
from phalanx.cli.interrupt import interrupt
from phalanx.cli.link import link
from phalanx.cli.options import debug_option, json_option, region_option
from phalanx.cli.weather import weather
from phalanx.errors import LocalCloudError, PhalanxError
from phalanx.local import endpoint
from phalanx.spec.spec_checks import nearest


@click.group("local")
def command() -> None:
    """Start, inspect or stop the local cloud, change its weather, or build images for it.

    It starts with the first `up` and stops with the last `down`.

    \b
    Examples:
      phalanx local status
      phalanx local stop --force
    """


@command.command("start")
@json_option
@debug_option
def start(as_json: bool) -> None:
    """Start the local cloud for templates of your own, unless it runs.

    It stops by itself 30 s after the last request, unless it has a stack, an instance or a VPC.

    \b
    Examples:
      phalanx local start
      eval "$(phalanx local env)"
      aws cloudformation deploy --stack-name mine --template-file mine.yaml
    """
    endpoint.begin()
    found = endpoint.wait()
    print_json({"running": True, "url": found.url}) if as_json else say(f"The local cloud runs at {found.url}.")


@command.command("status")
@json_option
@debug_option
def status(as_json: bool) -> None:
    """Show whether the local cloud runs, its mode, and its clusters and nodes."""
    found = endpoint.find()
    if found is None:
        print_json({"running": False}) if as_json else say("The local cloud is not running.")
        return
    answer = {"running": True, "url": found.url, "pid": found.pid, **endpoint.status()}
    answer |= {"accounts_separated": found.accounts_separated, "warnings": list(found.warnings)}
    print_json(answer) if as_json else _print(answer)


@command.command("env")
@region_option
@debug_option
def env(region: str) -> None:
    """Print shell commands that point boto3 and the AWS CLI at the local cloud, with its administrator's keys.

    In such a shell, ssh, scp and sftp reach instances by their public names and addresses, as on AWS.
    The AWS CLI before 2.13.0 (or 1.29.0) ignores AWS_ENDPOINT_URL, and calls AWS.

    \b
    Examples:
      eval "$(phalanx local env)"
      aws emr ssh --cluster-id j-0123456789ABC --key-pair-file my-key.pem
    """
    if endpoint.find() is None:
        raise LocalCloudError("the local cloud is not running", "Start it: phalanx local start", code="local-cloud-off")
    say(endpoint.shell_lines(region).rstrip())


@command.command("gpus")
@click.argument("number", type=click.IntRange(0), required=False)
@debug_option
def gpus(number: int | None) -> None:
    """Give each node whose type has GPUs stand-ins for NUMBER GPUs, or show the number.

    `nvidia-smi -L` lists them, so that slots, visible devices and the check of GPUs work as on AWS. Nothing can
    compute on them. The number counts for all nodes that are launched afterwards, also in local clouds that start
    later; 0 ends it. Nodes with fewer GPUs than their type has are rejected, as on AWS.

    \b
    Examples:
      phalanx local gpus 4
      phalanx local gpus 0
    """
    found = endpoint.stand_ins(number)
    say(f"Each new node whose type has GPUs has {found} stand-ins for them." if found else "Nodes have no GPUs.")


def _accounts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        known = endpoint.account()["known"]
    except PhalanxError:
        return []
    return [name for name in known if name.startswith(incomplete)]


@command.command("account")
@click.argument("profile", required=False, shell_complete=_accounts)
@json_option
@debug_option
def account(profile: str | None, as_json: bool) -> None:
    """Choose whose AWS account the local cloud plays, or show it.

    In `landing-zone`, an organisation's rules forbid what companies forbid, so you see what your cluster needs in
    such an account. `china`, `gov` and `eusc` are in other partitions, which have other regions. The choice is kept,
    and takes effect when the local cloud starts the next time.

    \b
    Examples:
      phalanx local account landing-zone
      phalanx local account own
    """
    known = endpoint.account()["known"]
    if profile is not None and profile not in known:
        raise LocalCloudError(f"there is no account '{profile}'", nearest(profile, known), code="unknown-choice")
    found = endpoint.account(profile)
    del found["known"]
    if as_json:
        print_json(found)
        return
    print_table(
        ["ACCOUNT", "WHAT IT IS"], [[f"{name} *" if name == found["profile"] else name, known[name]] for name in known]
    )
    if "subnets" in found:
        head, workers = found["subnets"]
        say("Clusters here need these lines in phalanx.yaml:")
        say(f"  network: {{access: private, head_subnet: {head}, worker_subnet: {workers}}}")
        say(f"  permissions_boundary: {found['permissions_boundary']}")
    if "regions" in found:
        say(f"Clusters here need this line in phalanx.yaml: region: {found['regions'][0]}")


@command.command("stop")
@click.option("--force", is_flag=True, help="Do it even if something is lost. Here: clusters that run in it.")
@debug_option
def stop(force: bool) -> None:
    """Stop the local cloud and wait until no process of it is left."""
    stopped = endpoint.stop(force)
    say("The local cloud has stopped." if stopped else "The local cloud is not running.")


@command.command("delete")
@click.argument("file_system", metavar="FS")
@debug_option
def delete(file_system: str) -> None:
    """Delete a shared directory that `down` has kept, with all its data. This can't be undone.

    \b
    Examples:
      phalanx local delete fs-1234abcd
    """
    region = endpoint.kept_file_system(file_system)["region"]
    endpoint.begin()
    cloud = connection.connect("local", region)
    try:
        file_systems.delete(cloud, file_system)
    finally:
        cloud.site.stop_if_idle()
    say(f"{file_system} is deleted.")


command.add_command(image)
command.add_command(interrupt)
command.add_command(link)
command.add_command(weather)


def _print(answer: dict[str, Any]) -> None:
    jobs = "a user without root's rights, as on AWS" if answer["accounts_separated"] else "root, unlike on AWS"
    say(f"running   {answer['url']}, process {answer['pid']}")
    say(f"mode      {answer.get('mode', '?')} (jobs run as {jobs})")
    for warning in answer["warnings"]:
        say(f"warning   {warning}")
    for stack in answer.get("stacks", []):
        say(f"stack     {stack['name']} {stack['status']}")
    nodes = answer.get("nodes", [])
    if nodes:
        columns = ("instance_id", "hostname", "address", "vpc_id", "pid", "state")
        print_table([column.upper() for column in columns], [[node.get(c, "") for c in columns] for node in nodes])
