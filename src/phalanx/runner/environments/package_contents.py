"""What a requirements file takes from the cluster's own files and from git, whose content its text does not decide.

Packages on the shared directory count by their content, and what git's names mean now is asked: a rebuilt wheel or a
new commit is another environment. So it is in files there that the requirements include. Package indexes and other URLs
count by their text.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from phalanx.objects import trees
from phalanx.runner.environments.uv_settings import plain_variables
from phalanx.runner.files import state as states

if TYPE_CHECKING:
    from typing import BinaryIO, Dict, Iterator, List, Mapping, Optional, Tuple

    from phalanx.runner.files.job_record import Environment

_COMMENT = re.compile(r"(^|(?<=\s))#.*$")
_CONTINUED = re.compile(r"^((?!\s*#).*)\\\n", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_GIT = re.compile(r"git\+(?:file|https?|ssh|git)://[^\s;\"']+", re.IGNORECASE)
_UNASKED = re.compile(r"(?:hg|svn|bzr)\+[a-z]+://", re.IGNORECASE)
_BEHIND = re.compile(r"\s*(\[[^]/]*\]\s*|#[^/]*)+$")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,63}")
_LINKS_VARIABLES = ("PIP_FIND_LINKS", "UV_FIND_LINKS")
_LIST_VARIABLES = ("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT")
_HOW = {
    **dict.fromkeys(("-f", "--find-links"), "links"),
    **dict.fromkeys(("-r", "--requirement", "-c", "--constraint"), "list"),
    **dict.fromkeys(("-e", "--editable"), "editable"),
}
_URL = re.compile("[a-z]+:", re.IGNORECASE)
# Of the files of the cluster that requirements include, as of those that are sent.
_MAX_LISTS, _MAX_LIST_BYTES = 100, 4 << 20
_FEWER = "Name only requirements files behind `-r` and `-c`, and fewer or smaller ones."
# What a build or an import leaves in a package's own directory.
_LEFT = re.compile(r"\.git|\.hg|\.svn|__pycache__|.*\.egg-info|.*\.py[co]")
_BUILT = re.compile(r".*\.(so|o|pyd)")
_KNOWN = "contents.json"
_READ_BYTES = 1 << 20
# A file that changed so recently may change again within the same tick of its file system's clock.
_SETTLED_S = 5.0
_ANSWER_WITHIN_S = 60.0


class UnknownContentError(Exception):
    """Why nobody can say what the requirements install now: one line, then a hint."""


def with_lists(wanted: Environment) -> Environment:
    """Return the environment with the files of the cluster that it includes, under their absolute paths.

    One that is missing is left to pip. Raises UnknownContentError for what pip should not read, or too much of it.
    """
    variables = {**os.environ, **wanted.variables}
    waiting = [path for text in wanted.files.values() for path in _lists(text, "", variables)]
    for name in _LIST_VARIABLES:
        waiting += filter(None, map(_path, wanted.variables.get(name, "").split()))
    texts: Dict[str, str] = {}
    left_bytes = _MAX_LIST_BYTES
    while waiting:
        path = os.path.normpath(waiting.pop())
        data = None if path in texts else _list(path, left_bytes)
        if data is None:
            continue
        if len(texts) == _MAX_LISTS:
            raise UnknownContentError(f"the requirements include more than {_MAX_LISTS} files of the cluster\n{_FEWER}")
        left_bytes -= len(data)
        texts[path] = _text(data)
        waiting += _lists(texts[path], os.path.dirname(path), variables)
    return replace(wanted, files={**wanted.files, **texts})


def resolved(wanted: Environment) -> Tuple[Environment, List[str]]:
    """Return the environment with the commits of git's names, and sentences that say which.

    Raises UnknownContentError.
    """
    variables = {**plain_variables(), **wanted.variables}
    said: List[str] = []
    commits: Dict[str, str] = {}

    def at_commit(match: re.Match[str]) -> str:
        url = match[0]
        if url not in commits:
            commits[url] = _at_commit(url, variables, said)
        return commits[url]

    def of_line(line: str) -> str:
        comment = _COMMENT.search(line)
        at = comment.start() if comment else len(line)
        text, rest = line[:at], line[at:]
        if match := _UNASKED.search(text):
            said.append(f"a package from {match[0]}… counts by its text only: phalanx asks git, and no other")
        return _GIT.sub(at_commit, text) + rest

    files = {name: "".join(map(of_line, text.splitlines(keepends=True))) for name, text in wanted.files.items()}
    return replace(wanted, files=files), said


def contents(wanted: Environment, root: str) -> List[str]:
    """Return hashes of the local files that the requirements name, and the texts of the cluster's own lists.

    `root` keeps what was hashed before.
    """
    variables = {**os.environ, **wanted.variables}
    lists = {path: text for path, text in wanted.files.items() if path.startswith("/")}
    named = {place for name, text in wanted.files.items() for place in _named(text, os.path.dirname(name), variables)}
    for name in _LINKS_VARIABLES:
        words = wanted.variables.get(name, "").replace(",", " ").split()
        named.update((_path(word), "links") for word in words if _path(word))
    found = [f"{path}\0{text}" for path, text in sorted(lists.items())]
    packages = sorted(place for place in named if place[1] != "list")
    if not packages:
        return found
    hashes = _Hashes(os.path.join(root, _KNOWN))
    found += [f"{path}\0{hashes.of(path, how)}" for path, how in packages]
    hashes.keep()
    return found


def _list(path: str, left_bytes: int) -> Optional[bytes]:
    """Return the content of an included file; None if pip will say what is wrong with it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            raise UnknownContentError(f"{path}, which the requirements include, is no file\n{_FEWER}")
        data = file.read(left_bytes + 1)
    if len(data) > left_bytes:
        size = f"{_MAX_LIST_BYTES >> 20} MiB"
        raise UnknownContentError(f"with {path}, the requirements include more than {size} of the cluster\n{_FEWER}")
    return data


def _text(data: bytes) -> str:
    """Return a requirements file's text as pip decodes it; of bytes that are no text, each counts."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "surrogateescape")


def _lists(text: str, directory: str, variables: Mapping[str, str]) -> List[str]:
    return [path for path, how in _named(text, directory, variables) if how == "list"]


def _named(text: str, directory: str, variables: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    """Yield the local paths that a text names; those that are relative to its directory only if that is absolute."""
    for line in _CONTINUED.sub(r"\1", text.replace("\r\n", "\n")).splitlines():
        yield from _places(line, directory if directory.startswith("/") else "", variables)


def _at_commit(url: str, variables: Mapping[str, str], said: List[str]) -> str:
    place, mark, fragment = url.partition("#")
    before, at, name = place.rpartition("@")
    if not at or "/" not in urlsplit(before).path:
        before, name = place, ""  # the "@" is the one behind a user's name
    asked = _expanded(name, variables) or "HEAD"
    if _COMMIT.fullmatch(asked):
        return url
    commit = _ask(_expanded(before[len("git+") :], variables), asked, variables)
    if not commit:
        return url
    said.append(f"{_without_password(before)}: {asked} is commit {commit}")
    return f"{before}@{commit}{mark}{fragment}"


def _ask(url: str, name: str, variables: Mapping[str, str]) -> str:
    """Return the commit that a name has in a repository; "" for an abbreviated commit, which does not move."""
    # No settings of the job user, no prompt, and no repository around.
    env = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **variables, "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0"}
    shown, hint = _without_password(url), "Name a whole commit behind the '@': it needs no answer."
    try:
        # Both: an annotated tag has an object of its own, and the commit is that of `^{}`.
        argv = ["git", "ls-remote", "--", url, name, f"{name}^{{}}"]
        done = subprocess.run(
            argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except OSError as error:
        raise UnknownContentError(f"can't ask {shown} what {name} is: git: {error.strerror}\n{hint}") from None
    except subprocess.TimeoutExpired:
        raise UnknownContentError(f"{shown} did not say within {_ANSWER_WITHIN_S:g} s what {name} is\n{hint}") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").replace(url, shown).strip().splitlines()[-1:]
        raise UnknownContentError(f"{shown} does not say what {name} is: {' '.join(last)}\n{hint}")
    refs = dict(line.split("\t", 1)[::-1] for line in done.stdout.decode(errors="replace").splitlines())
    # In pip's order.
    for ref in (name, f"refs/heads/{name}", f"refs/tags/{name}", f"refs/{name}"):
        if ref in refs:
            return refs.get(f"{ref}^{{}}", refs[ref])
    if _SHORT_COMMIT.fullmatch(name):
        return ""
    raise UnknownContentError(
        f"{shown} has no branch and no tag {name}\nThe name behind the '@' must be one, or a commit."
    )


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace ${NAME} as pip does in a requirements file."""
    return _VARIABLE.sub(lambda match: variables.get(match[1]) or match[0], text)


def _places(line: str, directory: str, variables: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    """Yield the local paths that a line names, each with what it is: "links", "list", "editable", or "" (a package)."""
    line = _expanded(_COMMENT.sub("", line).strip(), variables)
    if line.startswith("-"):
        yield from _of_options(line, directory)
        return
    requirement = re.split(r"\s+;|\s+(?=-)", line)[0]
    direct = re.search(r"@\s*(file:.*)", requirement, re.IGNORECASE)
    path = _path(direct[1] if direct else requirement)
    if path:
        yield path, ""


def _of_options(line: str, directory: str) -> Iterator[Tuple[str, str]]:
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    option = ""
    for word in words:
        name, _, value = word.partition("=")
        if word[:2] in ("-f", "-e", "-i", "-r", "-c") and len(word) > 2:
            name, value = word[:2], word[2:]
        if name.startswith("-"):
            option = name
        how = _HOW.get(option, "")
        value = value if name.startswith("-") else word
        # What is relative to the file, and not to where pip runs.
        if how in ("links", "list") and directory and value and not _URL.match(value):
            value = os.path.join(directory, value)
        if path := _path(value):
            yield path, how


def _path(text: str) -> str:
    """Return the local path that a requirement or an option's value names; "" for anything else."""
    if text.lower().startswith("file:"):
        text = unquote(urlsplit(text).path)
    elif not text.startswith("/"):
        return ""
    # A path may have extras or a fragment behind it, or such characters itself.
    return text if os.path.lexists(text) else _BEHIND.sub("", text)


class _Hashes:
    """The hashes of files and directories. A file that has not changed since it was hashed is not read again."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._before = _read_known(place)
        self._now: Dict[str, List[object]] = {}

    def of(self, path: str, how: str) -> str:
        """Return a hash of what is at this path; it is "missing" where nothing is."""
        if how == "links":
            # pip reads the files of such a directory, none below it; a page's links lead to those beside it.
            directory = path if os.path.isdir(path) else os.path.dirname(path)
            names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
            return self._of_all({name: os.path.join(directory, name) for name in names})
        if not os.path.isdir(path):
            return self._of_file(path)
        files = {}
        for directory, names in trees.walk(path):
            for name in names:
                inside = os.path.relpath(os.path.join(directory, name), path)
                parts = inside.split(os.sep)
                if parts[0] == "build" or any(map(_LEFT.fullmatch, parts)):
                    continue
                if not (how == "editable" and _BUILT.fullmatch(name)):
                    files[inside] = os.path.join(directory, name)
        return self._of_all(files)

    def keep(self) -> None:
        """Keep the hashes for the next job."""
        if self._now != self._before:
            states.write_file(self._place, json.dumps({**self._before, **self._now}))

    def _of_all(self, files: Mapping[str, str]) -> str:
        parts = [f"{name}\0{self._of_file(path)}" for name, path in sorted(files.items())]
        return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()

    def _of_file(self, path: str) -> str:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return "no file"
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return "missing"
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            facts = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            known = self._before.get(path, [])
            content = str(known[-1]) if known[:-1] == facts else _sha256(file)
        if time.time() > status.st_ctime + _SETTLED_S:
            self._now[path] = [*facts, content]
        return content


def _sha256(file: BinaryIO) -> str:
    content = hashlib.sha256()
    while data := file.read(_READ_BYTES):
        content.update(data)
    return content.hexdigest()


def _read_known(place: str) -> Dict[str, List[object]]:
    with suppress(OSError, ValueError), open(place) as file:
        known = json.load(file)
        if isinstance(known, dict) and all(isinstance(one, list) and len(one) == 5 for one in known.values()):
            return known
    return {}
