"""Stands for `java` in containers of an EMR cluster: it runs the application master of YARN's distributed shell.

The master's own directory has the command for its containers in the file shellCommands, as Java's writeUTF writes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from typing import Any
from xml.etree import ElementTree

MASTER = "org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster"
SITE = "/etc/hadoop/conf/yarn-site.xml"
# YARN's exit status of a container that was lost with its node; the master asks for another.
ABORTED = -100
_REQUEST_TIMEOUT_S = 30.0


def main(argv: list[str]) -> int:
    main_class, arguments = after_options(argv)
    if main_class != MASTER:
        sys.stderr.write(f"Error: Could not find or load main class {main_class}\n")
        return 1
    chosen = read(arguments)
    with open("shellCommands", "rb") as file:
        command = file.read()[2:].decode()
    size = {"memory": chosen.container_memory, "vCores": chosen.container_vcores}
    more = {"command": f"{command}  1><LOG_DIR>/stdout 2><LOG_DIR>/stderr ", "environment": {"YARN_SHELL_ID": "1"}}
    failed = wait(Manager(), chosen.num_containers, {**size, **more})
    return 2 if failed else 0


def after_options(argv: list[str]) -> tuple[str, list[str]]:
    """Return the main class and its arguments, after the options of the virtual machine."""
    at = next((index for index, word in enumerate(argv) if not word.startswith("-")), len(argv))
    return (argv[at] if at < len(argv) else ""), argv[at + 1 :]


def read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ApplicationMaster")
    for name in ("container_memory", "container_vcores", "num_containers", "priority"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args(arguments)


class Manager:
    """The ResourceManager."""

    def __init__(self) -> None:
        found = ElementTree.parse(SITE).getroot().iter("property")
        site = {one.findtext("name", ""): one.findtext("value", "") for one in found}
        self._url = f"http://{site['yarn.resourcemanager.hostname']}:8088/stand-in/master"
        with open("container_tokens") as file:
            self._token = file.read()

    def call(self, **body: Any) -> dict[str, Any]:
        data = json.dumps({"token": self._token, **body}).encode()
        with urllib.request.urlopen(self._url, data, _REQUEST_TIMEOUT_S) as answer:
            return json.load(answer)


def wait(manager: Manager, total: int, ask: dict[str, Any]) -> int:
    """Ask for the containers, and wait until all have ended; return how many failed."""
    done = failed = 0
    answer = manager.call(ask={**ask, "count": total})
    while done < total:
        statuses = [status for _name, status in answer["completed"]]
        if lost := statuses.count(ABORTED):
            manager.call(ask={**ask, "count": lost})
        done += len(statuses) - lost
        failed += sum(status not in (0, ABORTED) for status in statuses)
        answer = manager.call() if done < total else answer
    text = f"Diagnostics., total={total}, completed={done}, allocated={total}, failed={failed}"
    finish = {"status": "FAILED" if failed else "SUCCEEDED", "diagnostics": text if failed else ""}
    manager.call(finish=finish)
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
