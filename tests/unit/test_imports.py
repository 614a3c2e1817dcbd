"""The import rules that keep the parts apart, read from the source with ast: nothing is imported here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# One way only: a module may import what stands on its own line or on one before it.
ORDER = (
    ("errors", "data", "node"),
    ("spec", "spec_checks", "spec_yaml"),
    ("plan", "plan_text"),
    ("template",),
    ("cloud", "remote"),
    ("stack",),
    ("cluster",),
    ("lifecycle", "logs", "bundle", "job_model"),
    ("job",),
    ("plugins",),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
PLUGINS = ("clouds", "launchers")
STANDARD_LIBRARY_ONLY = ("phalanx.node", "phalanx.launchers", "phalanx.localcloud.dial")
NAMESPACE_CALLS = ("unshare", "setns", "pivot_root", "mount_setattr", "CLONE_NEW")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The stack's Lambda function is a document that the template carries: it runs in AWS and is no module of ours.
PATHS = [path for path in sorted((SOURCE / "phalanx").rglob("*.py")) if path.parent.name != "lambda_source"]
MODULES = {module_name(path): ast.parse(path.read_text()) for path in PATHS}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module named in an import statement, wherever it stands; `from a import b` yields a.b, maybe a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part_of(name: str) -> str:
    """The part of phalanx that a module belongs to: `phalanx.template.fleet` is of `template`."""
    pieces = name.split(".")
    part = pieces[1] if len(pieces) > 1 else ""
    return "plugins" if part in PLUGINS else part


def own_imports(name: str) -> list[str]:
    return [imported for imported in imports_of(MODULES[name]) if is_in(imported, "phalanx")]


def names_called(tree: ast.AST) -> set[str]:
    """Bare names of everything called: `print`, and `sleep` for `time.sleep(…)`."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {f.id if isinstance(f, ast.Name) else f.attr for f in called if isinstance(f, (ast.Name, ast.Attribute))}


@pytest.mark.parametrize("name", [name for name in MODULES if not is_in(name, "phalanx.localcloud")])
def test_imports_point_one_way(name: str) -> None:
    if name == "phalanx":  # public names only, loaded lazily
        return
    part = part_of(name)
    assert part in RANK, f"{name}: give it a place in ORDER"
    backwards = [imported for imported in own_imports(name) if RANK.get(part_of(imported), -1) > RANK[part]]
    assert backwards == []


@pytest.mark.parametrize("name", [name for name in MODULES if part_of(name) not in ("cli", "plugins", "localcloud")])
def test_core_imports_no_plugin_no_local_cloud_and_no_cli(name: str) -> None:
    assert not [i for i in own_imports(name) if part_of(i) in ("plugins", "localcloud", "cli")]


@pytest.mark.parametrize("name", [name for name in MODULES if part_of(name) == "plugins"])
def test_plugins_do_not_import_each_other(name: str) -> None:
    package = ".".join(name.split(".")[:2])
    foreign = [i for i in own_imports(name) if part_of(i) in ("plugins", "localcloud", "cli") and not is_in(i, package)]
    assert not foreign


def registered(package: str) -> set[str]:
    """The plug-ins that a package's table names: the dictionary from a name to a module's path."""
    tables = (node.values for node in ast.walk(MODULES[package]) if isinstance(node, ast.Dict))
    values = (value.value for table in tables for value in table if isinstance(value, ast.Constant))
    return {value for value in values if isinstance(value, str) and value in MODULES}


@pytest.mark.parametrize("package", ["phalanx.clouds", "phalanx.launchers"])
def test_neighbours_in_a_table_of_plugins_do_not_import_each_other(package: str) -> None:
    plugins = registered(package)
    assert len(plugins) > 1
    for name in plugins:
        assert not [i for i in own_imports(name) for other in plugins - {name} if is_in(i, other)], name


@pytest.mark.parametrize("name", [name for name in MODULES if is_in(name, "phalanx.localcloud")])
def test_the_local_cloud_is_sealed(name: str) -> None:
    assert all(is_in(imported, "phalanx.localcloud") for imported in own_imports(name))


@pytest.mark.parametrize("name", [n for n in MODULES if any(is_in(n, package) for package in STANDARD_LIBRARY_ONLY)])
def test_what_runs_on_nodes_needs_the_standard_library_alone(name: str) -> None:
    allowed = ("phalanx.node", "phalanx.launchers") if not is_in(name, "phalanx.localcloud") else ()
    for imported in imports_of(MODULES[name]):
        root = imported.split(".")[0]
        assert root in sys.stdlib_module_names or any(is_in(imported, package) for package in allowed), imported


def test_boto3_is_imported_in_clouds_and_in_the_local_cloud_only() -> None:
    sdk = {n for n, tree in MODULES.items() if any(i.split(".")[0] in ("boto3", "botocore") for i in imports_of(tree))}
    assert {n for n in sdk if part_of(n) != "localcloud" and not is_in(n, "phalanx.clouds")} == set()


def test_only_cli_node_and_the_local_clouds_own_door_print() -> None:
    allowed = ("phalanx.cli", "phalanx.node", "phalanx.localcloud.__main__", "phalanx.localcloud.nodes")
    printing = {name for name, tree in MODULES.items() if {"print", "exit", "input"} & names_called(tree)}
    assert {name for name in printing if not any(is_in(name, door) for door in allowed)} == set()


def programs_of(tree: ast.AST) -> Iterator[str]:
    """The first word of each list that is written out: the program, where the list is a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
            yield str(node.elts[0].value)


def test_ssh_is_started_from_remote_and_from_nodes_only() -> None:
    ssh = {name for name, tree in MODULES.items() if {"ssh", "/usr/bin/ssh"} & set(programs_of(tree))}
    assert {name for name in ssh if name != "phalanx.remote" and not is_in(name, "phalanx.node")} == set()


def test_namespaces_are_made_in_the_local_cloud_only() -> None:
    def makes_namespaces(tree: ast.AST) -> bool:
        return any(word in call for call in names_called(tree) for word in NAMESPACE_CALLS)

    assert {name for name, tree in MODULES.items() if makes_namespaces(tree) and part_of(name) != "localcloud"} == set()


@pytest.mark.parametrize("name", list(MODULES))
def test_modules_are_short_and_say_what_they_are_for(name: str) -> None:
    path = SOURCE.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert ast.get_docstring(MODULES[name]) or not path.read_text().strip(), f"{name} has no docstring"
    assert len(path.read_text().splitlines()) < 400, f"{name} nears 400 lines: split it"
