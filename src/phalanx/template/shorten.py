"""Makes Python sources smaller without changing what they do, because the agent must fit into a template."""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import keyword
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping


def strip(source: str) -> str:
    """Remove comments, docstrings, function annotations and wide indents from `source`."""
    return _text(_stripped(source))


def shorten(sources: Mapping[str, str]) -> dict[str, str]:
    """Strip modules (name → source) and shorten their private and local names.

    The modules form one program: private names (`_x`) and the names of functions, classes and constants are renamed
    alike everywhere, except `main`, which others call. Local names, and parameters that no call passes by keyword,
    are shortened function by function.
    """
    trees = {name: _stripped(text) for name, text in sources.items()}
    nodes = [node for tree in trees.values() for node in _walk(tree)]
    _rename(nodes, _global_names(nodes, {*sources, "main"}))
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    for tree in trees.values():
        for function in _outermost(tree):
            inside = _walk(function)[1:]
            _rename(filter(_is_local, inside), _local_names(inside, keywords))
    return {name: tight(_text(tree)) for name, tree in trees.items()}


def tight(text: str) -> str:
    """Remove the spaces that only readers need from `text` by ast.unparse, where no string spans lines."""
    return _SPACED.sub(lambda found: found["kept"] or found["sign"], text)


_SPACED = re.compile(
    r"""(?P<kept>^\x20+|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|\x20?(?P<sign>[-+*/%=<>!|&^@:,(){}\[\]]+)\x20?""", re.M
)


def _walk(root: ast.AST) -> list[ast.AST]:
    """List `root` and all nodes below it in the order of ast.walk, without `ctx`, in a third of its time."""
    found = [root]
    for node in found:
        for role in node._fields:
            value = getattr(node, role, None)
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and role != "ctx":
                found.append(value)
    return found


def _stripped(source: str) -> ast.Module:
    """Parse `source` and remove what only readers and checkers of types need: the import of typing takes 4 ms."""
    tree = ast.parse(source)
    tree.body = [item for item in tree.body if not _is_for_types(item) and not _is_future(item)]
    if tuples := [node for node in _walk(tree) if isinstance(node, ast.ClassDef) and _is_tuple(node)]:
        for node in tuples:
            _without_typing(node)
        tree.body.insert(0, ast.ImportFrom("collections", [ast.alias("namedtuple")], 0))
    for node in _walk(tree):
        if isinstance(node, ast.AnnAssign):
            _field(node)
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            _remove_texts(node)
    used = {name for node in _walk(tree) if not isinstance(node, ast.alias) for name in _names(node)}
    tree.body = [item for item in tree.body if not isinstance(item, ast.ImportFrom) or _prune(item, used)]
    return tree


def _is_for_types(item: ast.stmt) -> bool:
    return isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING" and not item.orelse


def _is_future(item: ast.stmt) -> bool:
    """Whether this is `from __future__ import annotations`: there are no annotations left."""
    return isinstance(item, ast.ImportFrom) and item.module == "__future__"


def _is_tuple(node: ast.ClassDef) -> bool:
    return [ast.unparse(base) for base in node.bases] == ["NamedTuple"]


def _without_typing(node: ast.ClassDef) -> None:
    """Derive a NamedTuple from collections.namedtuple instead: the same but for annotations, and an instance's dict."""
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    names: list[ast.expr] = [ast.Constant(ast.unparse(item.target)) for item in fields]
    defaults = [item.value for item in fields if item.value]
    given = [ast.keyword("defaults", ast.List(defaults, ast.Load()))] if defaults else []
    call = ast.Call(ast.Name("namedtuple", ast.Load()), [ast.Constant("T"), ast.List(names, ast.Load())], given)
    node.bases = [call]
    node.body = [item for item in node.body if item not in fields] or [ast.Pass()]


def _prune(item: ast.ImportFrom, used: set[str]) -> bool:
    """Drop the names that only annotations used; return False when none is left."""
    item.names = [alias for alias in item.names if (alias.asname or alias.name) in used]
    return bool(item.names)


def _text(tree: ast.Module) -> str:
    """Unparse the tree with one space per level instead of four; no string of ast.unparse spans lines."""
    lines = [line for line in ast.unparse(tree).split("\n") if line]
    return "\n".join(" " * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ") for line in lines)


def _remove_texts(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
    """Remove bare strings and annotations from a body, but for the minimal annotations of fields."""
    if isinstance(node, ast.FunctionDef):
        node.returns = None
        for argument in _arguments(node):
            argument.annotation = None
    kept = [item for item in node.body if not _is_text(item)]
    kept = [_field(item) if isinstance(node, ast.ClassDef) else _assignment(item) for item in kept]
    node.body = kept if kept or isinstance(node, ast.Module) else [ast.Pass()]


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _field(item: ast.stmt) -> ast.stmt:
    """Minimize a field's annotation: dataclasses need one."""
    if isinstance(item, ast.AnnAssign):
        item.annotation = ast.Name("int", ast.Load())
    return item


def _assignment(item: ast.stmt) -> ast.stmt:
    if isinstance(item, ast.AnnAssign) and item.value is not None:
        return ast.Assign([item.target], item.value, lineno=item.lineno)
    return item


def _arguments(node: ast.FunctionDef | ast.Lambda) -> Iterator[ast.arg]:
    a = node.args
    yield from (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))


def _global_names(nodes: list[ast.AST], kept: set[str]) -> dict[str, str]:
    """Map old to new names for those that only our own sources use: private names, functions, classes and constants.

    Excluded are names to keep, names that occur in a string, fields (which may be keys of JSON), names that objects of
    the standard library may have, and names of errors, which people read.
    """
    made = {name for node in nodes for name in _made(node)}
    ours = {n for n in made if n.startswith("_") and not n.startswith("__")}
    ours |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    ours |= {n for n in made if n.isupper()}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    fields = {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    taken = kept | texts | fields | _foreign(nodes)
    used = Counter(name for node in nodes for name in _names(node))
    chosen = [n for n in used if n in ours and len(n) > 2 and n not in taken and not n.endswith(("Error", "__"))]
    # Capitals, so that lower-case letters are left for local names.
    return _assign(sorted(chosen, key=lambda n: (-used[n], n)), set(used), string.ascii_uppercase)


def _foreign(nodes: list[ast.AST]) -> set[str]:
    """Return the names in imported modules and in their classes, and the built-in names."""
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and n.module[:7] != "phalanx"}
    found = [builtins, *(importlib.import_module(name) for name in sorted(imported))]
    known = {part for name in imported for part in name.split(".")}
    for module in found:
        known |= set(dir(module))
        known.update(n for kind in vars(module).values() if isinstance(kind, type) for n in dir(kind))
    return known


def _local_names(nodes: list[ast.AST], keywords: set[str]) -> dict[str, str]:
    """Map old to new names for what a function's nodes bind, except parameters that a call may pass by keyword.

    Names are assigned in the order of their appearance: most functions then begin alike, which compresses better.
    """
    used = {name for node in nodes for name in _names(node)}
    named = {node.arg for node in nodes if isinstance(node, ast.arg)} & keywords
    imported = {name for node in nodes if isinstance(node, ast.alias) for name in _names(node)}
    bound = dict.fromkeys(name for node in nodes for name in _bound(node))
    return _assign([n for n in bound if len(n) > 1 and n not in named | imported], used, string.ascii_lowercase)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the variables that this node binds."""
    if isinstance(node, ast.arg):
        yield node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, (ast.ExceptHandler, ast.FunctionDef)) and node.name:
        yield node.name


def _made(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node defines: a variable, a function, a class or an attribute."""
    yield from _bound(node)
    if isinstance(node, ast.ClassDef):
        yield node.name
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _outermost(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield a module's functions and its classes' methods, without nested ones."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node)


def _assign(names: Iterable[str], taken: set[str], letters: str) -> dict[str, str]:
    """Map names to new ones; the first names get the shortest."""
    taken = taken | set(dir(builtins)) | set(keyword.kwlist)
    return dict(zip(names, (name for name in _short(letters) if name not in taken), strict=False))


def _short(letters: str) -> Iterator[str]:
    for length in itertools.count(1):
        yield from map("".join, itertools.product(letters, repeat=length))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield every name that this node mentions."""
    for role in ("name", "asname", "id", "attr", "arg"):
        if isinstance(name := getattr(node, role, None), str):
            yield name


def _is_local(node: ast.AST) -> bool:
    """Whether this node's name can be a variable's rather than an attribute's or a keyword's."""
    return isinstance(node, (ast.Name, ast.arg, ast.ExceptHandler, ast.FunctionDef, ast.Global, ast.Nonlocal))


def _rename(nodes: Iterable[ast.AST], names: Mapping[str, str]) -> None:
    """Replace the old names in these nodes with new ones."""
    for node in nodes:
        for role in ("name", "id", "attr", "arg"):
            old = getattr(node, role, None)
            if isinstance(old, str) and old in names:
                setattr(node, role, names[old])
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [names.get(old, old) for old in node.names]
