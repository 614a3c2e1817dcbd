"""Read phalanx.yaml as values with their lines, and explain YAML's own errors in plain English."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phalanx import guest_file
from phalanx.errors import SpecError, in_lines

LARGEST_FILE_BYTES = 256 * 1024
_WRITE = "`phalanx init` writes one; `--file FILE` names another."


@dataclass(frozen=True)
class Mistake:
    """One mistake in the file: its line (from 1), its field ("" for the file itself), and what to do."""

    line: int
    field: str
    what: str
    hint: str = ""
    code: str = "not-yaml"

    def error(self, file: str) -> SpecError:
        where = f"{file}:{self.line}: {_shown(self.field)}: " if self.field else f"{file}:{self.line}: "
        return SpecError(f"{where}{self.what}", self.hint, code=self.code)


@dataclass(frozen=True)
class Value:
    """The value of one key. `plain` is a str, int, bool, None or a list of them, or NOT_PLAIN for 4.5, 010 …

    For a group of keys it is a dict of their Values.
    """

    line: int
    plain: Any
    text: str
    described: str


NOT_PLAIN = object()
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_TAG = "tag:yaml.org,2002:"
_DEEPEST = 20
# `job` has the group `env`, which has no groups.
_GROUPS_IN_GROUPS = 2


def read(path: Path) -> tuple[dict[str, Value], list[Mistake]]:
    """Return the keys of a YAML file and the mistakes in the keys themselves. Raises SpecError if it is no mapping."""
    root = _compose(_text_of_file(path), str(path))
    if root is None:
        raise SpecError(f"{path}:1: the file is empty", "`phalanx init` writes one to start from.", code="not-yaml")
    if not isinstance(root, yaml.MappingNode):
        mistake = Mistake(_line(root), "", f"must contain lines such as `name: demo`, is {_described(root)}")
        raise in_lines(mistake.error(str(path)))
    mistakes: list[Mistake] = []
    return _entries(root, mistakes), mistakes


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that can't be a phalanx.yaml; the message is already in plain English."""

    def __init__(self, what: str, hint: str, mark: yaml.Mark) -> None:
        super().__init__(problem=what, note=hint, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """Refuse what YAML allows and phalanx.yaml never needs: deep nesting, halves of characters."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803
        self._go_deeper()
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._go_deeper()
        return super().add_indent(column)

    def _go_deeper(self) -> None:
        # Checked for each token, because PyYAML's work grows with the square of the open brackets.
        if self.flow_level + len(self.indents) > _DEEPEST:
            raise _Refused("is nested too deeply", "phalanx.yaml is a flat list of `key: value`", self.get_mark())

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Refuse aliases of lists and groups, which may contain themselves, or grow without limit."""
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node = super().compose_node(parent, index)
        if alias and not isinstance(node, yaml.ScalarNode):
            raise _Refused("an alias (*name) refers to a list or a group", "write it out", alias.start_mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Join the two escapes with which JSON writes a character beyond U+FFFF."""
        node = super().compose_scalar_node(anchor)
        try:
            node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            half = ascii(error.object[error.start : error.start + 2].decode("utf-16-le", "surrogatepass"))[1:-1]
            raise _Refused(
                f"contains half of a character ({half})", "write the character itself", node.start_mark
            ) from None
        return node


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        words = _explained(error)
        raise in_lines(Mistake(line, "", words.what, words.hint).error(file)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            f"{file}:{line}: contains the character U+{_code_point(error):04X}, which YAML does not allow",
            code="not-yaml",
        ) from None


def _code_point(error: yaml.reader.ReaderError) -> int:
    return error.character if isinstance(error.character, int) else ord(error.character[:1] or "\0")


@dataclass(frozen=True)
class _Words:
    what: str
    hint: str


# PyYAML's messages and what to print instead. The first match is used.
_EXPLANATIONS = (
    ("'\\t'", _Words("a tab can't indent in YAML", "use spaces")),
    (
        "expected a single document",
        _Words("contains more than one document", "remove the second `---` and what follows it"),
    ),
    ("undefined alias", _Words("an alias (*name) refers to nothing", "put text that begins with * in quotes")),
    (
        "mapping values are not allowed here",
        _Words(
            "a second `: ` in one line", "quote the value, or check the indentation and the space after the colon above"
        ),
    ),
    (
        "could not find expected ':'",
        _Words("a line without `key: value`", "write `key: value`, with a space after the colon"),
    ),
    ("found unexpected end of stream", _Words("a quote is not closed", "close it with \" or '")),
    (
        "cannot start any token",
        _Words("a value begins with a character that YAML reserves", "put the value in quotes"),
    ),
    (
        "expected <block end>",
        _Words("the indentation does not fit the lines above", "begin every key in the first column"),
    ),
)


def _explained(error: yaml.MarkedYAMLError) -> _Words:
    if isinstance(error, _Refused):
        return _Words(error.problem or "", error.note or "")
    said = " ".join(part for part in (error.context, error.problem) if part)
    for piece, words in _EXPLANATIONS:
        if piece in said:
            return words
    return _Words(f"is not YAML: {said}", "")


def _entries(group: yaml.MappingNode, mistakes: list[Mistake], within: str = "") -> dict[str, Value]:
    """Return the keys of a group, which is the file or the value of the key `within`; add mistakes to the list."""
    entries: dict[str, Value] = {}
    for key, node in group.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name:
            said = f"a key must be a word, is {_described(key)}"
            mistakes.append(Mistake(_line(key), within, said, code="wrong-type"))
        elif name in entries:
            again = f"is written twice, first in line {entries[name].line}"
            mistakes.append(Mistake(_line(key), within + name, again, "remove one", code="written-twice"))
        else:
            is_group = isinstance(node, yaml.MappingNode) and within.count(".") < _GROUPS_IN_GROUPS
            plain = _entries(node, mistakes, f"{within}{name}.") if is_group else _plain(node)
            entries[name] = Value(_line(key), plain, _text(node), _described(node))
    return entries


def _text(node: yaml.Node) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        return NOT_PLAIN
    kind = node.tag.removeprefix(_TAG)
    if kind == "str":
        return node.value
    if kind == "bool":
        return node.value.lower() in ("yes", "true", "on")
    if kind == "null":
        return None
    # YAML 1.1 also reads 010 as 8, 1_0 as 10 and 10:30 as 630: nobody means that here.
    return int(node.value) if kind == "int" and _WHOLE_NUMBER.fullmatch(node.value) else NOT_PLAIN


def _described(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if not isinstance(node, yaml.ScalarNode):
        return "a group of keys"
    kind, text = node.tag.removeprefix(_TAG), _shown(node.value)
    by_kind = {
        "str": f"the text '{text}'" if node.value else "empty text",
        "null": "left empty",
        "bool": f"{text}, which YAML reads as {'true' if _plain(node) else 'false'}",
        "int": f"the number {text}",
        "float": f"the number {text}",
        "timestamp": f"{text}, which YAML reads as a date",
    }
    return by_kind.get(kind, f"{text}, tagged {_shown(node.tag.removeprefix(_TAG))}")


def _shown(text: str) -> str:
    first = text.split("\n", 1)[0]
    return first if first == text and len(first) <= 40 else f"{first[:40]}…"


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _text_of_file(path: Path) -> str:
    """Return the text of the file. Raises SpecError if it can't be read or can't be a phalanx.yaml."""
    data = _bytes(path)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SpecError(f"{path}: is UTF-16 text", "Save it as UTF-8.", code="not-utf8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise SpecError(what, "Save it as UTF-8.", code="not-utf8") from None


def _bytes(path: Path) -> bytes:
    try:
        return guest_file.read(path, LARGEST_FILE_BYTES)
    except FileNotFoundError:
        other = path.with_suffix(".yml")
        hint = f"There is {other}: rename it, or name it with `--file`." if other.exists() else _WRITE
        raise SpecError(f"{path}: there is no such file", hint, code="no-file") from None
    except IsADirectoryError:
        raise SpecError(
            f"{path}: is a directory", f"Name the file in it, such as {path / 'phalanx.yaml'}.", code="cannot-read"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"{path}: can't be read: {reason}", code="cannot-read") from None
