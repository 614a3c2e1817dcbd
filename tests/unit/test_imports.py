"""The import rules between the parts, checked in the source by ast, without importing anything."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import source_trees
from source_trees import LOCAL_CLOUD, ROOT, below

SOURCE = ROOT / "src"

# The rooms, from the ground up: a module may import what stands on its own line or on one before it.
ORDER = (
    (
        "counts",
        "errors",
        "guest_file",
        "version",
        "waits",
        "data",
        "datasets",
        "netcheck",
        "node",
        "objects",
        "packing",
        "shards",
        "state_files",
        "torch",
    ),
    ("runner",),
    ("code", "spec", "ssh"),
    ("plan",),
    ("template",),
    ("jobs",),
    ("aws",),
    ("local",),
    ("cluster",),
    ("images",),
    ("emr",),
    ("clouds",),
    ("connection",),
    ("plugins",),
    ("api",),
    ("cli", "ui"),
    ("__main__",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
PLUGINS = ("launchers", "schedulers")
# They import by names that they have in a table: the public face, commands, launchers and schedulers.
BY_NAME = {"phalanx", "phalanx.cli.group", "phalanx.launchers", "phalanx.schedulers"}
STANDARD_LIBRARY_ONLY = (
    "phalanx.counts",
    "phalanx.datasets",
    "phalanx.node",
    "phalanx.objects",
    "phalanx.guest_file",
    "phalanx.packing",
    "phalanx.shards",
    "phalanx.runner",
    "phalanx.launchers",
    "phalanx.schedulers",
    "localcloud.network.dial",
    "localcloud.nodes.bootstrap",
)
MAY_PRINT = (
    "phalanx.cli",
    "phalanx.counts",
    "phalanx.datasets",
    "phalanx.netcheck",
    "phalanx.node",
    "phalanx.objects",
    "phalanx.runner",
    "localcloud.__main__",
    "localcloud.emr.hadoop",
    "localcloud.messaging.sandbox",
    "localcloud.nodes",
)
# What macOS lacks, and `make check` can't find where it is text: pyright for Darwin finds calls only.
ONLY_ON_LINUX = re.compile(
    r"/proc/|/sys/|/dev/shm|memfd_create|pidfd_|epoll|prctl|sched_|O_TMPFILE|O_PATH|SO_PEERCRED|eventfd|splice|AF_NETLINK"
)
LINUX_ROOMS = ("localcloud", "phalanx.runner", "phalanx.netcheck", "phalanx.node")
# It asks for the platform first; and these are the local cloud's processes, which are on Linux.
LINUX_ELSEWHERE = {
    "phalanx.ssh.bounded": {"memfd_create", "/proc/"},
    "phalanx.ssh.remote": {"prctl"},
    "phalanx.local.endpoint": {"/proc/"},
    # Where there is no /proc, what waits for FUSE is left to a thread.
    "phalanx.guest_file": {"/proc/"},
    # It runs in jobs on nodes, too; where there is no /proc, it looks at no threads.
    "phalanx.torch": {"/proc/"},
    # It reads what nodes have said.
    "phalanx.jobs.advice": {"/dev/shm"},
}
IMPORTS_INSIDE = re.compile(r"^[ \t]+(?:from|import) ", re.MULTILINE)
NAMESPACE_CALLS = ("unshare", "setns", "pivot_root", "mount_setattr", "CLONE_NEW")


@dataclass
class Module:
    """What the rules check in one file."""

    name: str
    text: str
    docstring: str | None
    imports: list[str] = field(default_factory=list)
    """Every module named in an import statement, wherever it stands; `from a import b` gives a.b, maybe a name.

    A name that is given to import_module is one, too.
    """
    by_name: bool = False
    """Whether it imports what it has in a table or a variable."""
    texts: set[str] = field(default_factory=set)
    """Every text that may be the name of a module of phalanx."""
    calls: set[str] = field(default_factory=set)
    """Bare names of everything called: `print`, and `sleep` for `time.sleep(…)`."""
    programs: set[str] = field(default_factory=set)
    """The first word of each list that is written out: the program, where the list is a command."""
    table: set[str] = field(default_factory=set)
    """Texts that are values of a dictionary: plug-ins by name are registered so."""
    lines_in_functions: set[int] = field(default_factory=set)
    """The lines of the imports in functions."""

    @property
    def part(self) -> str:
        """The part of phalanx that it belongs to: `phalanx.template.fleet` is of `template`."""
        return part_of(self.name)

    def is_in(self, *packages: str) -> bool:
        return any(is_in(self.name, package) for package in packages)

    def own_imports(self) -> list[str]:
        named = self.texts if self.by_name else set()
        own = (*self.imports, *sorted(named))
        return [imported for imported in own if is_in(imported, "phalanx") or is_in(imported, "localcloud")]


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part_of(name: str) -> str:
    pieces = name.split(".")
    if pieces[0] == "localcloud":
        return "localcloud"
    part = pieces[1] if len(pieces) > 1 else ""
    return "plugins" if part in PLUGINS else part


def examined(path: Path, text: str, nodes: list[ast.AST]) -> Module:
    source = LOCAL_CLOUD.parent if path.is_relative_to(LOCAL_CLOUD) else SOURCE
    parts = path.relative_to(source).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = Module(name, text, ast.get_docstring(nodes[0]))
    for node in nodes:
        if note := NOTES.get(type(node)):
            note(module, node)
    return module


def note_import(module: Module, node: ast.Import) -> None:
    module.imports += [alias.name for alias in node.names]


def note_import_from(module: Module, node: ast.ImportFrom) -> None:
    dots = "." * node.level
    module.imports += [f"{dots}{node.module}.{alias.name}" for alias in node.names]


def note_call(module: Module, node: ast.Call) -> None:
    if isinstance(node.func, (ast.Name, ast.Attribute)):
        called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        module.calls.add(called)
        if called in ("import_module", "__import__") and node.args:
            note_import_by_name(module, node.args[0])


def note_import_by_name(module: Module, name: ast.expr) -> None:
    module.by_name |= not isinstance(name, ast.Constant)
    if isinstance(name, ast.Constant) and is_in(str(name.value), "phalanx"):
        module.imports.append(str(name.value))


def note_text(module: Module, node: ast.Constant) -> None:
    if str(node.value).startswith("phalanx.") and re.fullmatch(r"phalanx(\.\w+)+", str(node.value)):
        module.texts.add(str(node.value))


def note_list(module: Module, node: ast.List) -> None:
    if node.elts and isinstance(node.elts[0], ast.Constant):
        module.programs.add(str(node.elts[0].value))


def note_dict(module: Module, node: ast.Dict) -> None:
    module.table |= {str(value.value) for value in node.values if isinstance(value, ast.Constant)}


def note_function(module: Module, node: ast.FunctionDef) -> None:
    if IMPORTS_INSIDE.search(module.text):
        found = (one for one in below(node) if isinstance(one, (ast.Import, ast.ImportFrom)))
        module.lines_in_functions |= {one.lineno for one in found}


NOTES: dict[type[ast.AST], Callable] = {
    ast.Import: note_import,
    ast.ImportFrom: note_import_from,
    ast.Call: note_call,
    ast.Constant: note_text,
    ast.List: note_list,
    ast.Dict: note_dict,
    ast.FunctionDef: note_function,
}


@functools.cache
def modules() -> list[Module]:
    """Read all modules, except the stack's Lambda function, which is part of the template and runs in AWS."""
    found = source_trees.nodes().items()
    return [examined(path, path.read_text(), nodes) for path, nodes in found if path.parent.name != "lambda_source"]


def core() -> list[Module]:
    above = ("__main__", "api", "cli", "ui", "plugins", "localcloud")
    return [module for module in modules() if module.part not in above]


def test_imports_are_absolute() -> None:
    assert [m.name for m in modules() for imported in m.imports if imported.startswith(".")] == []


def test_every_module_has_its_place_in_the_order() -> None:
    outside = [m.name for m in modules() if m.part not in RANK and m.part not in ("", "localcloud")]
    assert outside == [], "give it a place in ORDER"


def test_imports_point_one_way() -> None:
    backwards = [
        f"{module.name} imports {imported}"
        for module in modules()
        for imported in module.own_imports()
        if module.part in RANK and RANK.get(part_of(imported), -1) > RANK[module.part]
    ]
    assert backwards == []


def test_only_commands_launchers_and_schedulers_are_imported_by_name() -> None:
    assert {m.name for m in modules() if m.by_name and m.part != "localcloud"} == BY_NAME


def test_a_name_that_is_given_to_import_module_is_an_import() -> None:
    path = SOURCE / "phalanx" / "probe.py"
    spelled = 'importlib.import_module("phalanx.api")\n__import__("json")\n'
    assert examined(path, spelled, below(ast.parse(spelled))).own_imports() == ["phalanx.api"]
    table = 'TABLE = {"a": "phalanx.cli.up"}\n'
    assert examined(path, table, below(ast.parse(table))).own_imports() == []
    used = table + "import_module(TABLE[name])\n"
    assert examined(path, used, below(ast.parse(used))).own_imports() == ["phalanx.cli.up"]


def test_core_imports_no_plugin_no_local_cloud_and_no_cli() -> None:
    foreign = [(m.name, i) for m in core() for i in m.own_imports() if part_of(i) in ("plugins", "localcloud", "cli")]
    assert foreign == []


def test_launchers_and_schedulers_do_not_import_each_other() -> None:
    for package in PLUGINS:
        for module in (m for m in modules() if m.is_in(f"phalanx.{package}")):
            foreign = [i for i in module.own_imports() if part_of(i) in ("plugins", "localcloud", "cli")]
            assert [i for i in foreign if not is_in(i, f"phalanx.{package}")] == [], module.name


@pytest.mark.parametrize("package", ["phalanx.launchers", "phalanx.schedulers"])
def test_neighbours_in_a_table_of_plugins_do_not_import_each_other(package: str) -> None:
    registered = {m.name for m in modules()} & next(m.table for m in modules() if m.name == package)
    assert len(registered) > 1
    for module in (m for m in modules() if m.name in registered):
        others = registered - {module.name}
        assert [i for i in module.own_imports() for other in others if is_in(i, other)] == [], module.name


def test_the_local_cloud_is_sealed() -> None:
    sealed = [m for m in modules() if m.part == "localcloud"]
    assert [(m.name, i) for m in sealed for i in m.own_imports() if not is_in(i, "localcloud")] == []


def test_what_runs_on_nodes_needs_the_standard_library_alone() -> None:
    for module in (m for m in modules() if m.is_in(*STANDARD_LIBRARY_ONLY)):
        own = [p for p in STANDARD_LIBRARY_ONLY if module.part != "localcloud" or module.is_in(p)]
        for imported in module.imports:
            allowed = imported.split(".")[0] in sys.stdlib_module_names or any(is_in(imported, p) for p in own)
            assert allowed, f"{module.name} imports {imported}"


def test_botocore_is_imported_in_aws_and_in_the_local_cloud_only() -> None:
    others = [m for m in modules() if m.part != "localcloud" and not m.is_in("phalanx.aws")]
    assert [(m.name, i) for m in others for i in m.imports if i.split(".")[0] in ("boto3", "botocore")] == []


def test_only_cli_node_and_the_local_clouds_own_door_print() -> None:
    assert [m.name for m in modules() if {"print", "exit", "input"} & m.calls and not m.is_in(*MAY_PRINT)] == []


def test_ssh_is_started_from_remote_and_from_nodes_only() -> None:
    ssh = [m for m in modules() if {"ssh", "/usr/bin/ssh"} & m.programs]
    assert [m.name for m in ssh if not m.is_in("phalanx.ssh", "phalanx.node", "phalanx.runner")] == []


def test_what_only_linux_has_stays_where_linux_is() -> None:
    found = {
        module.name: set(ONLY_ON_LINUX.findall(module.text))
        for module in modules()
        if not module.is_in(*LINUX_ROOMS) and ONLY_ON_LINUX.search(module.text)
    }
    assert found == LINUX_ELSEWHERE


def test_namespaces_are_made_in_the_local_cloud_only() -> None:
    others = [m for m in modules() if m.part != "localcloud"]
    assert [(m.name, call) for m in others for call in m.calls if any(word in call for word in NAMESPACE_CALLS)] == []


def test_contract_runner_launchers_and_command_line_do_not_ask_which_service_makes_the_machines() -> None:
    """What differs is behind Machines, Fleet and a builder in template/ (CONTRIBUTING.md, "Where the machines are")."""
    rooms = [module for part in ("runner", "launchers", "cli") for module in (SOURCE / "phalanx" / part).rglob("*.py")]
    asking = re.compile(r"\bEMR\b|maker_of\(|spec\.emr\b|settings\.emr\b|\bhadoop\b(?!\.util)")
    found = {path.stem for path in (*rooms, SOURCE / "phalanx/node/contract.py") if asking.search(path.read_text())}
    # `adopt --emr` and `emr-scripts` are about EMR alone; the others name it in their help.
    assert found == {"adopt", "emr_scripts", "template", "__init__"}


def test_one_module_converts_between_nodes_and_workers() -> None:
    """All others count nodes, the head included, or call it."""
    converts = re.compile(r'(?:nodes|requested|instances|min|workers|s"\])\)* [-+] 1\b')
    found = {module.name for module in modules() if module.part != "localcloud" and converts.search(module.text)}
    # Each node has a link to each other one.
    assert found == {"phalanx.node.workers_group", "phalanx.jobs.net_result"}


def test_modules_say_what_they_are_for() -> None:
    assert [m.name for m in modules() if m.text.strip() and not m.docstring] == []


def test_a_module_is_one_thought() -> None:
    """It ends where that ends; beyond 500 lines, look for the second one."""
    assert {m.name: lines for m in modules() if (lines := m.text.count("\n")) > 500} == {}


def test_a_file_name_says_one_thing() -> None:
    """Except the command line's modules, which are named after commands."""
    files = [path.relative_to(SOURCE / "phalanx") for path in (SOURCE / "phalanx").rglob("*.py")]
    stems = [path.stem for path in files if path.parts[0] != "cli" and path.stem[0] != "_"]
    assert sorted({stem for stem in stems if stems.count(stem) > 1}) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them without their directories, and collects nothing if two have the same name."""
    names = [path.name for path in files_of_tests()]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_tests_import_what_takes_a_second_where_they_use_it() -> None:
    """Each of the processes that run tests side by side imports every file of tests."""
    slow = re.compile(r"^(?:from|import) (?:torch|phalanx\.torch|webdataset|cfnlint|tensorflow)\b", re.MULTILINE)
    assert [path.name for path in files_of_tests() if slow.search(path.read_text())] == []


def files_of_tests() -> list[Path]:
    return [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("localcloud/tests/**/test_*.py")]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not even inside a function or only for type checkers."""
    names = {module.name for module in modules()}
    graph = {m.name: {owner(i, names) for i in m.own_imports()} - {m.name, "phalanx"} for m in modules()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        pytest.fail(" → ".join(circle.args[1]))


def owner(imported: str, names: set[str]) -> str:
    """Return the module that is imported: `from a import b` may name something inside a."""
    return imported if imported in names else imported.rpartition(".")[0]


def test_scripts_let_the_threads_of_gloo_rest_before_they_end_the_group():
    """A thread that still has a tensor then makes the process hang, or abort at its exit (pytorch #190489)."""
    scripts = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *SOURCE.rglob("*.py")]
    ends = {path: re.findall(r"(?m)^(.*)\n.*\bdestroy_process_group\(\)$", path.read_text()) for path in scripts}
    assert sum(map(len, ends.values())) >= 9
    assert [path.name for path, before in ends.items() if any("time.sleep(1)" not in line for line in before)] == []


# The verbs of the runner import their own modules in functions, as commands do. Elsewhere that has a reason, in a
# comment on the import's line or above it.
IMPORTS_IN_FUNCTIONS = 60


def imports_in_functions(module: Module) -> Iterator[bool]:
    """Yield for each import inside a function whether it has a comment."""
    lines = module.text.splitlines()
    for line in module.lines_in_functions:
        first = line
        while first - 1 in module.lines_in_functions:
            first -= 1
        yield "#" in lines[line - 1] or lines[first - 2].lstrip().startswith("#")


def test_an_import_in_a_function_is_rare_and_has_its_reason():
    others = [module for module in modules() if module.is_in("phalanx") and module.name != "phalanx.runner.main"]
    explained = {module.name: list(imports_in_functions(module)) for module in others}
    assert [name for name, found in explained.items() if not all(found)] == []
    assert sum(map(len, explained.values())) <= IMPORTS_IN_FUNCTIONS
