"""Checks on every node, before any rank starts, that the user's command is there and its ports are free."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import stat

from phalanx.counts import first_of
from phalanx.runner.names import KEPT_THERE
from phalanx.runner.system import COMMAND_NOT_FOUND, ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

    from phalanx.runner.process import PreparedJob, Process

_SCRIPT_NOT_FOUND = 2
PACKAGE_NOT_FOUND = 1  # Python's own exit code
PORT_TAKEN = 2
SHELLS = ("sh", "bash", "dash", "zsh")
_TAKE_A_VALUE = ("-W", "-X", "-o", "+o", "-O", "+O")
# Python's options that do not affect imports.
_PLAIN_OPTIONS = ("-u", "-B", "-O", "-OO", "-b", "-d", "-q", "-v")
_FIRST_BYTES = 1024
_MOST_KEPT_BYTES = 1 << 20
_OF_SHELLS = ("cd", "export", "source", ".", "ulimit", "umask", "set", "eval", "exec", "trap", "alias", "unset")
_CODING_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# Programs that start the command behind their own words: the options whose value is the next word, the beginnings of
# those with which they start none or another one, and how many words of their own follow the options.
_WRAPPERS: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...], int]] = {
    "env": (("-u", "-C", "--unset", "--chdir"), ("-S", "--split-string"), 0),
    "nice": (("-n", "--adjustment"), (), 0),
    "nohup": ((), (), 0),
    "numactl": (("-N", "-m", "-i", "-p", "-C", "--cpunodebind", "--membind", "--physcpubind"), (), 0),
    "setsid": ((), (), 0),
    "stdbuf": (("-i", "-o", "-e", "--input", "--output", "--error"), (), 0),
    "taskset": ((), ("-p", "-cp", "-pc", "--pid"), 1),
    "time": (("-f", "-o", "--format", "--output"), (), 0),
    "timeout": (("-s", "-k", "--signal", "--kill-after"), (), 1),
}
_CRLF = (
    "'{name}' on {{nodes}} has Windows line ends (CRLF), which no shell reads: `sed -i 's/\\r$//' {word}` changes them"
)


def needs(node: str, job: PreparedJob, processes: Sequence[Process]) -> Dict[str, Any]:
    """Return the body of a CHECK frame, which a node's starter answers with the functions below."""
    here = [process for process in processes if process.node == node]
    commands = [list(processes[0].command), *(list(process.argv) for process in here)]
    ports = [port for process in here for port in process.ports]
    # One node's Python represents all: they have the same image, or an environment on the shared directory.
    first = next(name for process in processes for name in process.ranks)
    imports = node == first and "PYTHONPATH" not in {*job.secrets, *processes[0].env}
    body = {"commands": commands, "env": dict(job.env), "ports": ports, "sync_dir": job.sync_dir, "imports": imports}
    holds_ends = any(process.holds_ends for process in processes)
    return {**body, "step": job.step or "", "token": job.token, "grace_s": job.grace_s, "holds_ends": holds_ends}


class Findings:
    """The findings of all nodes' checks: what is missing, and which ports are taken."""

    def __init__(self) -> None:
        self.code = 0  # the exit code for the problem
        self.taken: Set[Tuple[str, int]] = set()  # of the processes' ports: node, port
        self._problems: Dict[str, List[str]] = {}  # what is missing → on which nodes

    def __bool__(self) -> bool:
        """Whether any problem was found."""
        return bool(self._problems)

    def add(self, node: str, answer: Mapping[str, Any]) -> None:
        """Add a node's answer."""
        self.taken.update((node, port) for port in answer["taken"])
        if answer["problem"]:
            self._problems.setdefault(answer["problem"], []).append(node)
            self.code = answer["code"]

    @property
    def message(self) -> str:
        """A line for each problem; nodes with the same problem share it."""
        texts = (text.replace("{nodes}", first_of(sorted(nodes))) for text, nodes in self._problems.items())
        return first_of(texts, "\n")


def first_problem(
    commands: Sequence[Sequence[str]], directory: str, env: Mapping[str, str], job_directory: str
) -> Tuple[str, int]:
    """Return `problem` of the first command that has one, with the reason if the user's machine keeps a file of it."""
    for command in commands:
        text, code = problem(command, directory, env)
        if text:
            return _with_kept(text, command, directory, kept_there(job_directory)), code
    return "", 0


def problem(command: Sequence[str], directory: str, env: Mapping[str, str]) -> Tuple[str, int]:
    """Return what is missing for this command and the exit code for that; "", 0 when nothing is.

    "{nodes}" in the text is a placeholder: the head knows which other nodes report the same.
    """
    python = os.path.join(env.get(ENVIRONMENT, ""), "bin", "python")
    if ENVIRONMENT in env and not os.path.exists(python):
        return _missing_interpreter(env[ENVIRONMENT], python), COMMAND_NOT_FOUND
    path = env.get("PATH", os.defpath)
    inner = without_wrappers(command)
    if which(command[0], directory, path) and inner and not _is_elsewhere(command[: -len(inner)]):
        command = inner
    place = which(command[0], directory, path)
    if place is None:
        return _missing_command(command[0], directory, path), COMMAND_NOT_FOUND
    script = _script(command)
    unrunnable = _unreadable(command[0], script, directory) or _unrunnable(command[0], place, directory, path)
    if unrunnable:
        return unrunnable, COMMAND_NOT_FOUND
    if script and not os.path.exists(os.path.join(directory, script)):
        return (
            f"{command[0]} should run '{script}', which is not in the job's directory (seen on {{nodes}})",
            _SCRIPT_NOT_FOUND,
        )
    return "", 0


def without_wrappers(command: Sequence[str]) -> List[str]:
    """Return the words of the command that programs such as `env`, `nice` and `timeout` start in the end."""
    words = list(command)
    while words and (name := os.path.basename(words[0])) in _WRAPPERS:
        valued, others, own = _WRAPPERS[name]
        rest = words[1:]
        while rest and (rest[0].startswith("-") or (name == "env" and "=" in rest[0])):
            if rest[0].startswith(others):
                return []
            rest = rest[2 if rest[0] in valued else 1 :]
        words = rest[own:]
    return words


def _is_elsewhere(words: Sequence[str]) -> bool:
    """Whether a wrapper with these words may find its command in another place than the job does."""
    return any(word.startswith(("PATH=", "-C", "--chdir", "-i", "--ignore-environment")) for word in words)


def python_target(command: Sequence[str]) -> List[str]:
    """Return what Python runs: a script, or -m and a module; nothing for anything else, or another program."""
    args = iter(command[1:] if os.path.basename(command[0]).startswith("python") else ())
    for arg in args:
        if arg == "-m":
            return [arg, next(args, "")]
        if not arg.startswith("-"):
            return [arg]
        if arg in ("-W", "-X"):
            next(args, None)
        elif arg not in _PLAIN_OPTIONS:
            break
    return []


def kept_there(job_directory: str) -> Dict[str, str]:
    """Return sentences about what ignore files keep on the user's machine, by its names in the command or the code."""
    try:
        with open(os.path.join(job_directory, KEPT_THERE)) as file:
            kept = json.loads(file.read(_MOST_KEPT_BYTES))
    except (OSError, ValueError):
        return {}
    return {name: text for name, text in kept.items() if isinstance(text, str)} if isinstance(kept, dict) else {}


def _with_kept(text: str, command: Sequence[str], directory: str, kept: Mapping[str, str]) -> str:
    """Return the text of `problem`, with the reason if the user's machine keeps the program or the script."""
    command = without_wrappers(command) or command
    words = filter(None, (command[0], _script(command)))
    missing = [word for word in words if word in kept and not os.path.lexists(os.path.join(directory, word))]
    return f"{text}; {kept[missing[-1]]}" if missing else text


def missing_packages(target: Sequence[str], answer: bytes, kept: Mapping[str, str]) -> str:
    """Return a message about missing packages that the target imports; `answer` is the output of imports.py.

    Those that are `kept` on the user's machine must not be installed: an index may have a stranger's of that name.
    """
    try:
        names = json.loads(answer)
    except ValueError:
        names = []  # it found no answer
    if not names:
        return ""
    root = "" if target[0] == "-m" else os.path.dirname(target[-1])
    places = {name: os.path.normpath(os.path.join(root, name)) for name in names}
    others = [name for name in names if places[name] not in kept]
    reasons = [kept[place] for place in places.values() if place in kept]
    if others:
        what = f"{_quoted(others)} is" if reasons else "it is"
        reasons.append(
            f"{what} neither in the job's directory nor in the job's Python. If it is not your own code, add it to the "
            "list of packages, such as requirements.txt"
        )
    return f"no module named {_quoted(names)} on {{nodes}}, which {target[-1]} imports: {'; '.join(reasons)}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def taken(ports: Sequence[int]) -> List[int]:
    """Return those of these TCP ports on which something listens here."""
    return [port for port in ports if _is_taken(port)]


def _is_taken(port: int) -> bool:
    probe = socket.socket()
    # As servers do: connections left by an earlier server must not count.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("", port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    finally:
        probe.close()
    return False


def which(name: str, directory: str, path: str) -> Optional[str]:
    """Return the executable that this name stands for; None when there is none."""
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
        if "/" in name:
            change = f"`chmod +x {_word(name)}` makes it so, and `{_way(name)}` runs it"
            return f"'{name}' on {{nodes}} is not executable: {change}"
        way = _way(name) if name.endswith(".py") else _word(f"./{name}")
        text += f"; there is a file of that name in the job's directory: `{way}` runs it"
    variable, equals, _ = name.partition("=")
    if equals and variable.isidentifier():
        text += f"; `phalanx run --env {_word(name)} -- COMMAND` sets a variable"
    elif name in _OF_SHELLS:
        text += f"; `sh -c '{name} …'` runs a line for the shell"
    return text


def _way(name: str) -> str:
    return f"python {_word(name)}" if name.endswith(".py") else f"sh {_word(name)}"


def _word(name: str) -> str:
    """Return a name as a shell reads it back: a repository may have files of any name."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _unrunnable(name: str, place: str, directory: str, path: str) -> str:
    """Return why the kernel can't start an executable file; "" if it can, or may have its own way (binfmt_misc)."""
    line, is_text = _start(place)
    if line.startswith(_CODING_MARKS):
        return f"'{name}' on {{nodes}} begins with a byte order mark, so nothing can start it: save it as UTF-8 without"
    if not is_text:
        return ""
    if not line.startswith(b"#!"):
        return f"'{name}' on {{nodes}} has no `#!` line, so nothing can start it: `{_way(name)}` runs it"
    if line.endswith(b"\r"):
        return _CRLF.format(name=name, word=_word(name))
    words = os.fsdecode(line[2:]).split()
    interpreter = _interpreter(words)
    if interpreter and which(interpreter, directory, path) is None:
        return f"'{interpreter}', which '{name}' begins with (`#!`), is not on {{nodes}}"
    return ""


def _unreadable(shell: str, script: Optional[str], directory: str) -> str:
    """Return why a shell can't read its script: a directory, or words that would end in a carriage return."""
    if not script or os.path.basename(shell) not in SHELLS:
        return ""
    place = os.path.join(directory, script)
    if os.path.isdir(place):
        return f"{shell} should run '{script}', which is a directory on {{nodes}}"
    return _CRLF.format(name=script, word=_word(script)) if _start(place)[0].endswith(b"\r") else ""


def _interpreter(words: Sequence[str]) -> str:
    """Return the program that the words after `#!` start: the one that env finds, or the first word."""
    first, *others = words or [""]
    if os.path.basename(first) != "env":
        return first
    for word in others:
        if word.startswith(("-", "PATH=")) and word != "-S":
            break  # one of env's many ways
        if word != "-S" and "=" not in word:
            return word
    return first


def _start(path: str) -> Tuple[bytes, bool]:
    """Return a file's first line, and whether the file begins like text; b"" and False if it can't be read.

    Only a regular file is read: /dev/stdin is the starter's own here, and a pipe may never end.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b"", False
        with open(path, "rb") as file:
            start = file.read(_FIRST_BYTES)
    except OSError:
        return b"", False
    return start.partition(b"\n")[0], b"\0" not in start


def _script(command: Sequence[str]) -> Optional[str]:
    """Return the script file of an interpreter's command; None for another program, a module or a string."""
    interpreter = os.path.basename(command[0])
    if not interpreter.startswith("python") and interpreter not in SHELLS:
        return None
    args = iter(command[1:])
    for arg in args:
        if not arg.startswith(("-", "+")):
            return arg
        if arg in _TAKE_A_VALUE:
            next(args, None)
        elif arg == "-" or (not arg.startswith("--") and set("cms") & set(arg)):
            return None  # from a string, a module, or stdin
    return None
