"""Reads a requirements.txt and the files it includes as pip does; refuses, by line, what pip would read otherwise.

The rules are those of pip's `req_file.py`: how lines are joined, where comments begin, which options a file may have.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from phalanx import guest_file
from phalanx.counts import first_of
from phalanx.errors import JobError
from phalanx.guest_file import shown

_LARGEST_BYTES = 1 << 20
_MAX_FILES = 100
_MAX_BYTES, _MAX_LINES = 4 << 20, 10_000
# Without the options behind it. What takes longer to check than such a line is not what people write.
_MAX_LENGTH = 4096
# No expression here takes more time than in proportion to the text.
_COMMENT = re.compile(r"(^|(?<=\s))#.*$")
_CODING = re.compile(r"#.*?coding[:=]\s*(?P<name>[-\w.]+)")
_BOMS = (
    *((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
    *((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
)
_ASCII = bytes(range(128))
_INCLUDES = frozenset({"-r", "--requirement", "-c", "--constraint"})
_PLACES = frozenset({"-e", "--editable", "-f", "--find-links", "-i", "--index-url", "--pypi-url", "--extra-index-url"})
_WORDS = frozenset({"--no-binary", "--only-binary", "--trusted-host", "--use-feature"})
_FLAGS = frozenset({"--no-index", "--prefer-binary", "--require-hashes", "--pre"})
_OF_ONE_PACKAGE = frozenset({"--hash", "--config-settings", "--config-setting", "-C", "--global-option"})
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+(\s*;.+)?", re.IGNORECASE)
_SCHEME = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# What is behind a URL, other than git's; a hash that pip checks; an option with the URL of an index.
_UNWATCHED = re.compile(r"(?<!git\+)\b(https?|ftp)://|\b(hg|svn|bzr)\+[a-z]+", re.IGNORECASE)
_PINNED = re.compile(r"--hash[= ]|#([^#]*&)?(sha256|sha384|sha512)=")
_INDEX = re.compile(r"(-i|--index-url|--pypi-url|--extra-index-url|--trusted-host)\b")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tlz", ".tar.lz")
# Where conda's packages are built: `pip freeze` writes these directories in an environment of conda.
_CONDAS = re.compile("/(croot|feedstock_root|conda-bld|conda_build)/|^/private/var/folders/|^/tmp/build/80754af9/")
_IN_THE_CODE = (
    "For your own packages, set `--env PYTHONPATH=DIRECTORY`, or name a wheel on the shared directory by its"
    " absolute path."
)
_FROM_CONDA = "In an environment of conda, `pip list --format=freeze` writes the versions, without paths of its builds."


def collect(path: Path) -> dict[str, str]:
    """Return the texts of the file and of those it includes, by their names below the file's directory.

    Raises JobError with the mistakes of all of them, each with its line. No line is quoted: an included file may be
    one with secrets.
    """
    path = path.absolute()
    files = _Files(path.parent)
    files.add(path, "")
    return files.right()


def check(name: str, text: str, directory: Path) -> dict[str, str]:
    """Return the texts of a file of requirements that phalanx has written. Raises JobError as `collect` does."""
    files = _Files(directory.absolute())
    files.take(name, text, directory.absolute() / name)
    return files.right()


def by_text_only(texts: Mapping[str, str]) -> list[str]:
    """Return the places (`requirements.txt:3`) of URLs whose content may change unnoticed: they count by their text."""
    return [
        f"{shown(name)}:{number}"
        for name, text in texts.items()
        for number, line in _lines(text)
        if _UNWATCHED.search(line) and not _PINNED.search(line) and not _INDEX.match(line)
    ]


@dataclass
class _Files:
    top: Path
    texts: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    lines: int = 0
    hint: str = "Write one requirement or option of pip on a line; other files that it includes stay below it."

    def add(self, path: Path, included_at: str) -> None:
        """Add a file and those that it includes. As pip reads it, a link keeps its own name and its own directory."""
        try:
            name = _normal(path).relative_to(_normal(self.top)).as_posix()
        except ValueError:
            self.mistakes.append(f"{included_at}: {shown(path)} is outside {shown(self.top)}")
            return
        if name in self.texts:
            return
        if len(self.texts) == _MAX_FILES:
            self.mistakes.append(f"{included_at}: more than {_MAX_FILES} files")
            return
        self.take(name, self._text(path, included_at), path)

    def take(self, name: str, text: str, path: Path) -> None:
        """Add a file's text, and the files that it includes."""
        self.texts[name] = text
        for number, line in _lines(text):
            place = f"{shown(name)}:{number}"
            self.lines += bool(line)
            if self.lines > _MAX_LINES:
                self.mistakes.append(f"{place}: more than {_MAX_LINES:,} requirements and options")
                return
            self._read(line, path, place)

    def right(self) -> dict[str, str]:
        """Return the texts. Raises JobError if they have mistakes."""
        if self.mistakes:
            raise JobError(first_of(self.mistakes, "\n"), self.hint, code="requirements-file")
        return self.texts

    def _text(self, path: Path, included_at: str) -> str:
        where = f"{included_at}: " if included_at else ""
        try:
            left = _MAX_BYTES - sum(map(len, self.texts.values()))
            return _decoded(guest_file.read(path, max(0, min(left, _LARGEST_BYTES)), within=self.top))
        except OSError as error:
            self.mistakes.append(f"{where}can't read {shown(path)}: {error.strerror}")
        except _UndecodableError as error:
            self.mistakes.append(f"{where}{shown(path)} {error}")
        return ""

    def _read(self, line: str, path: Path, place: str) -> None:
        try:
            includes = _of_options(line, self.top) if line.startswith("-") else _of_requirement(line, self.top)
        except _PathError as error:
            self.mistakes.append(f"{place}: {error}")
            self.hint = error.hint
        except ValueError as error:
            self.mistakes.append(f"{place}: {error}")
        else:
            for include in includes:
                self.add(path.parent / include, place)


class _UndecodableError(Exception):
    """A file that is not text, or declares an encoding that phalanx does not take."""


class _PathError(Exception):
    """A path that means nothing on a node, or another thing there than here."""

    def __init__(self, path: str, meaning: str, hint: str = _IN_THE_CODE) -> None:
        super().__init__(f"{path!r} is a path {meaning}")
        self.hint = hint


def _decoded(data: bytes) -> str:
    """Return a file's text as pip decodes it, for a file in UTF-8: so without a line that declares another encoding."""
    encoding, start = next(((name, len(bom)) for bom, name in _BOMS if data.startswith(bom)), ("", 0))
    encoding = encoding or _declared(data.decode("latin-1")) or "utf-8"
    try:
        if not start and _ASCII.decode(encoding, "replace") != _ASCII.decode("ascii"):
            raise LookupError
        text = data[start:].decode(encoding)
    except LookupError:
        raise _UndecodableError(f"declares another encoding than phalanx reads: '{encoding}'") from None
    except UnicodeError:
        raise _UndecodableError(f"is not text in {encoding}") from None
    if _declared(text):
        *head, rest = text.split("\n", 2)
        text = "\n".join([*("#" if _CODING.match(line) else line for line in head), rest])
    return text


def _declared(text: str) -> str:
    """Return the encoding other than UTF-8 that a text declares, "" if it declares none."""
    found = next(filter(None, map(_CODING.match, text.split("\n", 2)[:2])), None)
    name = found["name"].lower() if found else ""
    return "" if name in ("utf-8", "utf8") else name


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its first number: joined where one ends in a backslash, and without its comment."""
    begun, parts = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        is_comment = line.lstrip().startswith("#")
        begun = begun or number
        if line.endswith("\\") and not is_comment:
            parts.append(line.strip("\\"))
            continue
        yield begun, _COMMENT.sub("", "".join((*parts, " " * is_comment, line))).strip()
        begun, parts = 0, []
    yield begun, _COMMENT.sub("", "".join(parts)).strip()


def _of_options(line: str, top: Path) -> list[str]:
    """Return the files of the code that a line of options includes. Raises ValueError for any other option."""
    try:
        words = deque(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"its quotes are not closed ({error})") from None
    includes: list[str] = []
    while words:
        option, value = _option(words)
        is_elsewhere = "://" in value or value.lower().startswith(("/", "file:"))
        if option in _INCLUDES and not is_elsewhere:
            includes.append(value)
        if option in _PLACES or is_elsewhere:
            _require_elsewhere(value, top)
    return includes


def _option(words: deque[str]) -> tuple[str, str]:
    """Take an option and its value ("" for a flag) off the words."""
    word = words.popleft()
    option, is_joined, value = word.partition("=")
    if word.startswith("-") and not word.startswith("--"):
        option, value = word[:2], word[2:]
        is_joined = value
    if option in _FLAGS and not is_joined:
        return option, ""
    if option not in _INCLUDES | _PLACES | _WORDS:
        raise ValueError("phalanx does not know this option of a requirements file")
    if not is_joined:
        if not words:
            raise ValueError(f"{option} needs a value")
        value = words.popleft()
    return option, value


def _of_requirement(line: str, top: Path) -> list[str]:
    """Check the requirement of one package, with its own options; it includes no files."""
    from packaging.requirements import InvalidRequirement, Requirement  # here, because few commands read one

    if not line:
        return []
    head, *options = re.split(r"(?<=\s)(?=-)", line)
    head = head.rstrip()
    if len(head) > _MAX_LENGTH:
        raise ValueError(f"it is longer than {_MAX_LENGTH} characters")
    if any(re.split(r"[=\s]", option)[0] not in _OF_ONE_PACKAGE for option in options):
        raise ValueError("phalanx does not know an option behind its requirement")
    place = head.partition(";")[0].strip()
    if _URL.fullmatch(head) or _is_path(place, top):
        _require_elsewhere(place, top)
        return []
    try:
        url = Requirement(head).url or ""
        if url and not _SCHEME.match(url) and not _is_path(url, top):
            raise InvalidRequirement
    except (InvalidRequirement, RecursionError):
        raise ValueError("it is neither a requirement (such as `numpy>=2`) nor a URL nor an option") from None
    if url:
        _require_elsewhere(url, top)
    return []


def _is_path(place: str, top: Path) -> bool:
    """Whether pip takes a line for a path. One that does not look like one is, if it exists: it may be a secret."""
    if place.startswith(("/", "file:")) or re.match(r"\.{1,2}(/|\[|$)", place):
        return True
    looks_so = "/" in place or place.lower().endswith(_ARCHIVES)
    return looks_so and "@" not in place and _exists(top / _without_extras(place))


def _without_extras(place: str) -> str:
    start = place.find("[", place.rfind("]", 0, -1) + 1) if place.endswith("]") else -1
    return place if start < 0 else place[:start]


def _require_elsewhere(place: str, top: Path) -> None:
    """Raise _PathError for a path in the code or of this machine; a node may have other absolute ones, and has URLs."""
    if _SCHEME.match(place):
        return
    path = place
    if place.lower().startswith("file:"):
        path = urllib.parse.unquote(re.sub("^//(localhost)?(?=/)", "", place[len("file:") :], flags=re.IGNORECASE))
    if not path.startswith("/"):
        raise _PathError(place, "in the code, which the environment outlives")
    if _CONDAS.search(path):
        raise _PathError(path, "of the machine that built a package of conda", _FROM_CONDA)
    found = Path(_without_extras(path.partition("#")[0]))
    if any(_normal(found).is_relative_to(mine) for mine in _own(top)) and _exists(found):
        raise _PathError(path, "of this machine")


def _exists(path: Path) -> bool:
    try:
        return guest_file.answering(path, lambda _: path.exists())
    except OSError:
        return False


def _own(top: Path) -> list[Path]:
    """Return the directories whose files no node has: the code, and the user's home."""
    home = Path(os.environ.get("HOME") or "/")
    return [_normal(top), *([home] if home != Path("/") else [])]
