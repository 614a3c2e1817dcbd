"""User data as cloud-init reads it: scripts, #cloud-config and MIME archives of both, as shell scripts for a node.

A node has no cloud-init, so that it boots in milliseconds: what #cloud-config asks for becomes a script. What is not
served is named on the console. Source: cloud-init's documents (user data formats, module reference).
"""

from __future__ import annotations

import base64
import email
import re
import shlex
import zlib
from collections.abc import Iterator
from typing import Any

import yaml

# cloud-init's types of parts, by the beginnings of their first lines.
_SCRIPT, _HOOK, _CONFIG = "x-shellscript", "cloud-boothook", "cloud-config"
_KINDS = {
    "#!": _SCRIPT,
    "#cloud-boothook": _HOOK,
    "#cloud-config-archive": "cloud-config-archive",
    "#cloud-config": _CONFIG,
    "#include": "x-include-url",
    "#part-handler": "part-handler",
    "## template: jinja": "jinja2",
}
_MULTIPART = re.compile(rb"(?i)\s*(content-type:\s*multipart/|mime-version:)")
# Of what a compressed part unpacks to, and of a node's scripts together.
_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_OWNER = re.compile(r"[a-z0-9_-]+(:[a-z0-9_-]+)?")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_OF_USERS = {
    *("name", "groups", "primary_group", "shell", "homedir", "uid", "gecos", "system", "no_create_home"),
    *("lock_passwd", "sudo", "ssh_authorized_keys"),
}


class _ReadError(Exception):
    """A part of user data can't be read; the message says why."""


def scripts(data: bytes, administrator: str) -> dict[str, str]:
    """Return the scripts of a node by their names below /var/lib/cloud/instance; other bytes than UTF-8 are escaped.

    "boothook" runs at each boot, "config" once, and then those in "scripts", in the order of their names.
    """
    found = _Found(administrator)
    try:
        found.read(_unpacked(data))
    except (_ReadError, yaml.YAMLError, RecursionError) as error:
        found.note(f"user data is unreadable: {_line(error)}")
    return found.scripts()


class _Found:
    """What the parts of user data ask for."""

    def __init__(self, administrator: str) -> None:
        self._administrator = administrator
        # Amazon Linux's sh is bash.
        self._shell = "/bin/bash" if administrator == "ec2-user" else "/bin/sh"
        self._config: dict[str, Any] = {}
        self._hooks: list[str] = []
        self._parts: list[str] = []
        self._notes: list[str] = []
        self._room = _MOST_BYTES

    def note(self, text: str) -> None:
        """Let the console say something."""
        self._notes.append(f"echo {shlex.quote(f'cloud-init: {text}')}")

    def read(self, data: bytes, kind: str = "") -> None:
        """Read a part, or an archive of parts. Without a known `kind`, its first line shows which it is."""
        text = data.decode("utf-8", "surrogateescape")
        if _MULTIPART.match(data):
            for part in email.message_from_bytes(data).walk():
                if not part.is_multipart():
                    content = part.get_payload(decode=True)
                    self.read(_unpacked(content if isinstance(content, bytes) else b""), part.get_content_subtype())
            return
        self._room -= len(data)
        if self._room < 0:
            raise _ReadError(f"its parts are of more than {_MOST_BYTES} bytes")
        if kind not in _KINDS.values():
            kind = next((name for start, name in _KINDS.items() if text.lstrip().startswith(start)), "")
        if kind == _SCRIPT:
            self._parts.append(text)
        elif kind == _HOOK:
            self._hooks.append(text.removeprefix("#cloud-boothook"))
        elif kind == _CONFIG:
            self._config = _merged(self._config, _mapping(_loaded(text)))
        elif kind:
            self.note(f"user data of the type {kind} is not served: not run")
        elif text.strip():
            self.note("user data is not a script (no #! line): not run")

    def scripts(self) -> dict[str, str]:
        """Return the scripts, within the limit of their size."""
        lines = list(self._served())
        found = {f"scripts/part-{number:03}": text for number, text in enumerate(self._parts, 1)}
        hooks = [*self._hooks, *self._commands("bootcmd")]
        for name, commands in (("boothook", hooks), ("scripts/runcmd", self._commands("runcmd"))):
            if commands:
                found[name] = self._script(commands)
        if self._notes or lines:
            found["config"] = self._script([*self._notes, *lines])
        if sum(map(len, found.values())) > _MOST_BYTES:
            return {"config": self._script([f"echo 'cloud-init: user data of more than {_MOST_BYTES} bytes: not run'"])}
        return found

    def _script(self, lines: list[str]) -> str:
        return "\n".join([f"#!{self._shell}", *lines, ""])

    def _served(self) -> Iterator[str]:
        """Yield the lines for all that runs once, in cloud-init's order of modules; note what is not served."""
        for key, lines in _ONCE:
            if key in self._config:
                try:
                    yield from lines(self, self._config[key])
                except (_ReadError, AttributeError, KeyError, TypeError, ValueError) as error:
                    self.note(f"{key} is unreadable: {_line(error)}")
        others = sorted(str(key) for key in self._config.keys() - {key for key, _ in _ONCE} - _READ_ELSEWHERE)
        if others:
            self.note(f"not served by the local cloud: {', '.join(others)[:500]}")

    def _commands(self, key: str) -> list[str]:
        """Return the commands of a key: a list is a program with its arguments, and a text is a line for the shell."""
        given = self._config.get(key) or []
        if isinstance(given, list) and all(isinstance(one, (str, list)) for one in given):
            return [one if isinstance(one, str) else shlex.join(map(str, one)) for one in given]
        self.note(f"{key} is unreadable: it must be a list of texts and lists")
        return []

    def _files(self, given: Any) -> Iterator[str]:
        return self._write(given, deferred=False)

    def _deferred_files(self, given: Any) -> Iterator[str]:
        return self._write(given, deferred=True)

    def _write(self, given: Any, deferred: bool) -> Iterator[str]:
        for one in given:
            if bool(one.get("defer")) != deferred:
                continue
            if "source" in one:
                raise _ReadError(f"source of {one['path']!s} is not served")
            path, encoded = shlex.quote(str(one["path"])), base64.b64encode(_content(one)).decode()
            yield f'mkdir -p "$(dirname {path})"'
            yield f"printf %s {encoded} | base64 -d {'>>' if one.get('append') else '>'} {path}"
            yield f"chmod {_permissions(one.get('permissions', '0644'))} {path}"
            yield f"chown {_match(_OWNER, one.get('owner', 'root:root'), 'owner')} {path}"

    def _mounts(self, given: Any) -> Iterator[str]:
        """Write lines of fstab and mount them; devices that a node does not have are left out, as on EC2."""
        defaults = [None, None, *map(str, (self._config.get("mount_default_fields") or _OF_FSTAB)[2:])]
        for one in given:
            what, where, *more = [*map(str, one), *defaults[len(one) :]]
            if where in ("None", "none") or not (":" in what or what in _NO_DEVICES):
                self.note(f"mounts: {what} is not mounted")
            elif any(not _FIELD.fullmatch(field) for field in (what, where, *more)):
                raise _ReadError(f"{what} has blanks")
            else:
                yield f"mkdir -p {shlex.quote(where)}"
                yield f"echo {shlex.quote(chr(9).join((what, where, *more)))} >>/etc/fstab"
        yield "mount -a"

    def _host(self, given: Any) -> Iterator[str]:
        name = _match(_HOST_NAME, self._config.get("fqdn") or given, "hostname")
        short = name.partition(".")[0]
        yield f"echo {short} >/etc/hostname; hostname {short}"
        yield f"echo '127.0.1.1 {name} {short}' >>/etc/hosts"

    def _full_host(self, given: Any) -> Iterator[str]:
        return self._host(given) if "hostname" not in self._config else iter(())

    def _groups(self, given: Any) -> Iterator[str]:
        for one in given.split(",") if isinstance(given, str) else given:
            members = one if isinstance(one, dict) else {one: []}
            for name, users in members.items():
                group = _match(_NAME, str(name).strip(), "group")
                yield f"getent group {group} >/dev/null || groupadd {group}"
                for user in [users] if isinstance(users, str) else users or ():
                    yield f"usermod -aG {group} {_match(_NAME, user, 'user')}"

    def _users(self, given: Any) -> Iterator[str]:
        for one in given if isinstance(given, list) else [given]:
            if one == "default":
                continue
            about = {"name": one} if isinstance(one, str) else one
            name = _match(_NAME, about["name"], "user")
            if others := sorted(map(str, about.keys() - _OF_USERS)):
                self.note(f"users: not served by the local cloud: {', '.join(others)}")
            yield f"getent passwd {name} >/dev/null || useradd {_options(about)} {name}"
            wanted = about.get("groups") or []
            groups = [str(group).strip() for group in (wanted.split(",") if isinstance(wanted, str) else wanted)]
            # Members of this group need no password here.
            for group in [*groups, *(["sudo"] if about.get("sudo") else [])]:
                group = _match(_NAME, group, "group")
                yield f"getent group {group} >/dev/null || groupadd {group}; usermod -aG {group} {name}"
            yield from _authorize(name, about.get("ssh_authorized_keys"))

    def _keys(self, given: Any) -> Iterator[str]:
        return _authorize(self._administrator, given)

    def _packages(self, given: Any) -> Iterator[str]:
        """Say which packages are missing: a node has the programs of this machine, and can't install any."""
        names = [str(one[0] if isinstance(one, list) else one) for one in given]
        yield f"for name in {shlex.join(names)}; do"
        yield '  command -v -- "$name" >/dev/null || missing="$missing $name"; done'
        yield '[ -z "$missing" ] || echo "cloud-init: packages: the local cloud installs none; not found here:$missing"'


# The keys of #cloud-config that run once, in the order of cloud-init's modules.
_ONCE = (
    ("write_files", _Found._files),
    ("mounts", _Found._mounts),
    ("hostname", _Found._host),
    ("fqdn", _Found._full_host),
    ("groups", _Found._groups),
    ("users", _Found._users),
    ("ssh_authorized_keys", _Found._keys),
    ("packages", _Found._packages),
    ("write_files", _Found._deferred_files),
)


# cloud-init's `mount_default_fields`, and the file systems without a device.
_OF_FSTAB = (None, None, "auto", "defaults,nofail,_netdev", "0", "2")
_NO_DEVICES = ("tmpfs",)
_FIELD = re.compile(r"[^\s#]\S*")
_LISTS = re.compile(r"list\W+(?:settings\W+)?(append|prepend)")
_READ_ELSEWHERE = {"bootcmd", "runcmd", "merge_how", "merge_type", "mount_default_fields"}


def _merged(config: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return what two parts ask for: a key of the later one replaces the earlier one's, unless it says otherwise."""
    how = str(part.get("merge_how") or part.get("merge_type") or "")
    both = {key: _joined(config[key], part[key], how) for key in config.keys() & part.keys()}
    return {**config, **part, **both}


def _joined(old: Any, new: Any, how: str) -> Any:
    if isinstance(old, list) and isinstance(new, list) and (order := _LISTS.search(how)):
        return [*old, *new] if order[1] == "append" else [*new, *old]
    return new


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removeprefix("_ReadError: ")


def _loaded(text: str) -> Any:
    """Load YAML. Raises _ReadError if its aliases, written out, would be too large: a few lines can be gigabytes."""
    loader = yaml.SafeLoader(text)
    try:
        document = loader.get_single_node()
        room, nodes = _MOST_BYTES, [document]
        while nodes:
            node = nodes.pop()
            room -= 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            if room < 0:
                raise _ReadError(f"it is a document of more than {_MOST_BYTES} bytes")
            if isinstance(node, yaml.MappingNode):
                nodes += [one for pair in node.value for one in pair]
            elif isinstance(node, yaml.SequenceNode):
                nodes += node.value
        return loader.construct_document(document) if document else None
    finally:
        loader.dispose()


def _mapping(found: Any) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise _ReadError("#cloud-config must be a mapping")
    return found


def _unpacked(data: bytes) -> bytes:
    """Decompress what gzip has made. Raises _ReadError."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        reader = zlib.decompressobj(31)
        text = reader.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise _ReadError(str(error)) from error
    if reader.unconsumed_tail:
        raise _ReadError(f"it unpacks to more than {_MOST_BYTES} bytes")
    return text


def _content(one: dict[str, Any]) -> bytes:
    """Return the bytes of a file, whose encoding is base64, gzip, both, or none."""
    given, encoding = one.get("content", ""), str(one.get("encoding", "text/plain")).lower()
    text = given if isinstance(given, bytes) else str(given).encode("utf-8", "surrogateescape")
    if encoding.endswith(("b64", "base64")):
        text = base64.b64decode("".join(text.decode().split()), validate=True)
    elif encoding not in ("text/plain", "gz", "gzip"):
        raise _ReadError(f"the encoding {encoding}")
    return _unpacked(text) if encoding.startswith("gz") else text


def _permissions(given: Any) -> str:
    """Return a mode in octal, which YAML 1.1 reads as a number unless it is quoted."""
    text = f"{given:o}" if isinstance(given, int) else str(given)
    return _match(re.compile("0?[0-7]{3,4}"), text.removeprefix("0o"), "permissions")


def _match(rule: re.Pattern[str], given: Any, what: str) -> str:
    if not rule.fullmatch(str(given)):
        raise _ReadError(f"{what}: {given!r}")
    return str(given)


def _options(about: dict[str, Any]) -> str:
    """Return the options of useradd for an account."""
    found = ["--system"] if about.get("system") else []
    found += [] if about.get("no_create_home") or about.get("system") else ["--create-home"]
    for key, option in (("shell", "shell"), ("homedir", "home-dir"), ("gecos", "comment"), ("primary_group", "gid")):
        if about.get(key):
            found += [f"--{option}", str(about[key])]
    if "uid" in about:
        found += ["--uid", str(int(about["uid"]))]
    return shlex.join(found)


def _authorize(user: str, keys: Any) -> Iterator[str]:
    """Yield the lines that let the owners of these public keys log in."""
    if keys:
        text = "".join(f"{key}\n" for key in ([keys] if isinstance(keys, str) else keys))
        yield f"home=$(getent passwd {user} | cut -d: -f6)"
        yield 'mkdir -p -m 700 "$home/.ssh"'
        yield f'printf %s {shlex.quote(text)} >>"$home/.ssh/authorized_keys"; chmod 600 "$home/.ssh/authorized_keys"'
        yield f'chown -R {user}: "$home/.ssh"'
