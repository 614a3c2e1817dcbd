"""Stands for the `yarn` command on an EMR cluster: `yarn node -list`, `yarn application -list` and `-kill ID`."""

from __future__ import annotations

import getpass
import json
import sys
import urllib.error
import urllib.request
from typing import Any
from xml.etree import ElementTree

SITE = "/etc/hadoop/conf/yarn-site.xml"
_REQUEST_TIMEOUT_S = 30.0
_USAGE = "the stand-in for yarn knows: yarn node -list, yarn application -list, yarn application -kill ID\n"
_NODE = "%16s\t%15s\t%17s\t%28s\n"
_APPLICATION = "%30s\t%20s\t%10s\t%10s\t%18s\n"
_ENDED = ("FINISHED", "FAILED", "KILLED")


def main(argv: list[str]) -> int:
    try:
        return run(argv)
    except urllib.error.HTTPError as refused:
        sys.stderr.write(f"{json.loads(refused.read())['RemoteException']['message']}\n")
    except OSError as problem:
        sys.stderr.write(f"the ResourceManager does not answer: {problem}\n")
    return 1


def run(argv: list[str]) -> int:
    if argv[:2] == ["node", "-list"]:
        found = (ask("nodes")["nodes"] or {"node": []})["node"]
        rows = [(one["id"], one["state"], one["nodeHTTPAddress"], one["numContainers"]) for one in found]
        show("Total Nodes", _NODE, ("Node-Id", "Node-State", "Node-Http-Address", "Number-of-Running-Containers"), rows)
    elif argv[:2] == ["application", "-list"]:
        listed = (ask("apps")["apps"] or {"app": []})["app"]
        live = [one for one in listed if one["state"] not in _ENDED]
        rows = [(one["id"], one["name"], one["user"], one["queue"], one["state"]) for one in live]
        show("Total number of applications", _APPLICATION, ("Application-Id", "Name", "User", "Queue", "State"), rows)
    elif argv[:2] == ["application", "-kill"] and len(argv) == 3:
        ask(f"apps/{argv[2]}/state?user.name={getpass.getuser()}", {"state": "KILLED"})
        sys.stdout.write(f"Killing application {argv[2]}\n")
    else:
        sys.stderr.write(_USAGE)
        return 1
    return 0


def show(title: str, form: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    sys.stdout.write(f"{title}:{len(rows)}\n" + form % header + "".join(form % row for row in rows))


def ask(path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    found = {one.findtext("name"): one.findtext("value") for one in ElementTree.parse(SITE).getroot().iter("property")}
    request = urllib.request.Request(
        f"http://{found['yarn.resourcemanager.hostname']}:8088/ws/v1/cluster/{path}",
        data=json.dumps(document).encode() if document else None,
        headers={"Content-Type": "application/json"},
        method="PUT" if document else "GET",
    )
    # The addresses are the cluster's own, whatever proxy the environment names.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_REQUEST_TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
