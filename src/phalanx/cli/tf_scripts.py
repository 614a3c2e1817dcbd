"""phalanx tf-scripts: write a shell script per host that starts its TensorFlow 1 tasks."""

from __future__ import annotations

import io
import posixpath
import shlex
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import guest_file
from phalanx.cli.console import note, say
from phalanx.cli.environment import complete_recipes
from phalanx.cli.options import Theirs, cluster_option, debug_option, load_cluster
from phalanx.errors import SpecError
from phalanx.jobs import environments
from phalanx.jobs.environment_store import made_environments
from phalanx.jobs.hosts_file import is_nodes_own
from phalanx.jobs.trainer_scripts import hosts, scripts

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster

_WRITE_LIMIT_S = 60
_LARGEST_BYTES = 1 << 20


@click.command("tf-scripts", context_settings={"ignore_unknown_options": True})
@cluster_option
@click.option(
    "--trainer_script_dir",
    cls=Theirs,
    required=True,
    metavar="DIR",
    help="Where to write the scripts: here, or below the shared directory.",
)
@click.option("--training_script", cls=Theirs, required=True, metavar="FILE", help="The program's path on the nodes.")
@click.option(
    "--log_dir",
    cls=Theirs,
    metavar="DIR",
    help="The directory for output on the nodes (default: logs beside the scripts).",
)
@click.option(
    "--workers_file_path", cls=Theirs, metavar="FILE", help="A file with hosts, one per line (default: all nodes)."
)
@click.option("--worker_count", cls=Theirs, type=click.IntRange(1), metavar="N", help="Take the first N hosts.")
@click.option(
    "--worker_gpu_count",
    cls=Theirs,
    type=click.IntRange(0),
    metavar="N",
    help="Workers on each host (default: GPUs, or slots).",
)
@click.option("--python", cls=Theirs, default="python", show_default=True, help="The Python that runs the program.")
@click.option(
    "--recipe",
    metavar="NAME",
    shell_complete=complete_recipes,
    help="Run in this environment. `phalanx recipes --make NAME` creates it.",
)
@debug_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    name: str | None,
    file: Path | None,
    trainer_script_dir: str,
    training_script: str,
    log_dir: str | None,
    workers_file_path: str | None,
    worker_count: int | None,
    worker_gpu_count: int | None,
    python: str,
    recipe: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Write HOST.sh for each host, which starts a parameter server and workers of a TensorFlow 1 program there.

    Other options are passed to the program: --batch_size 128, --data_dir=/efs/data, --max_steps 2000 …
    Every task is also given --ps_hosts, --worker_hosts, --job_name and --task_index.

    \b
    Examples:
      phalanx tf-scripts --trainer_script_dir /efs/tf --training_script /efs/tf/train.py \\
          --log_dir /efs/tf/logs --batch_size 128 --train_dir=/efs/tf/train --max_steps 2000
      phalanx ssh       and then, on the head:
      while read -u 10 host; do ssh $host "bash /efs/tf/$host.sh" & done 10<$DEEPLEARNING_WORKERS_PATH; wait

    `phalanx run --launcher tensorflow --tf-style flags` starts the same tasks as a job.
    """
    cluster = load_cluster(name, file)
    chosen = hosts(cluster.roster(), _names(workers_file_path), worker_count, worker_gpu_count)
    shared = _is_below(trainer_script_dir, cluster.shared)
    logs = log_dir or posixpath.join(trainer_script_dir if shared else cluster.shared, "logs")
    environment = _environment(cluster, recipe) if recipe else ""
    made = scripts(chosen, python, (training_script, *arguments), logs, environment)
    files = {f"{host}.sh": text for host, text in made.items()}
    (_write_there if shared else _write_here)(cluster, trainer_script_dir, files)
    for script in files:
        say(posixpath.join(trainer_script_dir, script))
    note(f"`bash HOST.sh` on each host starts its tasks; `phalanx ssh -- tail -f {logs}/*` shows their output.")


def _environment(cluster: Cluster, name: str) -> str:
    """Return the path of a recipe's environment, which all nodes see."""
    digest = environments.recipe(name).environment.digest
    for made in made_environments(cluster):
        if made.complete and made.digest == digest:
            return made.path
    raise SpecError(
        f"cluster {cluster.name} has no environment of the recipe {name}",
        f"phalanx recipes --make {name}",
        code="no-environment",
    )


def _names(path: str | None) -> list[str] | None:
    """Return the hosts in the workers file; None means all nodes, as does the nodes' own file."""
    if path is None or is_nodes_own(Path(path)):
        return None
    try:
        names = guest_file.read(Path(path), _LARGEST_BYTES).decode().split()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"can't read the workers file {path}: {error}", code="cannot-read") from None
    if not names:
        raise SpecError(
            f"the workers file {path} names no host",
            "Without --workers_file_path, all nodes are used.",
            code="hosts-file",
        )
    return names


def _is_below(path: str, directory: str) -> bool:
    return posixpath.normpath(path).startswith(directory.rstrip("/") + "/")


def _write_here(_: Cluster, directory: str, files: dict[str, str]) -> None:
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (Path(directory) / name).write_text(text)
    except OSError as error:
        raise SpecError(f"can't write the scripts to {directory}: {error}", code="cannot-write") from None


def _write_there(cluster: Cluster, directory: str, files: dict[str, str]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            header = tarfile.TarInfo(name)
            header.size, header.mode = len(text.encode()), 0o755
            archive.addfile(header, io.BytesIO(text.encode()))
    there = shlex.quote(directory)
    cluster.remote().run(f"mkdir -p {there} && tar -xC {there}", input=packed.getvalue(), timeout_s=_WRITE_LIMIT_S)
