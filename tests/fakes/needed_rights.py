"""Which rights of a policy are needed: without each of the others, everything that was asked would be allowed still."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from local_clouds import api
from terminals import Terminal

from localcloud.iam import usage
from localcloud.iam.policy import Ask, Decision, Statement, as_list, decide, statements_of


def used(state: Path, role: str) -> list[Ask]:
    """Return what the local cloud with this directory recorded of a role."""
    lines = (state / usage.NAME).read_text().splitlines()
    found = [one for one in map(json.loads, lines) if one["role"] == role]
    return [Ask(one["action"], one["resource"], one["keys"]) for one in found]


def rights(terminal: Terminal, prefix: str) -> tuple[str, list[Statement], list[Ask]]:
    """Return the cluster's role whose name begins with this, the statements of its own policies, and what it used."""
    iam = api(terminal, "iam")
    (role,) = (one["RoleName"] for one in iam.list_roles()["Roles"] if one["RoleName"].startswith(prefix))
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = [iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names]
    statements = [one for document in documents for one in statements_of(document)]
    return role, statements, used(terminal.state / "local", role)


def without_one(statements: list[Statement]) -> Iterator[tuple[str, list[Statement]]]:
    """Yield each right, an action on a resource in a statement, and the statements without it."""
    allowing = [(number, one) for number, one in enumerate(statements) if one["Effect"] == "Allow"]
    for number, statement in allowing:
        for element in ("Action", "Resource"):
            for one in as_list(statement[element]):
                left = {**statement, element: [other for other in as_list(statement[element]) if other != one]}
                name = f"{statement.get('Sid', number)}: {' '.join(as_list(statement['Action']))[:60]}"
                yield f"{one} ({name})", [*statements[:number], left, *statements[number + 1 :]]


def not_needed(statements: list[Statement], asked: list[Ask], ignored: Iterable[str] = ()) -> list[str]:
    """Return the rights that nothing of what was asked needs, but for those whose names contain one of `ignored`."""
    judged = [pair for pair in without_one(statements) if not any(one in pair[0].split()[0] for one in ignored)]
    allowed = [one for one in asked if decide(statements, one) is Decision.ALLOWED]
    return [right for right, left in judged if all(decide(left, ask) is Decision.ALLOWED for ask in allowed)]
