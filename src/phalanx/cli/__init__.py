"""The command line: a thin layer over the library. Only this package prints, prompts and exits."""

from __future__ import annotations

import errno
import signal

# During the imports, Ctrl-C ends the program by its signal. Later, `execute` reports it.
if _python_handles_it := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # imported by a thread
        _python_handles_it = False

import functools
import gc
import itertools
import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from phalanx import __version__, waits
from phalanx.cli.group import LazyGroup, of_other_tools
from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx.cli.waiting import Waits

# Section → command → (module, one line for the help). `phalanx --help` imports none of the modules.
COMMANDS = {
    "Clusters": {
        "init": ("phalanx.cli.init", "Write a short commented phalanx.yaml."),
        "schema": ("phalanx.cli.schema", "Print the JSON Schema of phalanx.yaml, for editors."),
        "plan": ("phalanx.cli.plan", "Show what `up` would create, and what it costs."),
        "template": ("phalanx.cli.template", "Print the CloudFormation document, exactly as `up` sends it."),
        "doctor": ("phalanx.cli.doctor", "Say what in your account will stop or surprise a cluster."),
        "policy": ("phalanx.cli.policy", "Print the IAM policy that a person needs who runs phalanx."),
        "up": ("phalanx.cli.up", "Create the cluster and wait until its nodes have answered."),
        "ls": ("phalanx.cli.ls", "List all clusters that this machine knows."),
        "status": ("phalanx.cli.status", "Show the state of the cluster: nodes, address, jobs."),
        "why": ("phalanx.cli.why", "Name the cause of a cluster that failed or is stuck."),
        "nodes": ("phalanx.cli.nodes", "List the nodes."),
        "extend": ("phalanx.cli.extend", "Move the end of the cluster's lease."),
        "allow": ("phalanx.cli.allow", "Let another network reach the head by ssh."),
        "scale": ("phalanx.cli.scale", "Change the number of nodes."),
        "ssh": ("phalanx.cli.ssh", "Log in to a node, or run one command there."),
        "exec": ("phalanx.cli.exec", "Run one command on all nodes, with a verdict for each."),
        "check": ("phalanx.cli.check", "Measure the network between the nodes, and name what is slow."),
        "put": ("phalanx.cli.put", "Upload data to the shared directory."),
        "data": ("phalanx.cli.data", "Bring data to the shared directory, from S3 or public data sets."),
        "forward": ("phalanx.cli.forward", "Forward a port of this machine to a node."),
        "ui": ("phalanx.cli.ui", "Show clusters and jobs in this machine's browser."),
        "notebook": ("phalanx.cli.notebook", "Run JupyterLab on the head, for this machine's browser."),
        "image": ("phalanx.cli.image", "Make machine images (AMIs) from recipes."),
        "emr-scripts": ("phalanx.cli.emr_scripts", "Write the scripts for an EMR cluster of your own."),
        "adopt": ("phalanx.cli.adopt", "Take over a cluster that this machine did not create."),
        "reap": ("phalanx.cli.reap", "Find what is left of any cluster in a region."),
        "down": ("phalanx.cli.down", "Delete the cluster and prove that nothing is left."),
    },
    "Jobs": {
        "run": ("phalanx.cli.run", "Run a program on all nodes and follow its output."),
        "launchers": ("phalanx.cli.launchers", "List the launchers that can start a job."),
        "launch": ("phalanx.cli.launch", "Run a parameter server's program, as MXNet's launch.py does."),
        "tf-scripts": ("phalanx.cli.tf_scripts", "Write a script per host that starts its TensorFlow 1 tasks."),
        "recipes": ("phalanx.cli.recipes", "List the environments that jobs can run in."),
        "jobs": ("phalanx.cli.jobs", "List the jobs."),
        "logs": ("phalanx.cli.logs", "Show or follow the output of a job."),
        "top": ("phalanx.cli.top", "Show the load of the nodes on which jobs run."),
        "exporter": ("phalanx.cli.exporter", "Serve the load and the ranks' steps to Prometheus."),
        "stacks": ("phalanx.cli.stacks", "Show what each rank does now, and which one is elsewhere."),
        "get": ("phalanx.cli.get", "Download results of a job."),
        "plot": ("phalanx.cli.plot", "Draw the curves of jobs, in the terminal or as a picture."),
        "tensorboard": ("phalanx.cli.tensorboard", "Show a job's TensorBoard in this machine's browser."),
        "stop": ("phalanx.cli.stop", "Stop a job and prove that no process of it is left."),
    },
    "This machine": {
        "local": ("phalanx.cli.local", "Inspect or stop the local cloud."),
        "ssh-config": ("phalanx.cli.ssh_config", "Configure plain ssh, scp, rsync and editors for the cluster."),
        "completion": ("phalanx.cli.completion", "Print the shell's completion script."),
    },
}

_MOST_PROBLEMS = 100
_UNEXPECTED = "This is an unexpected error. Run `phalanx --debug …` to see where it happened."
_HELP = """One YAML file becomes a distributed deep-learning cluster: in your AWS account, or on this machine.

\b
Examples:
  phalanx init                      write phalanx.yaml
  phalanx up                        create the cluster
  phalanx run -- python train.py    train on all its nodes
  phalanx down                      delete it, and verify that
"""


@click.group(cls=LazyGroup, sections=COMMANDS, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="phalanx")
@click.option("--debug", is_flag=True, help="Show tracebacks of unexpected errors.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    context.obj = {"debug": debug}


def main() -> None:
    """Run the `phalanx` program: run a command and exit with its exit code."""
    # Otherwise Python collects garbage a hundred times while it imports the AWS SDK: a sixth of a short command.
    gc.set_threshold(200_000, 10, 10)
    _open_what_is_closed()
    # File names need not be valid text; a pipe gets their original bytes.
    sys.stdout.reconfigure(errors="surrogateescape")  # pyright: ignore[reportAttributeAccessIssue]
    if "_PHALANX_COMPLETE" in os.environ:
        # The shell requests completions; click prints them and exits.
        cli.main(prog_name="phalanx")
    status = execute(sys.argv[1:])
    # Otherwise Python collects garbage among all imported modules at exit, which takes 10 ms.
    gc.freeze()
    sys.exit(status)


def _open_what_is_closed() -> None:
    """Open /dev/null in place of the standard files that are closed (`>&-`): the next files would get their numbers."""
    streams = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for number, (name, mode) in enumerate(streams):
        if getattr(sys, name) is None:  # Python found it closed
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as the process


def execute(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Only this function turns errors into messages."""
    waits.show_with(_show_wait)
    context: click.Context | None = None
    try:
        with cli.make_context("phalanx", list(arguments)) as context:
            result = cli.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _report_misuse(error, _wants_json(context) or "--json" in itertools.takewhile("--".__ne__, arguments))
    except click.Abort:
        # No, or Ctrl-C, at a question: all commands ask before they do anything.
        click.echo("cancelled; nothing was changed", err=True)
        return 130
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has exited.
        _drop_output()
        return 141
    except PhalanxError as error:
        return _report(error, context)
    except OSError as error:
        return _report_os_error(error, context)
    except Exception as error:
        return _report_unexpected(error, context)


@functools.cache
def _waits() -> Waits:
    from phalanx.cli.waiting import Waits  # here, because most commands need not wait

    return Waits()


def _show_wait(what: str) -> AbstractContextManager[object]:
    return _waits()(what)


def _report_os_error(error: OSError, context: click.Context | None) -> int:
    """Report an error of the system, such as a full disk, an unwritable directory or a missing program."""
    if error.filename:
        hint = "Set PHALANX_STATE_DIR to use another directory." if _is_state(error.filename) else ""
        return _report(PhalanxError(f"{error.filename}: {error.strerror}", hint, code="os-error"), context)
    if error.errno == errno.ENOENT and _is_directory_gone():
        return _report(PhalanxError("this command needs the current directory", code="os-error"), context)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No usable temporary directory" in str(error)
    if not is_full:
        return _report_unexpected(error, context)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    hint = "The disk of the output, of the state directory or of temporary files is full: repeat this when it has room."
    return _report(PhalanxError(f"can't write: {error.strerror}", hint, code="cannot-write"), context)


def _is_directory_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is loaded late
    except FileNotFoundError:
        return True
    return False


def _drop_output() -> None:
    from phalanx.cli.console import drop_output  # here, as all that `--help` does not need

    drop_output()


def _is_state(path: str | bytes) -> bool:
    from phalanx.state_files import state_directory  # here, as all that `--help` does not need

    return os.fsdecode(path).startswith(str(state_directory()))


def _debugging(context: click.Context | None) -> bool:
    return bool(context and context.obj and context.obj.get("debug"))


def _wants_json(context: click.Context | None) -> bool:
    return bool(context and context.obj and context.obj.get("json"))


def _report_misuse(error: click.ClickException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    where = "" if context is None else _where_it_belongs(error, context)
    # Whose place is known is no misspelling of a similar option.
    message = error.message if where and isinstance(error, click.NoSuchOption) else error.format_message()
    for words in ("is not a valid integer range", "is not a valid integer"):
        message = message.replace(words, "is no whole number")
    if as_json:
        _print_as_json(PhalanxError(message, code="usage"))
    _print_error(message)
    if context is not None:
        click.echo(f"{where}`{context.command_path} --help` shows how it is used.", err=True)
    return error.exit_code


def _where_it_belongs(error: click.ClickException, context: click.Context) -> str:
    """Return a sentence about a cluster's name that is no argument, or an option before the command; "" for others."""
    if isinstance(error, click.NoSuchOption) and context.parent is None:
        return "Options follow the command, as in `phalanx status -c demo`. "
    if isinstance(error, click.NoSuchOption) and error.option_name not in ("-c", "--cluster"):
        return _of_another_tool(error.option_name, context)
    extra = error.message.removeprefix("Got unexpected extra argument (").removesuffix(")")
    if not isinstance(error, click.NoSuchOption) and (extra == error.message or " " in extra):
        return ""
    options = {option for parameter in context.command.params for option in parameter.opts}
    if "-c" in options:
        return f"`{context.command_path} -c {extra}` names a cluster. "
    return "The cluster's name is in its file, which `--file` names. " if "--file" in options else ""


def _of_another_tool(option: str, context: click.Context) -> str:
    """Return a sentence about an option that another tool has for one of this command; "" for any other."""
    ours = of_other_tools("options").get(option, "")
    known = {name for parameter in context.command.params for name in parameter.opts}
    return f"phalanx's own is `{ours}`. " if ours.split(" ")[0] in known else ""


def _print_traceback(error: Exception) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


def _report(error: PhalanxError, context: click.Context | None) -> int:
    if _debugging(context):
        _print_traceback(error)
    if _wants_json(context):
        _print_as_json(error)
    _print_error(error.message, error.hint)
    return error.exit_code


def _report_unexpected(error: Exception, context: click.Context | None) -> int:
    unexpected = PhalanxError(f"{type(error).__name__}: {error}", _UNEXPECTED, code="unexpected")
    if not _debugging(context):
        return _report(unexpected, context)
    _print_traceback(error)
    if _wants_json(context):
        _print_as_json(unexpected)
    return 1


def _print_as_json(error: PhalanxError) -> None:
    """Print the error where a command with --json prints its result, with its first mistakes as `problems`."""
    from phalanx.cli.console import print_json  # here, because few commands fail

    problems = [_described(one) for one in (getattr(error, "mistakes", ()) or (error,))[:_MOST_PROBLEMS]]
    try:
        print_json({"error": {**_described(error), "problems": problems}})
    except OSError:  # standard error still has it
        _drop_output()


def _described(error: PhalanxError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _print_error(text: str, hint: str = "") -> None:
    from phalanx.cli.console import note  # here, because few commands fail

    note(click.style("error: ", fg="red", bold=True) + text)
    if hint:
        note(hint)
    if _is_directory_gone():
        note("The current directory was deleted: change to another one (`cd`), even if its path is the same.")


if _python_handles_it:
    signal.signal(signal.SIGINT, signal.default_int_handler)
