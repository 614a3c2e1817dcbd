"""cfn-hup: watches resources of the stack, and runs hooks' actions when they change."""

from __future__ import annotations

import configparser
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import run
from localcloud.nodes.bootstrap.stacks import CloudFormation

_SEEN = Path("/var/lib/cfn-hup/data/metadata_db.json")
_DEFAULT_INTERVAL_MINUTES = 15
_VARIABLES = {"": "LAST_UPDATED", "metadata": "METADATA", "physicalresourceid": "PHYSICAL_RESOURCE_ID"}
log = logging.getLogger("cfn.hup")


class Hook(NamedTuple):
    """What to run when something about a resource changes. `part` is `metadata`, `physicalresourceid` or ""."""

    name: str
    triggers: list[str]
    path: str
    resource: str
    part: str
    key: str
    action: str
    user: str


class Settings(NamedTuple):
    """What /etc/cfn says: whose resources, in which region, and how often."""

    stack: str
    region: str
    role: str
    interval_minutes: int
    hooks: list[Hook]


def read(directory: Path) -> Settings:
    """Read cfn-hup.conf, hooks.conf and hooks.d. Raises FailedError."""
    main = configparser.ConfigParser(interpolation=None)
    if not main.read(directory / "cfn-hup.conf") or not main.has_option("main", "stack"):
        raise FailedError(f"{directory / 'cfn-hup.conf'} does not exist, or does not name the stack in [main]")
    hooks = configparser.ConfigParser(interpolation=None)
    extra = sorted(path for path in (directory / "hooks.d").glob("*") if path.is_file())
    hooks.read([directory / "hooks.conf", *extra])
    found = [_hook(hooks[name]) for name in hooks.sections() if {"triggers", "path", "action"} <= set(hooks[name])]
    if not found:
        raise FailedError(f"No hook configurations found at {directory / 'hooks.conf'} or {directory / 'hooks.d'}")
    given = main["main"]
    interval = given.getint("interval", _DEFAULT_INTERVAL_MINUTES)
    if interval < 1:
        raise FailedError(f"Invalid interval (must be 1 minute or greater): {interval}")
    return Settings(given["stack"].strip(), given.get("region", "us-east-1"), given.get("role", ""), interval, found)


def _hook(given: configparser.SectionProxy) -> Hook:
    parts = given["path"].strip().split(".", 3)
    part = parts[2].lower() if len(parts) > 2 else ""
    if len(parts) < 2 or parts[0].lower() != "resources" or part not in _VARIABLES:
        raise FailedError(f"Unsupported path of hook {given.name}: {given['path']}")
    triggers = [trigger.strip() for trigger in given["triggers"].split(",")]
    key = parts[3] if len(parts) > 3 else ""
    user = given.get("runas", "").strip()
    return Hook(given.name, triggers, given["path"].strip(), parts[1], part, key, given["action"], user)


def watch(settings: Settings, service: CloudFormation, sleep: Callable[[float], None] = time.sleep) -> None:
    """Look again and again, for ever; what fails once is tried at the next time."""
    while True:
        look(settings, service)
        sleep(60.0 * settings.interval_minutes)


def look(settings: Settings, service: CloudFormation) -> None:
    """Look once, and run the actions of the hooks whose resources have changed."""
    seen: dict[str, Any] = json.loads(_SEEN.read_text()) if _SEEN.exists() else {}
    for hook in settings.hooks:
        key = f"{hook.name}|{hook.path}"
        try:
            found = service.describe(settings.stack, hook.resource)
        except FailedError as failure:
            log.error("%s: %s", hook.name, failure)
            continue
        if found.get("ResourceStatus", "").endswith("_IN_PROGRESS"):
            continue
        before, now = seen.get(key), value_of(hook, found)
        if not is_triggered(hook, before, now) or _act(hook, before, now):
            seen[key] = now
    _SEEN.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _SEEN.write_text(json.dumps(seen))


def value_of(hook: Hook, found: dict[str, Any]) -> Any:
    """Return what a hook watches of a described resource; None if there is nothing."""
    if hook.part == "metadata":
        return extracted(found.get("Metadata") or {}, hook.key)
    if found.get("ResourceStatus") == "DELETE_COMPLETE":
        return None
    return found.get("PhysicalResourceId" if hook.part else "LastUpdatedTimestamp")


def extracted(value: Any, key: str) -> Any:
    """Return the value at a path such as `a.b` in an object, or None."""
    for part in key.split(".") if key else ():
        value = value.get(part) if isinstance(value, dict) else None
    return value


def is_triggered(hook: Hook, before: Any, now: Any) -> bool:
    """Whether a hook's action runs."""
    happened = {
        "post.add": not before and bool(now),
        "post.remove": bool(before) and not now,
        "post.update": bool(before) and bool(now) and before != now,
    }
    return any(happened.get(trigger, False) for trigger in hook.triggers)


def _act(hook: Hook, before: Any, now: Any) -> bool:
    variables = {f"CFN_OLD_{_VARIABLES[hook.part]}": before, f"CFN_NEW_{_VARIABLES[hook.part]}": now}
    env = {**os.environ, **{name: _text(value) for name, value in variables.items() if value}}
    command = ["su", hook.user, "-c", hook.action] if hook.user else hook.action
    status = run(command, f"Hook {hook.name}", env)
    log.info("%s: its action ended with status %d", hook.name, status)
    return status == 0


def _text(value: Any | None) -> str:
    return value if isinstance(value, str) else json.dumps(value)
