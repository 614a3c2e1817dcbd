"""Stands for YARN's NodeManager on an instance of an EMR cluster: it starts containers, and reports how they end.

Containers run under their application's user, or all under one, as yarn-site.xml says. It tells Hadoop's way of
starting them: a launch_container.sh in a directory of their own, in a session that is signalled as a whole.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any
from xml.etree import ElementTree

SITE = "/etc/hadoop/conf/yarn-site.xml"
JAVA_HOME = "/emr/instance-controller/lib/hadoop/java"
LIMIT = "yarn.nodemanager.linux-container-executor.nonsecure-mode"
# What its container executor refuses to be (banned.users in container-executor.cfg).
BANNED = ("root", "hdfs", "yarn", "mapred", "bin")
# YARN's own pause between SIGTERM and SIGKILL (yarn.nodemanager.sleep-delay-before-sigkill.ms).
_BEFORE_KILL_S = 0.25
_REQUEST_TIMEOUT_S = 30.0
_RETRY_S = 1.0
# YARN's exit status of a container that could not be started.
_INVALID = -1000
_HOMES = {
    "HADOOP_CONF_DIR": "/etc/hadoop/conf",
    "HADOOP_COMMON_HOME": "/usr/lib/hadoop",
    "HADOOP_HDFS_HOME": "/usr/lib/hadoop-hdfs",
    "HADOOP_YARN_HOME": "/usr/lib/hadoop-yarn",
    "JAVA_HOME": JAVA_HOME,
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}


class NodeManager:
    """The containers of this instance."""

    def __init__(self, site: dict[str, str]) -> None:
        self._site = site
        self._url = f"http://{site['yarn.resourcemanager.hostname']}:8088/stand-in/node"
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes] | None] = {}
        # Of containers that have ended, until the ResourceManager knows.
        self._completed: dict[str, int] = {}

    def serve(self) -> None:
        """Do what the ResourceManager says, for ever."""
        while True:
            answer = self._report()
            for name in answer["stop"]:
                threading.Thread(target=self._stop, args=(name,)).start()
            for container in answer["launch"]:
                with self._lock:
                    self._running[container["id"]] = None
                threading.Thread(target=self._run, args=(container,)).start()

    def _report(self, at_once: bool = False) -> dict[str, Any]:
        """Report what runs and what has ended; unless `at_once`, the answer comes when there is something to do."""
        while True:
            with self._lock:
                completed, running = dict(self._completed), list(self._running)
            body = {
                "name": self._site["yarn.nodemanager.hostname"],
                "memory": int(self._site["yarn.nodemanager.resource.memory-mb"]),
                "vcores": int(self._site["yarn.nodemanager.resource.cpu-vcores"]),
                "completed": completed,
                "running": running,
                "at_once": at_once,
            }
            try:
                with urllib.request.urlopen(self._url, json.dumps(body).encode(), _REQUEST_TIMEOUT_S) as answer:
                    found = json.load(answer)
            except (OSError, ValueError):
                time.sleep(_RETRY_S)
                continue
            with self._lock:
                for name in completed:
                    self._completed.pop(name, None)
            return found

    def _run(self, container: dict[str, Any]) -> None:
        """Run a container to its end, and report that."""
        name = container["id"]
        try:
            process = self._start(container)
            with self._lock:
                self._running[name] = process
            status = process.wait()
            # What is left of its session goes with it.
            _signal(process, signal.SIGKILL)
        except (OSError, KeyError, TypeError, ValueError) as problem:
            sys.stderr.write(f"{name}: {problem}\n")
            status = _INVALID
        with self._lock:
            del self._running[name]
            self._completed[name] = 128 - status if -64 < status < 0 else status
        self._report(at_once=True)

    def _start(self, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        name, user = container["id"], self._user_of(container["user"])
        account = pwd.getpwnam(user)
        base = self._site["yarn.nodemanager.local-dirs"].partition(",")[0]
        directory = f"{base}/usercache/{user}/appcache/{container['application']}/{name}"
        logs = f"{self._site['yarn.nodemanager.log-dirs'].partition(',')[0]}/{container['application']}/{name}"
        for path in (directory, logs):
            # Python's rmtree fails at a thousand nested directories.
            subprocess.run(["rm", "-rf", path], check=False)
            os.makedirs(path)
        environment = {"CONTAINER_ID": name, "LOG_DIRS": logs, "USER": user, "HOME": account.pw_dir, "PWD": directory}
        _write(f"{directory}/launch_container.sh", script(container, logs), account)
        _write(f"{directory}/container_tokens", container["token"], account)
        # Last, so that nobody else could put anything into its way.
        for path in (directory, logs):
            os.chown(path, account.pw_uid, account.pw_gid)
        return subprocess.Popen(
            ["bash", f"{directory}/launch_container.sh"],
            cwd=directory,
            env={**_HOMES, **environment, "LOGNAME": user},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(user, account.pw_gid),
        )

    def _user_of(self, user: str) -> str:
        """Return the user under which a container runs. Raises ValueError for those that may not."""
        if self._site.get(f"{LIMIT}.limit-users") != "false":
            user = self._site[f"{LIMIT}.local-user"]
        if user in BANNED:
            raise ValueError(f"Requested user {user} is banned")
        return user

    def _stop(self, name: str) -> None:
        with self._lock:
            process = self._running.get(name)
        if process:
            _signal(process, signal.SIGTERM)
            time.sleep(_BEFORE_KILL_S)
            _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def _write(path: str, text: str, account: pwd.struct_passwd) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as file:
        file.write(text)
    os.chown(path, account.pw_uid, account.pw_gid)


def script(container: dict[str, Any], logs: str) -> str:
    """Return a container's launch_container.sh: YARN puts the command between double quotes."""
    lines = [f'export {name}="{expanded(value, logs)}"' for name, value in container["environment"].items()]
    command = f'exec /bin/bash -c "{expanded(container["command"], logs)}"'
    return "\n".join(("#!/bin/bash", *lines, command, ""))


def expanded(text: str, logs: str) -> str:
    """Expand what YARN expands in commands and variables."""
    return text.replace("<LOG_DIR>", logs).replace("<CPS>", ":").replace("{{", "$").replace("}}", "")


def settings() -> dict[str, str]:
    """Return the properties of yarn-site.xml."""
    found = ElementTree.parse(SITE).getroot().iter("property")
    return {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in found}


if __name__ == "__main__":
    NodeManager(settings()).serve()
