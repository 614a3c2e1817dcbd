"""phalanx plan: show what `up` would create."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import connection
from phalanx.aws import sessions
from phalanx.cli.console import line_width, note, print_json, print_table, say
from phalanx.cli.options import debug_option, file_option, json_option
from phalanx.cli.planning import offline_option, planned, unsuited_recipes, unsuited_text
from phalanx.cli.status import read_state
from phalanx.cluster import rehearsal
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.target import Target
from phalanx.cluster.update import described
from phalanx.counts import counted
from phalanx.errors import CloudError, CloudUnreachable, NewerFormat, PhalanxError, SpecError
from phalanx.plan import plan_text
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec_load import located, with_location
from phalanx.template import egress, is_large, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phalanx.aws.model import StackState
    from phalanx.cluster.rehearsal import Answers
    from phalanx.cluster.update import Settings
    from phalanx.plan.plan import Plan
    from phalanx.spec.spec import ClusterSpec


_LOG_IN = "Run `aws configure`, or `aws sso login` and set AWS_PROFILE; or run `phalanx plan` without --on-aws."


@click.command("plan")
@file_option
@json_option
@offline_option
@click.option(
    "--egress", "shows_egress", is_flag=True, help="Show every host and port that nodes contact, in place of the plan."
)
@click.option(
    "--on-aws",
    is_flag=True,
    help="Ask CloudFormation, EC2 and IAM whether the plan would work. Nothing is made, and it costs nothing.",
)
@debug_option
def command(file: Path, as_json: bool, offline: bool, shows_egress: bool, on_aws: bool) -> int:
    """Show what `up` would create: machines, zone, image, hourly cost, warnings. Changes nothing.

    If the cluster exists, it shows what `up` would do with it.

    With --on-aws, CloudFormation compares and validates the document as a change set, EC2 makes a dry run of a
    launch, and IAM simulates your policies. The change set and its empty stack are always removed. The exit
    code is 3 if AWS would refuse something. With `cloud: local`, the local cloud answers instead of AWS.

    \b
    Examples:
      phalanx plan
      phalanx plan --file big.yaml --json
      phalanx plan --offline            # asks nothing, as without credentials or a connection
      phalanx plan --egress             # for a network that lets nothing else out
      phalanx plan --on-aws             # before the first `up` in an account
    """
    if on_aws and (offline or shows_egress):
        other = "--offline" if offline else "--egress"
        raise SpecError(f"--on-aws and {other} exclude each other", "Remove one.", code="conflicting-options")
    plan = planned(file, offline)
    if shows_egress:
        _show_egress(plan, as_json)
        return 0
    asked = not (offline or plan.facts.not_asked)
    with with_location(file):
        document, _ = request(plan)
        through_bucket = plan.spec.bucket if is_large(document) else None
        if asked and through_bucket:
            _require_bucket(plan.spec, through_bucket)
    standing = _standing(plan) if asked else None
    recipes = unsuited_recipes(plan)
    answers = _answers(plan, file) if on_aws else None
    if as_json:
        requested = standing.requested if standing else None
        more = {"unsuited_recipes": recipes, "requested": requested, "through_bucket": through_bucket}
        asked_for = {"on_aws": answers.as_dict()} if answers else {}
        print_json({**plan_text.as_dict(plan), **more, **asked_for})
    else:
        say("\n".join(plan_text.explain(plan, line_width())))
        if through_bucket:
            through = f"`up` sends it through the bucket {through_bucket}"
            say(f"The stack's document is too large for a request: {through}.")
        if recipes:
            say(unsuited_text(recipes))
        if standing:
            say(_standing_text(plan.spec, standing))
        if answers:
            say("\n".join(_answers_text(plan.spec, answers, file)))
    return CloudError.exit_code if answers and not answers.works else 0


def _answers(plan: Plan, file: Path) -> Answers:
    """Ask the plan's cloud. A local one is started for that as for `up`, and ended again."""
    if plan.facts.not_asked:
        raise CloudUnreachable(f"AWS can't be asked: {plan.facts.not_asked}", _LOG_IN, code="no-credentials")
    connection.begin(plan.spec.cloud)
    cloud = connection.connect(plan.spec.cloud, plan.spec.region)
    try:
        with with_location(file):
            return rehearsal.ask(cloud, plan, note)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    finally:
        cloud.site.stop_if_idle()


def _answers_text(spec: ClusterSpec, answers: Answers, file: Path) -> Iterator[str]:
    """Yield what AWS said, what speaks against the plan last."""
    where = "The local cloud was asked in place of AWS" if is_local(spec.cloud) else f"AWS was asked in {spec.region}"
    yield f"\n{where}: nothing was made, and nothing costs."
    if answers.changes is not None:
        would = "would be changed" if any(one.action != "Add" for one in answers.changes) else "would be made"
        resources = counted(len(answers.changes), "resource")
        yield f"CloudFormation: {resources} {would}" if answers.changes else "CloudFormation: nothing would change"
    if answers.launches:
        yield f"EC2: you may launch {', '.join(answers.launches)} (a dry run, which does not look at capacity)"
    if answers.rights and not answers.denied:
        yield f"IAM: you have the {counted(answers.rights, 'right')} that `phalanx policy` prints"
    yield from (f"not checked: {one}" for one in answers.not_checked)
    for key, one in answers.validations:
        kind = "refused" if one.blocks else "warning"
        yield f"{kind}: {located(file, key, str(one)) if key else one}"
    yield from (f"refused: {one}" for one in answers.refused)
    yield from (f"refused: IAM would deny {one}" for one in answers.denied)
    if answers.denied:
        yield "`phalanx policy` prints a policy with these rights."


def _require_bucket(spec: ClusterSpec, bucket: str) -> None:
    """Raise SpecError unless the document may go through the bucket."""
    cloud = connection.connect(spec.cloud, spec.region)
    try:
        cloud.site.require_private_bucket(bucket)
    finally:
        cloud.site.stop_if_idle()


def _show_egress(plan: Plan, as_json: bool) -> None:
    found = egress.of(plan, sessions.domain_of(plan.spec.region))
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        rows = [(one.host, one.port, one.what, one.needed_for) for one in found]
        print_table(("HOST", "PORT", "WHAT", "NEEDED FOR"), rows)


@dataclass(frozen=True)
class _Standing:
    """A cluster that has the file's name: its stack, the settings that differ, and how many nodes were requested."""

    state: StackState
    changes: Settings
    requested: int | None
    stopped: bool


def _standing(plan: Plan) -> _Standing | None:
    """Return how the cluster with this name stands; None if this machine made none, or it is gone or not reached."""
    cloud = connection.connect(plan.spec.cloud, plan.spec.region)
    try:
        cluster = connection.attached(Cluster.load(plan.spec.name))
        if not cluster.stack_id:
            return None
        state, roster = read_state(cluster)
        running = cloud.machines.running(cluster.name)
        changes = Target(cloud, plan.spec).changes(state)
    except NewerFormat:
        raise
    except PhalanxError:
        return None
    return _Standing(state, changes, roster.requested if roster else None, running is not None and running.stopped)


def _standing_text(spec: ClusterSpec, standing: _Standing) -> str:
    """Say what `up` does with a cluster that is there."""
    if standing.state.creating:
        return f"Cluster {spec.name} is being created; `up` follows that."
    if not standing.state.ready:
        return f"Cluster {spec.name} is there as {standing.state.status}; `phalanx why` names the cause."
    if standing.changes:
        settings = described(standing.changes)
        return f"Cluster {spec.name} is there with other settings ({settings}); `up` shows what would change, and asks."
    if standing.stopped:
        return f"Cluster {spec.name} is there, and its nodes are stopped; `up` starts them."
    if standing.requested not in (None, spec.nodes):
        nodes = f"`phalanx scale` requested {counted(standing.requested, 'node')}, which `up` keeps"
        return f"Cluster {spec.name} is up already; {nodes}."
    return f"Cluster {spec.name} is up already as the file describes it; `up` would create nothing."
