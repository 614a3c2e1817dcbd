"""phalanx run: run a program on all nodes."""

from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from phalanx import guest_file
from phalanx.cli import complete, input
from phalanx.cli.console import note
from phalanx.cli.environment import ENVIRONMENT, chosen_environment, environment_options
from phalanx.cli.job_options import chosen_fields, env_file_option, job_options
from phalanx.cli.options import (
    DEFAULT_FILE,
    cluster_option,
    debug_option,
    json_option,
    load_cluster,
    quiet_option,
    via_option,
)
from phalanx.cli.starting import print_processes, start
from phalanx.errors import SpecError
from phalanx.jobs.job import JobSpec
from phalanx.jobs.launcher_choice import DEFAULT, choose, is_shell, shell_text
from phalanx.launchers import LAUNCHERS, load
from phalanx.launchers.options import OPTIONS
from phalanx.runner.starter.check import python_target, without_wrappers
from phalanx.schedulers import SCHEDULERS
from phalanx.spec.spec_checks import WrongError, nearest
from phalanx.spec.spec_job import OF_THE_COMMAND, as_fields, node_range
from phalanx.spec.spec_load import load_value, located

# Programs that start the ranks of MPI, and their options with counts as `phalanx run` spells them.
_STARTERS = frozenset(("mpiexec", "mpirun", "orterun", "prterun", "mpiexec.hydra"))
_COUNTS = {"-n": "-n", "-np": "-n", "--np": "-n", "-N": "-N", "-ppn": "-N"}
# Other programs that start ranks, with the launcher that does the same on all nodes.
_OF_OTHERS = {
    **dict.fromkeys(("torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    "accelerate.commands.launch": "torchrun",
    "deepspeed": "deepspeed",
    "horovodrun": "mpi",
}
_COUNTS_OF_OTHERS = {
    **dict.fromkeys(("--nproc_per_node", "--nproc-per-node", "--num_gpus"), "-N"),
    **dict.fromkeys(("--num_processes", "-np"), "-n"),
}
# In the text of a shell, where a command may begin.
_IN_SHELL = re.compile(
    r"(?m)(?:^|[;&|(]|\b(?:exec|time)\b)[ \t]{0,100}(?:\w{1,100}=\S{0,100}[ \t]{1,100}){0,9}"
    r"((?:torchrun|accelerate[ \t]+launch|deepspeed|horovodrun|mpiexec|mpirun"
    r"|python[\d.]*[ \t]+-m[ \t]+torch\.distributed\.(?:run|launch))[ \t][^;&|)\n]*)"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_ONE_PROGRAM = ("exec", "ray", "spark")
_LARGEST_SECRET_BYTES = 1 << 20
_ELASTIC = {"torchrun": ("nodes",)}


# The options of --help, by group. Those of a launcher follow only with that launcher.
GROUPS = {
    "What": ("--directory", "--stdin", "--link", "--checkpoint", "--resume", "--name", "--tag"),
    "Where": ("--cluster", "--file", "-n", "-N", "--via", "--via-option"),
    "Environment": (
        "--env",
        "--env-file",
        "--secret",
        "--recipe",
        "--requirements",
        "--no-requirements",
        "--build-env",
    ),
    "When": ("--array", "--after", "--after-any", "--wait", "--wait-limit", "--priority"),
    "Limits": ("--time", "--grace", "--restarts", "--restart-on", "--step", "--stall", "--on-stall", "--idle-gpu"),
    "Engine": ("--launcher",),
    "This command": ("--detach", "--quiet", "--dry-run", "--json", "--debug", "--help"),
}
EVERY = "every"
"""In place of a launcher's name, for a page with the options of all."""


class Run(click.Command):
    """A command with options in groups, which refuses `-np 4`: click takes it for `-n p` and an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        for option in ("-np", "-ppn"):
            if option in own:
                raise click.NoSuchOption(option, ctx=ctx)
        # --help is shown before other options are parsed.
        words = " ".join(own).replace("=", " ").split(" ")
        ctx.meta[EVERY] = words[words.index("--launcher") + 1 :][:1] if "--launcher" in words else []
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, and those of the launcher that the command line names."""
        shown = {param.opts[-1]: param.get_help_record(ctx) for param in self.get_params(ctx)}
        launchers = ctx.meta.get(EVERY, [])
        sections = dict(GROUPS)
        own = sections.pop("This command")
        for launcher in LAUNCHERS if launchers == [EVERY] else (one for one in LAUNCHERS if one in launchers):
            sections[f"With --launcher {launcher}"] = tuple(of_launcher(launcher))
        for title, names in {**sections, "This command": own}.items():
            if found := [record for name in names if (record := shown.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(found)


def of_launcher(launcher: str) -> list[str]:
    """Return the options that only this launcher takes."""
    return [f"--{name}" for name in (*load(launcher).OPTIONS, *_ELASTIC.get(launcher, ()))]


def _nodes(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """Parse MIN:MAX."""
    if value is None:
        return None, None
    try:
        return node_range(value)
    except WrongError as error:
        raise click.BadParameter(f"{error.what}, {error.hint}") from None


def _secrets(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read NAME from the caller's environment, or NAME=@FILE; refuse a value on the command line."""
    return {value.partition("=")[0]: _secret(*value.partition("=")[::2]) for value in values}


def _secret(name: str, source: str) -> str:
    if not source:
        if name not in os.environ:
            raise click.BadParameter(f"'{name}' is not set in your environment; export it, or use {name}=@FILE")
        return os.environ[name]
    if not source.startswith("@"):
        raise click.BadParameter(
            f"'{name}=…': every user who can list processes could read this value; "
            f"export it and use `--secret {name}`, or use {name}=@FILE"
        )
    try:
        text = guest_file.read_named(Path(source[1:]).expanduser(), _LARGEST_SECRET_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or "it is not UTF-8"
        raise click.BadParameter(f"'{name}': can't read {source[1:]}: {reason}") from None
    return text.replace("\r\n", "\n").rstrip("\r\n")


def _refuse_paths_of_this_machine(argv: tuple[str, ...], directory: Path) -> None:
    """Raise UsageError for a program or script that is sent, and is named as it is called here and not in the code."""
    words = without_wrappers(argv)
    scripts = python_target(words) or words[: 1 + is_shell(words)] if words else []
    for word in (one for one in scripts if one.startswith(("/", "../"))):
        place, here = (directory / word).absolute(), os.path.realpath(directory)
        path = os.path.relpath(os.path.realpath(place.parent) + f"/{place.name}", here)
        if not path.startswith("..") and place.exists():
            typed = shlex.join(path if one == word else one for one in argv)
            raise click.UsageError(f"{word} is a path of this machine: write `phalanx run -- {typed}`")


def _inner(argv: tuple[str, ...], directory: Path | None) -> tuple[str, ...]:
    """Return the command that starts ranks: behind programs such as env, and in the text of a shell if `directory`."""
    found = _IN_SHELL.search(shell_text(directory, argv)) if directory else None
    if found is None:
        return tuple(without_wrappers(argv))
    try:
        return tuple(shlex.split(found[1]))
    except ValueError:
        return tuple(found[1].split())


def _refuse_nested(argv: tuple[str, ...], directory: Path | None) -> None:
    """Raise UsageError for an mpiexec below the launcher's own, which Open MPI's refuses once the job has started."""
    inner = _inner(argv, directory)
    if inner and Path(inner[0]).name in _STARTERS:
        raise click.UsageError(
            f"the launcher mpi starts the ranks itself, so {inner[0]} can't be the program: "
            f"`{_without_starter(inner[1:])}` starts them, "
            f"`phalanx run --launcher exec -n 1 -- {shlex.join(argv)}` runs this command once"
        )


def _refuse_starters(argv: tuple[str, ...], launcher: str, directory: Path | None) -> None:
    """Raise UsageError for a program that starts ranks by itself: each rank of the launcher would start all of them."""
    inner = _inner(argv, directory) or ("",)
    target = python_target(inner)
    name = target[1] if target[:1] == ["-m"] else Path(inner[0]).name
    if name in _OF_OTHERS:
        raise click.UsageError(
            f"{name} starts ranks by itself, and the launcher {launcher} would start it once for each rank: "
            f"`{_by_launcher(_OF_OTHERS[name], inner)}` starts them on all nodes, "
            f"`phalanx run --launcher exec -n 1 -- {shlex.join(argv)}` runs this command once"
        )


def _by_launcher(launcher: str, argv: tuple[str, ...]) -> str:
    """Return the command line with which a launcher starts the script that another program would start."""
    first = next((number for number, word in enumerate(argv) if word.endswith(".py")), len(argv))
    words = " ".join(argv[:first]).replace("=", " ").split()
    pairs = [(_COUNTS_OF_OTHERS[one], other) for one, other in pairwise(words) if one in _COUNTS_OF_OTHERS]
    counts = [word for pair in pairs if pair[1].isdigit() for word in pair]
    return shlex.join(("phalanx", "run", "--launcher", launcher, *counts, "--", *(argv[first:] or ("SCRIPT",))))


def _without_starter(argv: tuple[str, ...]) -> str:
    """Return the command line for what mpiexec would start; its options other than counts stay out."""
    counts: list[str] = []
    while len(argv) > 1 and argv[0] in _COUNTS:
        counts += (_COUNTS[argv[0]], argv[1])
        argv = argv[2:]
    if not argv or argv[0].startswith("-"):
        return "phalanx run --launcher mpi -n N -- PROGRAM"
    return shlex.join(("phalanx", "run", "--launcher", "mpi", *counts, "--", *argv))


# What an option that is typed replaces in the file, besides its own key: both together would be refused.
_REPLACED_BY = {
    "job_processes": ("processes", "per_node", "nodes"),
    "job_per_node": ("processes", "per_node"),
    "nodes": ("processes", "per_node", "via"),
    "via": ("nodes",),
    "job_array": ("via",),
}


def _of_file(context: click.Context, name: str | None, file: Path | None) -> dict[str, Any]:
    """Return what the key `job` of the cluster's file says about parameters that the command line leaves open."""
    path = file or Path(DEFAULT_FILE)
    # The file of another cluster says nothing about this one's jobs.
    if not path.exists() or (name and load_value(path, "name") != name):
        return {}
    given = as_fields(load_value(path, "job") or {})
    for key, known in (("launcher", LAUNCHERS), ("via", SCHEDULERS)):
        if key in given and given[key] not in known:
            why = located(path, "job", f"there is no {key} '{given[key]}'")
            raise SpecError(why, nearest(given[key], known), code="unknown-choice")
    chosen = {parameter: context.params[parameter] for parameter in context.params if _is_typed(context, parameter)}
    without = {field for one in chosen for field in _REPLACED_BY.get(one, ())}
    if "launcher" in chosen and chosen["launcher"] not in _ELASTIC:
        without.add("nodes")
    if chosen.get("job_restarts") == 0:
        without.add("restart_on")
    given = {field: value for field, value in given.items() if field not in without}
    found = {field if field in OF_THE_COMMAND else f"job_{field}": value for field, value in given.items()}
    both = {one: {**found[one], **chosen[one]} for one in found if one in chosen and isinstance(found[one], dict)}
    return {**{one: value for one, value in found.items() if one not in chosen}, **both}


def _refuse_together(as_json: bool, dry_run: bool, has_command: bool, is_resumed: bool) -> None:
    """Raise UsageError for options that say nothing together, or without a command."""
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run; `phalanx jobs --json` shows the state of a job")
    if not has_command and not is_resumed:
        raise click.UsageError("Missing argument '[--] COMMAND...'.")
    if dry_run and is_resumed:
        raise click.UsageError("--dry-run can't show what --resume starts: the head knows the earlier job")


def _is_typed(context: click.Context, parameter: str) -> bool:
    return context.get_parameter_source(parameter) is not ParameterSource.DEFAULT


def _launcher(directory: Path, argv: tuple[str, ...], quiet: bool) -> str:
    choice = choose(directory, argv)
    if choice.sign and not quiet:
        note(f"launcher {choice.launcher}, because {choice.script} uses {choice.sign}; --launcher names another")
    return choice.launcher


def _launcher_options(command: Any) -> Any:
    """Add a flag for each option of the launchers."""
    for name, option in OPTIONS.items():
        command = click.option(f"--{name}", metavar=option.metavar, help=option.summary)(command)
    return command


@click.command("run", cls=Run, context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option(
    "--launcher",
    type=click.Choice(list(LAUNCHERS)),
    help="What starts the processes. Without it: what the script's imports need, or else mpi.",
)
@job_options
@env_file_option
@_launcher_options
@environment_options
@click.option(
    "--nodes",
    metavar="MIN:MAX",
    callback=_nodes,
    help="Continue with fewer nodes when some die, and grow again.",
)
@click.option("--via", type=click.Choice(list(SCHEDULERS)), help="Request the nodes from the cluster's batch system.")
@via_option
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=@FILE]",
    callback=_secrets,
    help="Set a variable from your environment or a file; it is never written or shown. Repeatable.",
)
@click.option("--stdin", "has_stdin", is_flag=True, help="Send this command's input to the job, for rank 0 to read.")
@click.option("--detach", is_flag=True, help="Start the job and return; `logs -f` follows it later.")
@quiet_option
@click.option("--dry-run", is_flag=True, help="Print the processes that would be started; start nothing.")
@json_option
@debug_option
@click.argument("argv", metavar="[--] COMMAND...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete.files)
@click.pass_context
def command(
    context: click.Context,
    name: str | None,
    file: Path | None,
    dry_run: bool,
    as_json: bool,
    detach: bool,
    quiet: bool,
    argv: tuple[str, ...],
    **chosen: Any,
) -> int:
    """Run COMMAND on the cluster: send this directory once, and show every rank's output with its [rank].

    Files that .gitignore excludes are not sent; .phalanxignore takes precedence over it. From a large directory,
    only changes are sent.

    \b
    Without -n and -N, the launcher determines the number of processes:
      mpi         one per slot, started by mpiexec
      torchrun    one per slot, RANK and MASTER_ADDR set by torchrun
      exec        one per node, RANK and MASTER_ADDR set by phalanx
      dmlc        one worker per slot, one of MXNet's parameter servers per node
      tensorflow  one worker per GPU or slot, TF_CONFIG set; with --ps also a chief
      jax         one per GPU or slot, for jax.distributed.initialize()
      deepspeed   one per GPU or slot, started by deepspeed
      ray         one program on the head of a Ray cluster over all nodes
      spark       one program on the head, as the driver of a Spark cluster over all nodes

    `phalanx run --launcher NAME --help` shows the options of a launcher, too. Ctrl-C stops the job. The exit code is
    the job's own.

    \b
    Examples:
      phalanx run -- python train.py
      phalanx run --launcher torchrun -N 2 -- train.py --epochs 5
      phalanx run --launcher exec -- nvidia-smi
      phalanx run --launcher dmlc -n 4 --servers 2 -- python train_mnist.py --kv-store dist_sync
      phalanx run --launcher tensorflow -N 1 --ps 2 -- python train.py
      phalanx run --launcher torchrun --nodes 2:4 --restarts 3 -- train.py
      phalanx run --via slurm --via-option "--partition gpu --time 4:00:00" -n 8 -- python train.py
      phalanx run --detach --name long --tag model=resnet --env LR=0.1 -- python train.py
      phalanx run --recipe torch --launcher torchrun -- train.py
      phalanx run --launcher torchrun --checkpoint checkpoints/mnist --restarts 3 -- train.py
      phalanx run --resume mnist
      phalanx run --time 4h --grace 2m --checkpoint checkpoints/mnist -- python train.py
      phalanx run --wait --priority 10 -n 8 -- python train.py
      phalanx run --after prepare --launcher torchrun -- train.py
      phalanx run --array 0-31%4 -n 1 -- sh -c 'python train.py --seed $PHALANX_ARRAY_INDEX'
      phalanx run --stdin -n 1 -- python - < train.py
      phalanx run --secret WANDB_API_KEY --secret HF_TOKEN=@~/.hf -- python train.py
    """
    _refuse_together(as_json, dry_run, bool(argv), bool(chosen["job_resume"]))
    if not chosen["job_resume"]:
        chosen |= _of_file(context, name, file)
    chosen["job_env"] = {**chosen["job_env"], **chosen["env_file"], **context.params["job_env"]}
    fields = chosen_fields(chosen)
    if argv and _ASSIGNMENT.fullmatch(argv[0]):
        typed = shlex.join(("phalanx", "run", "--env", argv[0], "--", *argv[1:]))
        raise click.UsageError(f"{argv[0]} would be the program: `{typed}` sets the variable")
    _refuse_paths_of_this_machine(argv, fields["directory"])
    launcher = chosen["launcher"] or DEFAULT
    if not chosen["job_resume"]:  # a resumed job has its own launcher
        launcher = chosen["launcher"] or _launcher(fields["directory"], argv, quiet)
    # Who names the launcher knows that a script starts other ranks only now and then.
    read = fields["directory"] if chosen["launcher"] is None and fields["processes"] != 1 else None
    if launcher == "mpi" and not chosen["job_resume"]:
        _refuse_nested(argv, read)
    if launcher not in _ONE_PROGRAM and not chosen["job_resume"] and fields["processes"] != 1:
        _refuse_starters(argv, launcher, read)
    if not chosen["has_stdin"]:
        input.refuse_unread(argv)
    cluster = load_cluster(name, file)
    cluster.require_ready()
    spec = JobSpec(
        **fields,
        command=argv,
        stdin=input.read() if chosen["has_stdin"] and not dry_run else None,
        launcher=launcher,
        secrets=chosen["secrets"],
        via=chosen["via"],
        via_options=chosen["via_options"],
        nodes_min=chosen["nodes"][0],
        nodes_max=chosen["nodes"][1],
        environment=chosen_environment(
            fields["directory"], command=argv, **{name: chosen[name] for name in ENVIRONMENT}
        ),
        options={name: chosen[key] for name in OPTIONS if chosen[key := name.replace("-", "_")] is not None},
    )
    return print_processes(cluster, spec, as_json) if dry_run else start(cluster, spec, detach, quiet)
