"""The key `job`: what `phalanx run` does where its options say nothing.

Its keys are `OF_THE_COMMAND`, and every field of a job that is an option of `phalanx run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from phalanx.runner.files.job_record import ON_STALL, JobRecord
from phalanx.runner.files.schema import LARGEST_PRIORITY, LONGEST_GRACE_S
from phalanx.spec.spec_checks import WrongError, cut
from phalanx.spec.spec_groups import group, texts
from phalanx.spec.spec_rules import Kind, Rule, matching, number, time_s, whole, word
from phalanx.spec.spec_yaml import Value

_MOST = 1_000_000
OF_THE_COMMAND = ("launcher", "recipe", "nodes", "via")
"""Keys that are options of `phalanx run`, and no field of a job by that name."""
# These name one job.
_OF_ONE_JOB = ("name", "resume", "after", "after_any", "array")
_LONGEST_S = {"grace_s": LONGEST_GRACE_S, "wait_limit_s": 30 * 86400, "stall_s": 30 * 86400, "time_s": 365 * 86400}
_NAMED = {"env": r"[A-Za-z_][A-Za-z0-9_]*", "tags": r"[\w./@:+-]{1,63}", "links": r"[^\0\n]{1,1000}"}
EXAMPLE = {"launcher": "torchrun", "per_node": 8, "recipe": "torch", "env": {"OMP_NUM_THREADS": "4"}, "restarts": 3}


def exit_codes(text: str) -> tuple[int, ...]:
    """Return the exit codes in a text such as 75,137. Raises WrongError."""
    if not re.fullmatch(_CODES, text) or any(int(code) > _LARGEST_CODE for code in text.split(",")):
        raise WrongError(
            f"'{cut(text)}' is no list of exit codes",
            f"write numbers up to {_LARGEST_CODE}, such as 75,137",
            code="bad-value",
        )
    return tuple(sorted({int(code) for code in text.split(",")}))


def _read_exit_codes(value: Value) -> tuple[int, ...]:
    return exit_codes(",".join(map(str, value.plain)) if isinstance(value.plain, list) else value.text)


_LARGEST_CODE = 255
_CODES = r"\d{1,3}(,\d{1,3}){0,99}"
_EXIT_CODES = Rule(
    Kind("exit codes", tuple, _read_exit_codes, lambda codes: ",".join(map(str, codes))),
    lambda codes: codes,
    lambda: {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": whole(_CODES)}, {"type": "array"}]},
    f"exit codes up to {_LARGEST_CODE}, such as 75,137",
)


def node_range(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes in a text such as 2:4. Raises WrongError."""
    fewest, _, most = text.partition(":")
    if not (re.fullmatch(_NODES, text) and int(fewest) <= int(most)):
        raise WrongError(f"'{cut(text)}' is not MIN:MAX with MIN at most MAX", "such as 2:4", code="node-range")
    return int(fewest), int(most)


_NODES = r"[1-9]\d{0,3}:[1-9]\d{0,3}"
_NODE_RANGE = Rule(
    Kind("a range", tuple, lambda value: node_range(value.text), lambda nodes: ":".join(map(str, nodes))),
    lambda nodes: nodes,
    lambda: {"type": "string", "pattern": whole(_NODES)},
    "MIN:MAX, such as 2:4",
)


def _rules() -> Iterator[tuple[str, Rule]]:
    yield "launcher", matching("[a-z]{1,20}", "'{}' is no launcher", "`phalanx launchers` lists them", "a launcher")
    yield "recipe", matching("[a-z0-9-]{1,40}", "'{}' is no recipe", "`phalanx recipes` lists them", "a recipe")
    yield "nodes", _NODE_RANGE
    yield "via", matching("[a-z]{1,20}", "'{}' is no batch system", "such as slurm", "a batch system")
    for field in fields(JobRecord):
        if field.metadata.get("flag") and field.name not in _OF_ONE_JOB:
            yield field.name.removesuffix("_s"), _rule(field)


def _rule(field: Field[Any]) -> Rule:
    if field.name in _LONGEST_S:
        longest_s = _LONGEST_S[field.name]
        return time_s(longest_s, f"{longest_s} s is the longest")
    if field.name == "restart_on":
        return _EXIT_CODES
    if field.name == "priority":
        return number(-LARGEST_PRIORITY, LARGEST_PRIORITY)
    if field.name == "on_stall":
        return word(ON_STALL)
    if field.type == "bool":
        return word(("yes", "no"))
    if field.type in ("int", "Optional[int]"):
        return number(0 if field.type == "int" else 1, _MOST)
    if field.name in _NAMED:
        allowed = "1 to 100 names with values"
        return texts(_NAMED[field.name], r"[^\0]{0,4096}", 100, "PHALANX_", allowed, as_written=True)
    return matching(r"[^\0\n]{1,1000}", "'{}' has a line break", "write one line", "a text")


JOB = group(dict(_rules()))
"""The rule of the key; its normal form has the keys that were given."""


def as_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the values by the names of a job's fields, with those of `OF_THE_COMMAND`."""
    names = {field.name.removesuffix("_s"): field for field in fields(JobRecord)}
    found = {name: given[name] for name in OF_THE_COMMAND if name in given}
    for name, value in given.items():
        if name in names:
            found[names[name].name] = value == "yes" if names[name].type == "bool" else value
    return found
