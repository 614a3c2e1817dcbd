"""Makes a job's virtual environment on the shared directory: the first job that needs it makes it, under a lock.

<shared>/.phalanx/environments/NAME-HASH/            the environment; its sources are in its requirements/
<shared>/.phalanx/environments/NAME-HASH/.complete   JSON, written last: without it the environment is incomplete
<shared>/.phalanx/environments/NAME-HASH.tar.gz      the environment, for copies on the nodes' disks (node_copy)
<shared>/.phalanx/environments/NAME-HASH.lock        locked by its maker, and (shared) by runners of jobs that use it
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.objects import trees
from phalanx.runner.environments import managed_python, node_copy, package_contents
from phalanx.runner.environments.build_log import BuildLog
from phalanx.runner.environments.interpreters import Interpreter, find
from phalanx.runner.environments.uv_settings import QUIET, from_pip, plain_variables
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.system import ENVIRONMENT, PR_SET_PDEATHSIG, activated, prctl, signal_name

if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence

    from phalanx.runner.files.job_record import Environment

RESULT = "environment.json"
_ON_IMAGE = "/usr/local/lib/phalanx/environments"
_FORMAT = "1"  # a change makes every environment again
_FILES = "requirements"
# In the home directory of pip. A wheel that is built is unpacked at once: compressing Spark's took half of pip's time.
_HOME = {".pydistutils.cfg": "[bdist_wheel]\ncompression = stored\n"}
_OTHER_PYTHON = "Choose another `image:` in phalanx.yaml, or let its `boot:` script install that Python on every node."


class CannotMakeError(Exception):
    """Why there is no environment: one line, then a hint."""


def job_variables(wanted: Environment, directory: str) -> Dict[str, str]:
    """Return the variables that an environment sets for its jobs; `{shared}` in one is the shared directory."""
    shared = os.path.dirname(os.path.dirname(node_copy.root_of(directory)))
    return {name: value.replace("{shared}", shared) for name, value in wanted.job_variables.items()}


def bring(directory: str) -> int:
    """Find or make the environment of the job in this directory; print what is done.

    RESULT in the job's directory then has {"problem"}, or where it is kept and where jobs use it: {"kept", "path"}. One
    of the machine image is kept nowhere else ("").
    """
    os.umask(0o077)
    try:
        wanted = _wanted(directory)
        result = _on_image(wanted) or _on_shared_directory(directory, wanted)
    except (CannotMakeError, package_contents.UnknownContentError, Invalid) as error:
        result = {"problem": str(error)}
    except OSError as error:
        result = {"problem": f"{error.filename or 'the shared directory'}: {error.strerror}"}
    states.write_file(os.path.join(directory, RESULT), json.dumps(result))
    return 1 if "problem" in result else 0


def _wanted(directory: str) -> Environment:
    wanted = job_record.read(directory).environment
    if wanted is None:
        raise Invalid("the job's record has no environment any more")
    return wanted


def _on_image(wanted: Environment) -> Optional[Dict[str, str]]:
    """Return the environment that the machine image has of the same recipe, on every node; None if it has none."""
    path = os.path.join(_ON_IMAGE, wanted.name)
    try:
        with open(os.path.join(path, node_copy.COMPLETE)) as file:
            is_same = json.load(file)["digest"] == wanted.digest
    except (FileNotFoundError, KeyError, ValueError):
        return None
    return {"kept": "", "path": path} if is_same else None


def _on_shared_directory(directory: str, wanted: Environment) -> Dict[str, str]:
    kept = _bring(node_copy.root_of(directory), wanted, BuildLog(directory))
    _complete_activate(kept, job_variables(wanted, directory))
    return {"kept": kept, "path": node_copy.path_of(kept)}


def is_complete(path: str) -> bool:
    return os.path.exists(os.path.join(path, node_copy.COMPLETE))


def lock(path: str, how: int) -> Optional[int]:
    """Lock this environment (fcntl.LOCK_SH or LOCK_EX) until the returned descriptor is closed; None: it is taken."""
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _bring(root: str, wanted: Environment, log: BuildLog) -> str:
    os.makedirs(root, mode=0o700, exist_ok=True)
    python = _interpreter(root, wanted, log)
    everything, said = package_contents.resolved(package_contents.with_lists(wanted))
    for text in said:
        _say(text)
    contents = package_contents.contents(everything, root)
    wanted = replace(wanted, files={name: everything.files[name] for name in wanted.files})
    path = os.path.join(root, f"{wanted.name}-{_digest(wanted, python, contents)}")
    if not is_complete(path):
        _make_alone(path, wanted, python, log)
    if not node_copy.is_here(path):
        node_copy.bring(path)
    # The time of the last use, for `phalanx environments`.
    os.utime(os.path.join(path, node_copy.COMPLETE))
    return path


def _complete_activate(path: str, variables: Dict[str, str]) -> None:
    """Have `activate` set the jobs' variables, too, for whoever types a command in the environment.

    Open MPI 5 starts ranks with each node's own variables, unless mca_base_env_list names them.
    """
    activate = os.path.join(path, "bin", "activate")
    if not os.path.exists(activate):
        return
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if os.path.exists(os.path.join(path, "bin", "prterun")):
        lines.append(f"export OMPI_MCA_mca_base_env_list='{';'.join(['PATH', *variables])}'")
    with open(activate, "r+") as file:
        present = file.read().splitlines()
        file.write("".join(f"\n{line}\n" for line in lines if line not in present))


def _interpreter(root: str, wanted: Environment, log: BuildLog) -> Interpreter:
    """Return the Python for the environment: one of the head, or for a recipe one that uv brings."""
    path = os.environ.get("PATH", os.defpath)
    python, seen = find(wanted.python, path)
    if python is None and wanted.isolated and (base := find("", path)[0]):
        _say(f"no Python {wanted.python} on the head: uv installs one on the shared directory")
        run = partial(_run, log, hint=_OTHER_PYTHON, timeout_s=managed_python.PROGRAM_TIMEOUT_S)
        python = managed_python.bring(os.path.dirname(root), wanted, base, run)
        if python is None:
            raise CannotMakeError(f"the Python that uv installed does not work on the head\n{_OTHER_PYTHON}")
    if python is None:
        raise CannotMakeError(
            f"{wanted.name} needs Python {wanted.python}; on the head there {'are' if len(seen) > 1 else 'is'} "
            f"{', '.join(seen) or 'none'}\n" + _OTHER_PYTHON
        )
    return python


def _digest(wanted: Environment, python: Interpreter, contents: Sequence[str]) -> str:
    packages = () if wanted.isolated else python.sites
    parts = (_FORMAT, wanted.digest, python.base, python.version_text, python.platform, *packages, *contents)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]


def _make_alone(path: str, wanted: Environment, python: Interpreter, log: BuildLog) -> None:
    """Make it under an exclusive lock; a later job waits here and finds it complete."""
    held = lock(path, fcntl.LOCK_EX)
    if held is None:
        _say(f"another job is making {os.path.basename(path)}: waiting for it")
        held = os.open(f"{path}.lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        if not is_complete(path):
            _make(path, wanted, _Installer(path, wanted, python, held, log))
    finally:
        os.close(held)


def _make(path: str, wanted: Environment, installer: _Installer) -> None:
    began = time.monotonic()
    if os.path.exists(path):
        _say(f"{path} is incomplete: starting over")
        _discard(path)
    python = installer.python
    _say(f"making {path} with Python {python.version_text} ({python.path})")
    installer.install()
    size_bytes = _size(path)
    installer.pack(size_bytes)
    facts = {
        "name": wanted.name,
        "digest": wanted.digest,
        "python": python.version_text,
        "bytes": size_bytes,
        "made_in_s": round(time.monotonic() - began, 1),
        "made_at": time.time(),
    }
    # The packages first: an environment marked complete must be complete after a power failure, too.
    os.sync()
    states.write_file(os.path.join(path, node_copy.COMPLETE), json.dumps(facts), is_synced=True)
    _say(f"made in {facts['made_in_s']:.0f} s, {facts['bytes'] / 1e6:.0f} MB")


class _Installer:
    """Runs the programs that make one environment. Each inherits the lock, which is taken while one of them lives."""

    def __init__(self, path: str, wanted: Environment, python: Interpreter, held: int, log: BuildLog) -> None:
        self._path = path
        self._wanted = wanted
        self.python = python
        self._held = held
        self._log = log
        # uv does not see packages outside the environment, so it would install the image's torch a second time.
        self._uv = shutil.which("uv") if wanted.isolated else None
        self._env = self._environment()

    def install(self) -> None:
        """Make the whole environment. Raises CannotMakeError."""
        self._make_venv()
        for name, text in {**self._wanted.files, **_HOME}.items():
            self._write(name, text)
        for args in self._wanted.steps:
            self._run([*self._pip(), *args], "pip" if self._uv is None else "uv")
        if self._wanted.check:
            _say("checking: " + " ".join(self._wanted.check)[:200])
            self._run(self._wanted.check, "its check")

    def pack(self, size_bytes: int) -> None:
        """Pack what was made, for the nodes' copies. Raises CannotMakeError.

        The nodes' disks are like the head's: if it has no room for a copy, packing would take a third of the time that
        the environment takes, for nothing.
        """
        archive = node_copy.archive_of(self._path)
        if not node_copy.has_room(size_bytes):
            if os.path.exists(archive):
                os.unlink(archive)  # of an earlier environment
            return
        # A level above the first takes several times as long, and saves a tenth.
        self._run(["tar", "-I", "gzip -1", "-cf", f"{archive}.part", "-C", self._path, "."], "tar")
        os.replace(f"{archive}.part", archive)

    def _make_venv(self) -> None:
        if self._uv:
            self._run([self._uv, "venv", "--quiet", "--python", self.python.base, self._path], "uv venv")
            return
        shown = not self._wanted.isolated and not self.python.is_venv
        flags = ["--system-site-packages"] if shown else []
        if self.python.pip_serves_others:
            # Installing pip into it would take longer than most requirements, because all of pip is compiled.
            flags.append("--without-pip")
        version = ".".join(map(str, self.python.version[:2]))
        hint = f"On Debian and Ubuntu, add `boot: apt-get install -y python{version}-venv` to phalanx.yaml."
        self._run([self.python.base, "-I", "-m", "venv", *flags, self._path], "python -m venv", hint)
        if not self._wanted.isolated and self.python.is_venv:
            self._show_packages_of(self.python.sites)

    def _show_packages_of(self, sites: Sequence[str]) -> None:
        """Keep the packages of the image's own environment visible, after those that are installed here."""
        major, minor = self.python.version[:2]
        own = os.path.join(self._path, "lib", f"python{major}.{minor}", "site-packages")
        lines = "".join(f"import site; site.addsitedir({site!r})\n" for site in sites)
        states.write_file(os.path.join(own, "_phalanx_image.pth"), lines)

    def _write(self, name: str, text: str) -> None:
        place = os.path.join(self._path, _FILES, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        states.write_file(place, text)

    def _pip(self) -> List[str]:
        python = os.path.join(self._path, "bin", "python")
        if self._uv:
            return [self._uv, "pip", "install", "--python", python]
        # Compiling everything can take longer than the rest; modules are compiled at their first import.
        pip = (
            [self.python.path, "-I", "-m", "pip", "--python", python]
            if self.python.pip_serves_others
            else [python, "-I", "-m", "pip"]
        )
        return [*pip, "install", "--no-compile"]

    def _environment(self) -> Dict[str, str]:
        own = activated({**plain_variables(), ENVIRONMENT: self._path})
        quiet = {**QUIET, "UV_LINK_MODE": "copy"}
        # An earlier job's settings for pip, uv, git and Python in the home directory must not count here.
        quiet.update(HOME=os.path.join(self._path, _FILES))
        if "constraints.txt" in self._wanted.files:
            # As variables they apply to build dependencies, too, which pip's flag does not.
            place = os.path.join(self._path, _FILES, "constraints.txt")
            names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT")
            quiet.update(dict.fromkeys(names, place))
        variables = self._wanted.variables
        uv = from_pip({**own, **variables}) if self._uv else {}
        return {**own, **uv, **quiet, **variables}

    def _run(self, argv: Sequence[str], name: str, hint: str = "") -> None:
        where = os.path.join(self._path, _FILES)
        place = where if os.path.isdir(where) else None
        _run(self._log, argv, self._env, name, hint, cwd=place, pass_fds=(self._held,))


def _run(
    log: BuildLog,
    argv: Sequence[str],
    env: Mapping[str, str],
    name: str,
    hint: str = "",
    cwd: Optional[str] = None,
    pass_fds: Sequence[int] = (),
    timeout_s: float = math.inf,
) -> None:
    """Run a program with its output in the log. Raises CannotMakeError, with the program's name and the hint."""
    end = time.monotonic() + timeout_s
    with subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        preexec_fn=_die_with_parent,
    ) as process:
        code = log.follow(process, end)
    if code:
        log.explain()
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal_name(-code)}"
        if time.monotonic() > end:
            how = f"did not end within {timeout_s:g} s"
        raise CannotMakeError(f"{name} {how}\n{hint}".strip())


def _die_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _discard(path: str) -> None:
    if not trees.remove(path):
        raise CannotMakeError(f"{path} can't be removed\nRemove it on the head, as an administrator.")


def _size(path: str) -> int:
    found = (trees.status_of(os.path.join(directory, name)) for directory, names in trees.walk(path) for name in names)
    return sum(status.st_size for status in found if status is not None)


def _say(text: str) -> None:
    print(text, flush=True)
