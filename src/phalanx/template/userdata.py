"""User data of a node: the agent (carried once, by the mapping) and the script that unpacks and starts it."""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import io
import lzma
import zipfile
from collections.abc import Mapping
from importlib import resources
from typing import Any

from troposphere import AWSHelperFn, Base64, FindInMap, GetAtt, Ref, Sub

from phalanx import __version__

LIMIT_BYTES = 16_384
"""EC2's limit on user data, before base64 (docs/aws-behaviour.md 2.1)."""

MODULES = ("__init__",)
"""The modules of phalanx.node that make up the agent; the job runner's travel with each job instead."""

# The settings are comment lines `#key=value` of the script itself: no quoting that a value could break out of.
# It runs the agent in its own process, because a second interpreter would cost every node 10 ms.
_SCRIPT = """\
#!/usr/bin/python3 -IS
import base64,json,lzma,os,sys
with open(__file__,encoding="utf-8") as f:
 c=dict(l[1:].rstrip("\\n").split("=",1) for l in f if l[0]=="#" and "=" in l)
d=os.environ.get("PHALANX_ROOT","")+"/opt/phalanx"
p=d+"/agent.pyz"
os.makedirs(d,exist_ok=True)
def w(n,b):
 with open(os.open(n,577,384),"wb") as f:
  f.write(b)
w(p,lzma.decompress(base64.b85decode(c.pop("agent"))))
w(d+"/config.json",json.dumps(c).encode())
sys.path.insert(0,p)
from phalanx.node.__main__ import main
sys.exit(main(sys.argv[1:] or ["boot"]))
"""


def user_data(config: Mapping[str, Any]) -> Base64:
    """The UserData of a launch template; `config` values are texts, or references that CloudFormation resolves."""
    variables: dict[str, Any] = {"Agent": FindInMap("Agent", "payload", "xz85")}
    lines = [f"#{key}={_inline(key, value, variables)}\n" for key, value in config.items()]
    return Base64(Sub(_SCRIPT + "".join(lines) + "#agent=${Agent}\n", **variables))


def _inline(key: str, value: Any, variables: dict[str, Any]) -> str:
    """`value` as text for Fn::Sub; what Sub cannot name itself becomes one more entry of `variables`."""
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
    """`text` itself; a line break would end the setting, so it is refused."""
    if "\n" in text or "\r" in text:
        raise ValueError(f"setting {key} of the user data has a line break")
    return text


def rendered_size(config: Mapping[str, str]) -> int:
    """Bytes of the user data once CloudFormation has put these values in (`config` holds texts only)."""
    return len(render(config))


def render(config: Mapping[str, str]) -> bytes:
    """The user data as a node receives it; for size checks and for running it without CloudFormation."""
    lines = [f"#{key}={_one_line(key, value)}\n" for key, value in config.items()]
    return (_SCRIPT + "".join(lines) + f"#agent={agent_payload()}\n").encode()


@functools.cache
def agent_payload() -> str:
    """The agent as a zip of stripped sources, compressed with xz, in base85; the same for one version of Python."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    packed = lzma.compress(_archive(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)
    return base64.b85encode(packed).decode()


def _archive() -> bytes:
    """The agent as a zip application, uncompressed (xz does better over all files at once) and without dates."""
    files = {"__main__.py": "from phalanx.node.__main__ import main\nimport sys\nsys.exit(main(sys.argv[1:]))"}
    files["phalanx/__init__.py"] = f"__version__ = {__version__!r}"
    for name in MODULES:
        files[f"phalanx/node/{name}.py"] = strip(_source(name))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


def _source(name: str) -> str:
    return (resources.files("phalanx.node") / f"{name}.py").read_text(encoding="utf-8")


def strip(source: str) -> str:
    """`source` without comments, docstrings, annotations of functions and wide indents; it behaves the same."""
    tree = _Stripper().visit(ast.parse(source))
    text = ast.unparse(ast.fix_missing_locations(tree))
    lines = text.split("\n")
    return "\n".join(" " * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ") for line in lines)


class _Stripper(ast.NodeTransformer):
    """Removes what a reader needs and an interpreter does not."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_texts(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_texts(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        for argument in (node.args.vararg, node.args.kwarg):
            if argument is not None:
                argument.annotation = None
        return self._without_texts(node)

    def _without_texts(self, node: Any) -> ast.AST:
        """`node` without the bare strings in its body: docstrings and the texts below constants."""
        kept = [item for item in node.body if not _is_text(item)]
        node.body = kept if kept or isinstance(node, ast.Module) else [ast.Pass()]
        self.generic_visit(node)
        return node


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


AGENT_VERSION = f"{__version__}+{hashlib.sha256(agent_payload().encode()).hexdigest()[:8]}"
"""The version of phalanx, and a hash of the agent that is really inside."""
