"""Is what the user wants to run on this node? Asked on every node before any rank starts."""

from __future__ import annotations

# The C half, for the reason that lean.py gives.
import _socket
import errno
import os

from phalanx.runner import lean
from phalanx.runner.system import COMMAND_NOT_FOUND, ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

    from phalanx.runner.process import JobDescription, Process

_SCRIPT_NOT_FOUND = 2
PACKAGE_NOT_FOUND = 1  # as Python itself ends
PORT_TAKEN = 2
_SHELLS = ("sh", "bash", "dash", "zsh")
_TAKE_A_VALUE = ("-W", "-X", "-o", "+o", "-O", "+O")
# Python's options that change nothing about what can be imported.
_PLAIN_OPTIONS = ("-u", "-B", "-O", "-OO", "-b", "-d", "-q", "-v")


def needs(node: str, job: JobDescription, processes: Sequence[Process]) -> Dict[str, Any]:
    """What the runner asks of a node's starter, which answers with the functions below."""
    here = [process for process in processes if process.node == node]
    commands = [list(processes[0].command), *(list(process.argv) for process in here)]
    ports = [port for process in here for port in process.ports]
    # One node's Python stands for all: they have the same image, or an environment on the shared directory.
    first = next(name for process in processes for name in process.ranks)
    imports = node == first and "PYTHONPATH" not in {*job.secrets, *processes[0].env}
    asked = {"commands": commands, "env": dict(job.env), "ports": ports, "sync_dir": job.sync_dir, "imports": imports}
    return {**asked, "token": job.token}


class Findings:
    """What the nodes' checks found, all together: is anything missing, and which ports are taken?"""

    def __init__(self) -> None:
        self.code = 0  # the exit code that says so
        self.taken: Set[Tuple[str, int]] = set()  # of the ports that processes were to have: node, port
        self._problems: Dict[str, List[str]] = {}  # what is missing → on which nodes

    def __bool__(self) -> bool:
        """Was anything found that is in the job's way?"""
        return bool(self._problems)

    def add(self, node: str, answer: Mapping[str, Any]) -> None:
        """A node's answer."""
        self.taken.update((node, port) for port in answer["taken"])
        if answer["problem"]:
            self._problems.setdefault(answer["problem"], []).append(node)
            self.code = answer["code"]

    @property
    def message(self) -> str:
        """A line for each problem; those who have the same share it."""
        return "\n".join(text.replace("{nodes}", ", ".join(sorted(nodes))) for text, nodes in self._problems.items())


def problem(command: Sequence[str], directory: str, env: Mapping[str, str]) -> Tuple[str, int]:
    """What is missing for this command and the exit code that says so; "", 0 when all is there.

    "{nodes}" stands in the text where the names of the nodes go: the head knows who else says the same.
    """
    python = os.path.join(env.get(ENVIRONMENT, ""), "bin", "python")
    if ENVIRONMENT in env and not os.path.exists(python):
        return _missing_interpreter(env[ENVIRONMENT], python), COMMAND_NOT_FOUND
    path = env.get("PATH", os.defpath)
    if which(command[0], directory, path) is None:
        return _missing_command(command[0], directory, path), COMMAND_NOT_FOUND
    script = _script(command)
    if script and not os.path.exists(os.path.join(directory, script)):
        return (
            f"{command[0]} is to run '{script}', which is not in the job's directory (seen on {{nodes}})",
            _SCRIPT_NOT_FOUND,
        )
    return "", 0


def python_target(command: Sequence[str]) -> List[str]:
    """What Python is to run: a script, or -m and a module; nothing where it is neither, or another program."""
    words = iter(command[1:] if os.path.basename(command[0]).startswith("python") else ())
    for word in words:
        if word == "-m":
            return [word, next(words, "")]
        if not word.startswith("-"):
            return [word]
        if word in ("-W", "-X"):
            next(words, None)
        elif word not in _PLAIN_OPTIONS:
            break
    return []


def missing_packages(target: Sequence[str], answer: bytes) -> str:
    """What to say of packages that the target imports and that are not there; `answer` is what imports.py printed."""
    try:
        names = lean.loads(answer)
    except ValueError:
        names = []  # it could not tell
    what = ", ".join(f"'{name}'" for name in names)
    return what and (
        f"no module named {what} on {{nodes}}, which {target[-1]} imports: it is neither in the job's directory nor in "
        "the job's Python. Add it to requirements.txt"
    )


def taken(ports: Sequence[int]) -> List[int]:
    """Those of these TCP ports on which something listens here."""
    return [port for port in ports if _is_taken(port)]


def _is_taken(port: int) -> bool:
    probe = _socket.socket()
    # As servers do: what an earlier one's connections have left behind takes no port.
    probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("", port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    finally:
        probe.close()
    return False


def which(name: str, directory: str, path: str) -> Optional[str]:
    """The executable that this name stands for, None when there is none."""
    if "/" in name:
        places = [os.path.join(directory, name)]
    else:
        places = [os.path.join(directory, entry, name) for entry in path.split(os.pathsep)]
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)


def _missing_interpreter(environment: str, python: str) -> str:
    if not os.path.lexists(python):
        return f"the environment {environment} is not on {{nodes}}: is the shared directory mounted?"
    wanted = os.readlink(python)
    return f"{wanted} is not on {{nodes}}; the environment {environment} was made with it on the head"


def _missing_command(name: str, directory: str, path: str) -> str:
    text = f"command '{name}' is not on {{nodes}} (PATH {path})"
    if os.path.isfile(os.path.join(directory, name)):
        way = f"python {name}" if name.endswith(".py") else f"sh {name}" if "/" in name else f"./{name}"
        text += f"; there is a file of that name in the job's directory: `{way}` runs it"
    return text


def _script(command: Sequence[str]) -> Optional[str]:
    """The script file that an interpreter is given; None when it is none, or runs a module or a string."""
    interpreter = os.path.basename(command[0])
    if not interpreter.startswith("python") and interpreter not in _SHELLS:
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith(("-", "+")):
            return word
        if word in _TAKE_A_VALUE:
            next(words, None)
        elif word == "-" or (not word.startswith("--") and set("cms") & set(word)):
            return None  # from a string, a module, or stdin
    return None
