"""The user data that starts the agent, and the stack's parameters that carry the rest of it and the boot script."""

from __future__ import annotations

import ast
import base64
import bisect
import functools
import hashlib
import lzma
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from troposphere import AWSHelperFn, Base64, GetAtt, Ref, Sub

from phalanx import __version__
from phalanx.code.cache import cache_directory, keep
from phalanx.spec.spec_checks import packed_boot

__all__ = [
    "LIMIT_BYTES",
    "agent_version",
    "digest",
    "first_parameters",
    "first_stage",
    "parameters",
    "render",
    "user_data",
]

LIMIT_BYTES = 16_384
"""EC2's limit on user data, before base64 (docs/aws-behaviour.md 2.1)."""

STAGE_1 = (
    "__init__",
    "__main__",
    "loader",
    "settings",
    "workers_group",
    "sigv4",
    "wire",
    "metadata",
    "aws_client",
    "files",
    "disk",
)
STAGE_2 = (
    *("outcome", "roster", "validate", "agent", "contract", "account", "trust", "command", "mount", "bootlog"),
    "adapters",
    *("progress", "boot", "firewall", "credentials", "proof", "services", "daemon", "decision", "worker"),
    *("activity", "packages", "beats", "limits", "head", "failure", "notice", "local_disks", "core_group"),
    *("nfs_metrics", "data_mounts", "proc_files", "logins", "shared_memory"),
)
"""The modules of phalanx.node that make up the agent, in an order that compresses well.

Together they are more than twice the limit of user data, so it carries the first stage, which fetches the second.
"""

# The longest value of a parameter (docs/aws-behaviour.md 1.28).
_VALUE_BYTES = 4096

# Separates base64 texts, whose alphabet has no colon.
_BETWEEN = ":"

# Enough for the versions in use on this machine and a developer's latest changes.
_AGENTS_KEPT = 4

# The settings are comment lines `#key=value` of the script: there is no quoting that a value could escape from.
_SCRIPT = """\
#!/usr/bin/python3 -IS
import base64,lzma
s=open(__file__,encoding="utf-8").read()
b=base64.b64decode(s.split("#agent=")[2].split()[0])
t=lzma.LZMADecompressor().decompress(b).decode("utf8","ignore").split("\\0")
exec(t[0])
#agent="""

# The first code of stage 1. It runs the agent in the same process: a second interpreter would take 10 ms.
_UNPACK = """\
import json, os, sys
d = os.environ.get("PHALANX_ROOT", "") + "/opt/phalanx/"
p = d + "agent"
def w(n, b):
 with open(os.open(n, 577, 384), "w") as f:
  f.write(b)
os.makedirs(p + "/phalanx/node", exist_ok=True)
for n, b in zip(t[1:%d:2], t[2::2]):
 w(p + "/phalanx/node/" + n + ".py", b)
m = "import sys\\nfrom phalanx.node.__main__ import main\\nsys.exit(main(sys.argv[1:]))"
w(p + "/__main__.py", m)
c = dict(l[1:].split("=", 1) for l in s.splitlines()[1:] if l[:1] == "#")
w(d + "config.json", json.dumps(c))
sys.path.insert(0, p)
sys.dont_write_bytecode = True
if not sys.argv[1:]:
 sys.argv.append("boot")
exec(m)
"""
# Extra bytes in stage 1, for other versions of the decoder, which may read ahead.
_AHEAD_BYTES = 24


def user_data(config: Mapping[str, Any], boot: str | None = None) -> Base64:
    """Return a launch template's UserData; `config` values are text or references that CloudFormation resolves."""
    variables: dict[str, Any] = {}
    settings = {**config, "digest": digest(boot)}
    lines = [f"#{key}={inline(key, value, variables)}\n" for key, value in settings.items()]
    stage_1 = "".join(f"${{{name}}}" for name in first_parameters())
    return Base64(Sub(f"{_SCRIPT}{stage_1}\n" + "".join(lines), **variables))


def inline(key: str, value: Any, variables: dict[str, Any]) -> str:
    """Return `value` as text for Fn::Sub; add what Sub cannot refer to directly to `variables`."""
    if not isinstance(value, AWSHelperFn):
        return _one_line(key, str(value)).replace("${", "${!")
    if isinstance(value, Ref):
        return f"${{{value.data['Ref']}}}"
    if isinstance(value, GetAtt):
        return f"${{{'.'.join(value.data['Fn::GetAtt'])}}}"
    name = "".join(part.title() for part in key.split("_"))
    variables[name] = value
    return f"${{{name}}}"


def _one_line(key: str, text: str) -> str:
    """Return `text`. Raises ValueError if it has a line break, which would end the setting."""
    if "\n" in text or "\r" in text:
        raise ValueError(f"setting {key} of the user data has a line break")
    return text


def render(config: Mapping[str, str], boot: str | None = None) -> bytes:
    """Return the user data as a node receives it, for size checks and to run it without CloudFormation."""
    settings = {**config, "digest": digest(boot)}
    lines = (f"#{key}={_one_line(key, value)}\n" for key, value in settings.items())
    return (first_stage() + "\n" + "".join(lines)).encode()


def first_parameters() -> dict[str, str]:
    """Return stage 1 of the agent as parameters of the stack, to which the user data refers."""
    return {f"AgentStart{number}": piece for number, piece in enumerate(_pieces(_stages()[0]), 1)}


def parameters(boot: str | None = None) -> dict[str, str]:
    """Return stage 2 of the agent and the boot script as parameters of the stack, in the order of their names."""
    return {f"Agent{number:02}": piece for number, piece in enumerate(_pieces(_rest(boot)), 1)}


def _pieces(text: str) -> list[str]:
    return [text[begin : begin + _VALUE_BYTES] for begin in range(0, len(text), _VALUE_BYTES)]


def first_stage() -> str:
    """Return the script and stage 1 of the agent, with which the user data begins."""
    return _SCRIPT + _stages()[0]


def agent_version() -> str:
    """Return the version of phalanx and a hash of the packed agent."""
    return f"{__version__}+{hashlib.sha256((first_stage() + _rest()).encode()).hexdigest()[:8]}"


def _rest(boot: str | None = None) -> str:
    """Return stage 2 of the agent and the user's boot script."""
    script = _BETWEEN + base64.b64encode(packed_boot(boot)).decode() if boot else ""
    return _stages()[1] + script


@functools.cache
def _stages() -> tuple[str, str]:
    """Return the two stages of the agent in base64, cached by the hash of their sources: packing takes 0.4 s."""
    sources = {name: _source(name) for name in (*STAGE_1, *STAGE_2)}
    kept = cache_directory() / f"agent-{_fingerprint(sources)}.txt"
    try:
        stage_1, stage_2 = kept.read_text(encoding="ascii").split(_BETWEEN)
    except (OSError, ValueError):
        stage_1, stage_2 = pack(STAGE_1, STAGE_2, sources, _UNPACK % (2 * len(STAGE_1)))
        # If this fails, the agent is packed each time.
        keep(kept, f"{stage_1}{_BETWEEN}{stage_2}".encode(), _AGENTS_KEPT)
    return stage_1, stage_2


def _fingerprint(sources: Mapping[str, str]) -> str:
    """Hash what the result depends on: these modules, this one, which packs them, and the version of Python."""
    here = resources.files("phalanx.template")
    maker = (here / "userdata.py").read_text(encoding="utf-8")
    return hashlib.sha256("\0".join([sys.version, maker, *sources.values()]).encode()).hexdigest()[:24]


def digest(boot: str | None) -> str:
    return hashlib.sha256(_rest(boot).encode()).hexdigest()


def _source(name: str) -> str:
    return (resources.files("phalanx.node") / f"{name}.py").read_text(encoding="utf-8")


def pack(stage_1: Sequence[str], stage_2: Sequence[str], sources: Mapping[str, str], unpack: str) -> tuple[str, str]:
    """Return both stages in base64, the same for one version of Python; `unpack` is the code that runs first.

    One stream is 1 KB smaller than two, because stage 2 repeats much of stage 1.
    """
    short = {name: strip(text) for name, text in sources.items()}
    first = "\0".join([unpack, *_named(stage_1, short), ""]).encode()
    stream = _compressed(first + "\0".join(_named(stage_2, short)).encode())
    cut = bisect.bisect_left(range(len(stream)), len(first), key=lambda end: _unpacked(stream[:end])) + _AHEAD_BYTES
    return base64.b64encode(stream[:cut]).decode(), base64.b64encode(stream[cut:]).decode()


def strip(source: str) -> str:
    """Return a module's source without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [item for item in node.body if not _is_text(item)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _named(names: Sequence[str], sources: Mapping[str, str]) -> list[str]:
    return [part for name in names for part in (name, sources[name])]


def _compressed(text: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0, "nice_len": 64}]
    return lzma.compress(text, format=lzma.FORMAT_ALONE, filters=filters)


def _unpacked(beginning: bytes) -> int:
    """Count the bytes of text that the beginning of a stream unpacks to."""
    return len(lzma.LZMADecompressor().decompress(beginning))
