"""The packages that a script (PEP 723), a pylock.toml (PEP 751) or a uv.lock names, as lines for pip."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from phalanx import guest_file
from phalanx.counts import first_of
from phalanx.errors import JobError
from phalanx.guest_file import shown
from phalanx.jobs.package_files import UV_LOCK, blocks
from phalanx.runner.environments.interpreters import allows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

_LARGEST_BYTES = 8 << 20
_MOST_PACKAGES, _MOST_STEPS = 5_000, 300_000
# Of different markers, in characters: more would take longer than a second.
_LONGEST_MARKER, _MOST_MARKERS = 2_000, 100_000
# Sources of uv.lock that are the user's own code.
_OWN = frozenset({"virtual", "editable", "directory"})
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,100}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,100}")
_ONE_LINE = re.compile(r"[^\s\\#-][^\r\n\v\f\x1c-\x1e\x85\u2028\u2029\\]*")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_URL = re.compile(r"https?://[^\s;\\\"'#]{1,2000}|ssh://[^\s;\\\"'#]{1,2000}")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
# tomllib takes time with the square of a key's words: hours for a line of 1 MB.
_WORD = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_WORD}(?:[ \t]*\.[ \t]*{_WORD}){{16}}", re.ASCII)
_PYPI = "https://pypi.org/simple"
# Where a package is needed is asked of these, because the nodes' Python is not known here: nodes run Linux.
_PYTHONS, _MACHINES = tuple(f"3.{minor}" for minor in range(8, 16)), ("x86_64", "aarch64")
_GRID = frozenset((python, machine) for python in _PYTHONS for machine in _MACHINES)
_OF_LINUX = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_release": "6.1",
    "platform_version": "#1 SMP",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
_Places = frozenset[tuple[str, str]]


class Listed(NamedTuple):
    """Lines for pip, those without a hash apart; the Pythons for which they are; what of it is not installed."""

    lines: list[str]
    unhashed: list[str]
    python: str
    is_whole: bool
    left_out: list[str]


class _Package(NamedTuple):
    """One package of a lock: `line` without its hashes; "" for the user's own code."""

    line: str
    hashes: tuple[str, ...]
    needs_hash: bool
    registry: str


def read(path: Path) -> Listed:
    """Return the packages that a lock or a script names. Raises JobError."""
    try:
        content = guest_file.read(path, _LARGEST_BYTES, within=path.absolute().parent)
    except OSError as error:
        raise JobError(f"can't read {shown(path)}: {error.strerror}", code="requirements-file") from None
    try:
        if path.suffix == ".py":
            return _of_script(blocks(content))
        found = _toml(content.decode())
        return _of_uv(found) if path.name == UV_LOCK else _of_pylock(found)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"{shown(path)}: {_in_words(error)}",
            "Make it again with the tool that made it, or name another file: --requirements FILE.",
            code="requirements-file",
        ) from None


def _toml(text: str) -> dict[str, Any]:
    if _LONG_KEY.search(text):
        raise ValueError("a key in it has too many words")
    return tomllib.loads(text)


def _in_words(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"{error!s:.2000}"


def _of_script(found_blocks: Sequence[str]) -> Listed:
    if len(found_blocks) != 1:
        raise ValueError(f"it has {len(found_blocks) or 'no'} blocks `# /// script`, not one")
    found = _toml(found_blocks[0])
    needed = found.get("dependencies", [])
    if not isinstance(needed, list) or not all(isinstance(one, str) and _ONE_LINE.fullmatch(one) for one in needed):
        raise ValueError("its `dependencies` are no list of requirements")
    return Listed(list(needed), [], _pythons(found.get("requires-python")), False, [])


def _of_pylock(found: Mapping[str, Any]) -> Listed:
    if not str(found.get("lock-version", "")).startswith("1."):
        raise ValueError("its `lock-version` is not 1")
    packages = [(_of_pylock_s(one), _only_where(one)) for one in _records(found.get("packages"), "packages")]
    return _listed(packages, _pythons(found.get("requires-python")), [])


def _of_pylock_s(one: Mapping[str, Any]) -> _Package:
    name = _matching(_NAME, one.get("name"), "a package's name")
    index = str(one.get("index") or "")
    if "directory" in one:
        raise ValueError(f"{name} is a directory of this machine, which no node has")
    if vcs := one.get("vcs"):
        kind = _matching(re.compile("git|hg|bzr|svn"), _record(vcs, name).get("type"), f"the kind of {name}")
        url = _matching(_URL, vcs.get("url"), f"the URL of {name}")
        at = _matching(_COMMIT, vcs.get("commit-id"), f"the commit of {name}")
        return _Package(f"{name} @ {kind}+{url}@{at}{_below(vcs.get('subdirectory'))}", (), False, "")
    if archive := one.get("archive"):
        url = _matching(_URL, _record(archive, name).get("url"), f"the URL of {name}")
        return _Package(f"{name} @ {url}", _sha256([archive]), True, "")
    version = _matching(_VERSION, one.get("version"), f"the version of {name}")
    files = [*_records(one.get("wheels", []), f"wheels of {name}"), *([one["sdist"]] if "sdist" in one else [])]
    return _Package(f"{name}=={version}", _sha256(files), True, index)


def _only_where(one: Mapping[str, Any]) -> str:
    """Return the marker of a package of a pylock.toml."""
    text = one.get("marker", "")
    if re.search(r"\b(extras|dependency_groups)\b", str(text)):
        raise ValueError(f"{one['name']} belongs to an extra or a group: lock for what the job needs, without others")
    return f" ; {_marker(text)}" if text else ""


def _of_uv(found: Mapping[str, Any]) -> Listed:
    if found.get("version") != 1:
        raise ValueError("its `version` is not 1")
    entries = _records(found.get("package", []), "package")
    own = [at for at, one in enumerate(entries) if _record(one.get("source"), "a source").keys() & _OWN]
    root = [at for at in own if "." in entries[at]["source"].values()] or own
    if not root:
        raise ValueError("it has no project of its own")
    python = _pythons(found.get("requires-python"))
    wanted = frozenset((version, machine) for version, machine in _GRID if not python or _allows(python, version))
    places = _needed(entries, root[0], wanted)
    left_out = [f"{entries[at]['name']}" for at in own if at in places and at != root[0]]
    packages = [(_of_uv_s(entries[at]), _where(places[at], wanted)) for at in places if at not in own and places[at]]
    return _listed(packages, python, left_out)


def _needed(entries: Sequence[Mapping[str, Any]], root: int, wanted: _Places) -> dict[int, _Places]:
    """Return where each package that the project needs is needed, by its place in the lock: without groups."""
    by_name: dict[str, list[int]] = {}
    for at, one in enumerate(entries):
        by_name.setdefault(_matching(_NAME, one.get("name"), "a package's name"), []).append(at)
    found: dict[tuple[int, str], _Places] = {}
    waiting = [(root, "", wanted)]
    is_true = _Markers()
    steps = 0
    while waiting:
        at, extra, places = waiting.pop()
        new = places - found.get((at, extra), frozenset())
        if not new:
            continue
        found[at, extra] = found.get((at, extra), frozenset()) | new
        options = _record(entries[at].get("optional-dependencies", {}), "optional-dependencies")
        for one in _records(options.get(extra, []) if extra else entries[at].get("dependencies", []), "dependencies"):
            here = new & is_true(one.get("marker", ""))
            for other in by_name.get(str(one.get("name")), []):
                names = ["", *_texts(one.get("extra", []), "extra")]
                steps += len(names)
                if steps > _MOST_STEPS:
                    raise ValueError("its packages need each other too often")
                if all(one[key] == entries[other].get(key) for key in ("version", "source") if key in one):
                    forks = _texts(entries[other].get("resolution-markers", []), "resolution-markers")
                    there = here & frozenset().union(*map(is_true, forks)) if forks else here
                    waiting += [(other, name, there) for name in names]
    needed: dict[int, _Places] = {}
    for (at, _), places in found.items():
        needed[at] = needed.get(at, frozenset()) | places
    return needed


def _of_uv_s(one: Mapping[str, Any]) -> _Package:
    name, source = one["name"], one["source"]
    files = [*_records(one.get("wheels", []), f"wheels of {name}"), *([one["sdist"]] if "sdist" in one else [])]
    if "git" in source:
        url, _, commit = str(source["git"]).partition("#")
        url, _, query = url.partition("?")
        below = urllib.parse.parse_qs(query).get("subdirectory", [None])[0]
        at = _matching(_COMMIT, commit, f"the commit of {name}")
        return _Package(f"{name} @ git+{_matching(_URL, url, f'the URL of {name}')}@{at}{_below(below)}", (), False, "")
    if "url" in source:
        return _Package(f"{name} @ {_matching(_URL, source['url'], f'the URL of {name}')}", _sha256(files), True, "")
    if "registry" not in source:
        raise ValueError(f"{name} is a file of this machine, which no node has")
    version = _matching(_VERSION, one.get("version"), f"the version of {name}")
    return _Package(f"{name}=={version}", _sha256(files), True, str(source["registry"]))


def _listed(packages: Sequence[tuple[_Package, str]], python: str, left_out: list[str]) -> Listed:
    if len(packages) > _MOST_PACKAGES:
        raise ValueError(f"it has more than {_MOST_PACKAGES:,} packages")
    if bare := [one.line for one, _ in packages if one.needs_hash and not one.hashes]:
        raise ValueError(f"{first_of(bare)}: it has no SHA-256 of them")
    indexes = {one.registry.rstrip("/") for one, _ in packages} - {"", _PYPI}
    lines = [f"--extra-index-url {_matching(_URL, index, 'an index')}" for index in sorted(indexes)]
    for one, marker in sorted(packages):
        if one.needs_hash:
            lines.append(" ".join((one.line + marker, *(f"--hash=sha256:{digest}" for digest in one.hashes))))
    return Listed(
        lines, [one.line + marker for one, marker in sorted(packages) if not one.needs_hash], python, True, left_out
    )


def _sha256(files: Iterable[Any]) -> tuple[str, ...]:
    """Return the hashes of a package's files, as pylock.toml (`hashes`) and uv.lock (`hash`) write them."""
    found = set[str]()
    for file in files:
        one = _record(file, "a file")
        hashes = one.get("hashes")
        text = f"sha256:{hashes.get('sha256')}" if isinstance(hashes, dict) else str(one.get("hash"))
        if match := _HASH.fullmatch(text):
            found.add(match[1])
    return tuple(sorted(found))


def _pythons(specifier: object) -> str:
    """Return the Pythons that a lock or a script is for. Raises ValueError for what is no specifier."""
    try:
        found = SpecifierSet(str(specifier or "")[:200])
    except InvalidSpecifier:
        raise ValueError("its `requires-python` compares no versions of Python") from None
    clauses = []
    for one in found:
        if one.operator == "~=":
            clauses += [f">={one.version}", f"=={one.version.rpartition('.')[0]}.*"]
        else:
            clauses.append(str(one))
    for clause in clauses:
        allows(clause, (3,))  # raises for what the head, which chooses the Python, can't compare
    return ",".join(sorted(clauses))


def _marker(text: object) -> Marker:
    try:
        if not isinstance(text, str) or len(text) > _LONGEST_MARKER:
            raise InvalidMarker
        return Marker(text)
    except InvalidMarker:
        raise ValueError("a marker in it is none") from None


class _Markers:
    """Says where a marker is true, without extras; and refuses more markers than a lock has."""

    def __init__(self) -> None:
        self._known: dict[object, _Places] = {"": _GRID}
        self._characters = 0

    def __call__(self, text: object) -> _Places:
        if not isinstance(text, str) or text not in self._known:
            marker = _marker(text)
            self._characters += len(str(text))
            if self._characters > _MOST_MARKERS:
                raise ValueError("it has too many markers")
            self._known[text] = frozenset(place for place in _GRID if _holds(marker, *place))
        return self._known[text]


def _holds(marker: Marker, python: str, machine: str) -> bool:
    versions = {
        "python_version": python,
        **dict.fromkeys(("python_full_version", "implementation_version"), f"{python}.9"),
    }
    try:
        return marker.evaluate({**_OF_LINUX, **versions, "platform_machine": machine, "extra": ""})
    except KeyError as error:
        raise ValueError(f"a marker in it depends on {error}, which no uv.lock has") from None


def _where(places: _Places, wanted: _Places) -> str:
    """Return the marker of these places; "" for all that are wanted."""
    if places == wanted:
        return ""
    by_machine: dict[tuple[str, ...], list[str]] = {}
    for machine in _MACHINES:
        pythons = tuple(python for python in _PYTHONS if (python, machine) in places)
        by_machine.setdefault(pythons, []).append(machine)
    parts = [
        f"({' or '.join(f'python_version == {one!r}' for one in pythons)})"
        + (f" and platform_machine == {machines[0]!r}" if len(machines) == 1 else "")
        for pythons, machines in by_machine.items()
        if pythons
    ]
    return f" ; {' or '.join(parts)}"


def _allows(specifier: str, python: str) -> bool:
    """Return whether some patch release of a Python is allowed."""
    return any(f"{python}.{patch}" in SpecifierSet(specifier) for patch in range(30))


def _below(subdirectory: object) -> str:
    if not subdirectory:
        return ""
    return f"#subdirectory={_matching(re.compile('[A-Za-z0-9._/-]{1,200}'), subdirectory, 'a subdirectory')}"


def _matching(pattern: re.Pattern[str], value: object, what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{what} is missing or malformed")
    return value


def _record(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is missing or malformed")
    return value


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{what} is missing or malformed")
    return value


def _records(value: object, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is missing or malformed")
    return [_record(one, what) for one in value]
