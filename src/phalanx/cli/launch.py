"""phalanx launch: MXNet's tools/launch.py, with the same options, on the cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli import complete, input
from phalanx.cli.environment import ENVIRONMENT, chosen_environment, environment_options
from phalanx.cli.job_options import env_file_option, pairs
from phalanx.cli.options import (
    Theirs,
    cluster_option_of,
    debug_option,
    json_option,
    load_cluster,
    quiet_option,
    via_option,
)
from phalanx.cli.starting import print_processes, start
from phalanx.errors import SpecError
from phalanx.jobs import hosts_file
from phalanx.jobs.job import JobSpec
from phalanx.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster

# The options are those of apache/mxnet's tools/launch.py (1.9.1). A second spelling is that of dmlc-core's dmlc-submit
# (tracker/dmlc_tracker/opts.py), to which launch.py passes them on.
_PAIR = re.compile(r",(?=[A-Za-z_]\w*:)")
_NAME_OR_PAIR = re.compile(r",(?=[A-Za-z_]\w*(?:[:,]|$))")
# The variables that launch.py --p3 sets.
_P3 = {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"}


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME:VALUE pairs, separated by commas; a value may contain colons and commas."""
    return dict(_pair(text) for value in values for text in _PAIR.split(value))


def _names(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME (with its value on this machine) or NAME:VALUE, separated by commas."""
    texts = [text for value in values for text in _NAME_OR_PAIR.split(value)]
    return dict(_pair(text) if ":" in text else (text, _here(text)) for text in texts)


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name or not colon:
        raise click.BadParameter(f"'{text}' is not of the form NAME:VALUE")
    return name, value


def _here(name: str) -> str:
    if name not in os.environ:
        raise click.BadParameter(f"'{name}' is not set in your environment; export it, or use {name}:VALUE")
    return os.environ[name]


@click.command("launch", context_settings={"allow_interspersed_args": False})
@cluster_option_of("-c")
@click.option(
    "-n",
    "--num-workers",
    "workers",
    cls=Theirs,
    type=click.IntRange(1),
    required=True,
    help="The total number of workers.",
)
@click.option(
    "-s",
    "--num-servers",
    "servers",
    cls=Theirs,
    type=click.IntRange(1),
    help="The total number of servers; default: as many as workers.",
)
@click.option(
    "-N",
    "per_node",
    cls=Theirs,
    type=click.IntRange(1),
    help="The maximum number of workers on each host; default: its slots.",
)
@click.option(
    "-H",
    "--hostfile",
    "--host-file",
    "hostfile",
    cls=Theirs,
    type=click.Path(path_type=Path),
    help="A file with names or addresses of nodes, one per line; default: all nodes.",
)
@click.option(
    "--sync-dst-dir",
    "--sync-dir",
    "sync_dir",
    cls=Theirs,
    metavar="DIR",
    default="",
    help="Copy the code to DIR of each node first.",
)
@click.option(
    "--launcher",
    "--cluster",
    "kind",
    cls=Theirs,
    type=click.Choice(("ssh", "mpi", "local", *SCHEDULERS)),
    default="ssh",
    show_default=True,
    help="local: all on the head; ssh, mpi: on the hosts; otherwise a batch system, which allocates the nodes.",
)
@via_option
@click.option(
    "--env",
    cls=Theirs,
    multiple=True,
    metavar="NAME[:VALUE]",
    callback=_names,
    help="Set a variable for all processes: to VALUE, or to its value on this machine.",
)
@env_file_option
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="NAME=SHARED_PATH",
    callback=pairs,
    help="A link in the job's copy of the code, such as data=datasets/mnist. Repeatable.",
)
@click.option(
    "--env-server",
    cls=Theirs,
    multiple=True,
    metavar="NAME:VALUE",
    callback=_pairs,
    help="Set a variable for servers.",
)
@click.option(
    "--env-worker",
    cls=Theirs,
    multiple=True,
    metavar="NAME:VALUE",
    callback=_pairs,
    help="Set a variable for workers.",
)
@click.option("--p3", cls=Theirs, is_flag=True, help="MXNet's priority-based propagation of parameters.")
@environment_options
@click.option("--name", "--jobname", "job_name", metavar="TEXT", help="A name for the job, to find it by.")
@click.option("--detach", is_flag=True, help="Start the job and return; `logs -f` follows it later.")
@quiet_option
@click.option("--dry-run", is_flag=True, help="Print the processes that would be started; start nothing.")
@json_option
@debug_option
@click.argument(
    "argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete.files
)
def command(
    name: str | None, file: Path | None, dry_run: bool, as_json: bool, detach: bool, quiet: bool, **chosen: Any
) -> int:
    """Run COMMAND as a parameter server's scheduler, servers and workers, as MXNet's launch.py does.

    It accepts the options of launch.py and of dmlc-submit with their meaning there, so --cluster is the launcher, and
    -c names the cluster. MXNet need not be installed on this machine. This directory is sent once. Workers go to the
    hosts in turn, and so do servers. Exported variables stay here, except those of --env.

    \b
    Examples:
      phalanx launch -n 2 -s 2 -H hosts --sync-dir /tmp/mxnet python train_mnist.py --kv-store dist_sync
      phalanx launch --recipe mxnet -n 2 --launcher local python train_mnist.py --kv-store dist_sync
      phalanx launch -n 4 --env-server OMP_NUM_THREADS:1 python train_mnist.py --kv-store dist_async
    """
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run; `phalanx jobs --json` shows the state of a job")
    input.refuse_unread(chosen["argv"])
    cluster = load_cluster(name, file)
    cluster.require_ready()
    spec = _spec(cluster, **chosen)
    return print_processes(cluster, spec, as_json) if dry_run else start(cluster, spec, detach, quiet)


def _spec(cluster: Cluster, **chosen: Any) -> JobSpec:
    return JobSpec(
        command=chosen["argv"],
        launcher="dmlc",
        processes=chosen["workers"],
        per_node=chosen["per_node"],
        name=chosen["job_name"],
        links=chosen["links"],
        env={**chosen["env_file"], **chosen["env"], **(_P3 if chosen["p3"] else {})},
        role_env={"server": chosen["env_server"], "worker": chosen["env_worker"]},
        options={"servers": str(chosen["servers"] or chosen["workers"])},
        hosts=_hosts(cluster, chosen["kind"], chosen["hostfile"]),
        sync_dir=chosen["sync_dir"],
        via=chosen["kind"] if chosen["kind"] in SCHEDULERS else None,
        via_options=chosen["via_options"],
        environment=chosen_environment(Path(), command=chosen["argv"], **{name: chosen[name] for name in ENVIRONMENT}),
    )


def _hosts(cluster: Cluster, kind: str, hostfile: Path | None) -> tuple[str, ...]:
    """Return the nodes to use; () means all. The roster is read only if it is needed."""
    if kind == "local":
        if hostfile:
            raise SpecError(
                f"--launcher local takes no hosts file ({hostfile})",
                "It runs everything on the head.",
                code="conflicting-options",
            )
        return (cluster.roster().head.name,)
    if not hostfile or hosts_file.is_nodes_own(hostfile):
        return ()
    return hosts_file.load(hostfile, cluster.roster())
