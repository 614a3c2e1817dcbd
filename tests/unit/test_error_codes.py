"""docs/errors.md lists the code of every error with its exit status, as the sources raise them."""

from __future__ import annotations

import ast
import functools
import importlib
import pickle
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import source_trees
from source_trees import PHALANX, ROOT

import phalanx
from phalanx import guest_file
from phalanx.errors import STATUSES, PhalanxError, SpecError
from phalanx.jobs.future import JobFailed
from phalanx.packing.samples import PackError

# What becomes an error of phalanx elsewhere, with its code: the exit status is that of the second.
BECOMES = {
    "WrongError": "SpecError",
    "Mistake": "SpecError",
    "RefusedError": "JobError",
    "PackError": "PhalanxError",
    "ShardError": "PhalanxError",
}
# Their own codes say little, so everything that raises them names one.
BROAD = {"PhalanxError", "SpecError", "CloudError", "LocalCloudError", "ClusterError", "JobError", "RefusedError"}
# Codes that a variable has: of buckets, of a job that a newer phalanx has sent, of click's errors.
OTHERS = {"no-bucket": 3, "bucket-denied": 3, "bucket-elsewhere": 3, "newer-format": 7, "usage": 2}
# Not a name that the user gave, and that nothing has: what a machine, an account, a node or a job lacks.
LACKS = {
    *("no-answer", "no-capacity", "no-cgroup", "no-checkpoint", "no-core-group", "no-credentials", "no-emr-master"),
    *("no-gpu", "no-login", "no-manifest", "no-nodes", "no-private-key", "no-program", "no-public-key", "no-python"),
    *("no-roster", "no-ssh-authority"),
}
ROW = re.compile(r"\| `([^`]*)` \| ([0-9, ]+) \| (.+) \|")


class Kind(NamedTuple):
    """A class of errors: its exit status, and its own code or that of its base."""

    status: int
    code: str


@functools.cache
def nodes() -> list[tuple[Path, ast.ClassDef | ast.Call]]:
    found = ((path, node) for path, nodes in source_trees.nodes().items() for node in nodes)
    return [
        (path, node)
        for path, node in found
        if isinstance(node, (ast.ClassDef, ast.Call)) and path.is_relative_to(PHALANX)
    ]


@functools.cache
def kinds() -> dict[str, Kind]:
    classes = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    found = {"Exception": Kind(0, "")}
    grows = True
    while grows:
        grows = False
        for node in classes:
            bases = [BECOMES[node.name]] if node.name in BECOMES else map(name_of, node.bases)
            base = next((found[name] for name in bases if name in found), None)
            if base and node.name not in found and (base.status or node.name == "PhalanxError"):
                found[node.name] = Kind(value(node, "exit_code", base.status), value(node, "code", base.code))
                grows = True
    del found["Exception"]
    return found


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def value(node: ast.ClassDef, name: str, inherited: object) -> object:
    """Return what a class gives its attribute, or what it inherits."""
    for one in node.body:
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        if target is not None and name_of(target) == name:
            return ast.literal_eval(one.value)
    return inherited


@functools.cache
def calls() -> list[tuple[str, str, ast.expr | None]]:
    """List each call that makes an error: where it is, its class, and its code."""
    found = []
    for path, node in nodes():
        if isinstance(node, ast.Call):
            # SpecError(…), errors.SpecError(…), or SpecError.alike(…)
            names = (name_of(node.func), name_of(getattr(node.func, "value", node.func)))
            kind = next((name for name in names if name in kinds()), "")
            code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            if kind and (code or name_of(node.func) == kind):
                found.append((f"{path.relative_to(PHALANX)}:{node.lineno}", kind, code))
    return found


def in_sources() -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for name, code in ((name, code) for _, name, code in calls() if isinstance(code, ast.Constant)):
        found[code.value].add(kinds()[name].status)
    for kind in kinds().values():
        found[kind.code].add(kind.status)
    for code, status in OTHERS.items():
        found[code].add(status)
    found["several-mistakes"].add(kinds()["SpecError"].status)
    return {code: {STATUSES[code]} if code in STATUSES else statuses for code, statuses in found.items()}


def on_page() -> dict[str, set[int]]:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text())
    return {code: set(map(int, statuses.split(", "))) for code, statuses, _ in rows}


def test_the_page_lists_each_code_with_its_exit_status():
    assert on_page() == in_sources()


def test_a_kind_of_error_has_one_exit_status():
    assert {code: statuses for code, statuses in in_sources().items() if len(statuses) > 1} == {}


def test_the_table_of_statuses_has_no_code_that_nothing_raises():
    assert STATUSES.keys() - in_sources().keys() == set()


def test_what_does_not_exist_has_one_exit_status():
    """Where nothing is missing of the machine, the cloud's capacity or the cluster, it is a mistake."""
    lacking = {code: status for code, (status,) in in_sources().items() if code.startswith("no-") and status != 2}
    assert lacking.keys() == LACKS


def test_the_page_is_in_order():
    assert list(on_page()) == sorted(on_page())


def test_a_code_is_a_few_words_with_dashes():
    assert [code for code in on_page() if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+){0,3}", code)] == []


def test_what_raises_a_broad_error_names_a_code():
    assert [where for where, name, code in calls() if name in BROAD and code is None] == []


def test_every_error_can_be_pickled():
    """Of phalanx's own, by anybody; of any, where a process reads files for another."""
    for module in pkgutil.walk_packages(phalanx.__path__, "phalanx."):
        # It takes two seconds, and has no errors of its own.
        if module.name != "phalanx.torch":
            importlib.import_module(module.name)
    waiting, classes = [Exception], []
    while waiting:
        found = waiting.pop().__subclasses__()
        waiting += found
        classes += [one for one in found if one.__module__.startswith("phalanx.") and not issubclass(one, OSError)]
    assert PackError in classes and JobFailed in classes
    for one in classes:
        error = one.__new__(one, "what", "hint")
        vars(error).update(message="what", hint="hint", code="its-code")
        copies = [pickle.loads(guest_file._packed((None, None, error)))[2]]
        if issubclass(one, PhalanxError):
            copies.append(pickle.loads(pickle.dumps(error)))
        for copied in copies:
            assert (type(copied), copied.args, vars(copied)) == (one, error.args, vars(error))
    for error in (PackError("what", code="bad-samples"), SpecError.alike(["a", "b"], "hint", code="bad-name")):
        copied = pickle.loads(guest_file._packed((None, None, error)))[2]
        assert (str(copied), copied.code) == (str(error), error.code)
