"""The controller of an EMR instance, as its user data installs it: bootstrap actions first, then steps on the master.

It runs on nodes, alone: only the standard library, Python 3.9. It makes the account `hadoop`, under which everything
runs, and the files in which AWS's and users' scripts look up what the instance is. Scripts come from S3 and logs go
there with the rights of the instance profile.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import math
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

HOME = "/emr/instance-controller"
INFO = "/mnt/var/lib/info"
LOGS = "/mnt/var/log"
IMDS = "http://169.254.169.254/latest"
ADMIN, USER, UID = "ec2-user", "hadoop", 987
# The lines of the account in the files of /etc. Where one uid is mapped, all accounts have it.
ACCOUNT = {
    "passwd": f"{USER}:x:{{uid}}:{{uid}}::/home/{USER}:/bin/bash",
    "group": f"{USER}:x:{{uid}}:",
    "shadow": f"{USER}:*:20000::::::",
    "gshadow": f"{USER}:*::",
}
ACTION_DIRECTORY = f"{HOME}/lib/bootstrap-actions"
# A new instance may have to wait for its role's credentials.
_PATIENCE_S = 120
# How often the logs of what runs are stored.
_STORE_EVERY_S = 30
_REQUEST_TIMEOUT_S = 60
_TICK_S = 1.0


def main() -> None:
    os.umask(0o022)
    with open(f"{HOME}/url") as url:
        service = Service(url.read().strip())
    about = service.report("start")
    make_accounts()
    write_info(about["info"])
    store = Store(about["region"], about["patience_s"])
    for action in about["actions"]:
        if not run_action(service, store, about, action):
            return
    subprocess.run(["sh", "-e"], input=about["applications"], text=True, check=True)
    service.report("ready")
    while about["is_master"]:
        answer = service.report("next")
        if answer.get("stop"):
            return
        if "step" in answer:
            run_step(service, store, about["logs"], answer["step"])


class Service:
    """EMR, at an address that stands for this instance."""

    def __init__(self, url: str) -> None:
        self.url = url

    def report(self, verb: str, **report: Any) -> dict[str, Any]:
        """Report something and return the answer; tries again until EMR answers."""
        body = json.dumps(report).encode()
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/{verb}", body, timeout=_REQUEST_TIMEOUT_S) as answer:
                    return json.load(answer)
            except OSError as problem:
                sys.stderr.write(f"EMR does not answer: {problem}\n")
                time.sleep(_TICK_S)


def make_accounts() -> None:
    """Make `hadoop` with the rights and the key of the image's administrator, who is Amazon Linux's."""
    if exists(USER):
        return
    if exists("ubuntu"):
        # An image of one's own.
        for name in ACCOUNT:
            edit(f"/etc/{name}", lambda text: text.replace("ubuntu", ADMIN))
        os.rename("/home/ubuntu", f"/home/{ADMIN}")
    uid = 0 if pwd.getpwnam(ADMIN).pw_uid == 0 else UID
    for name, line in ACCOUNT.items():
        edit(f"/etc/{name}", lambda text, line=line: f"{text}{line.format(uid=uid)}\n")
    edit("/etc/group", lambda text: "".join(f"{with_member(line)}\n" for line in text.splitlines()))
    shutil.copytree(f"/home/{ADMIN}", f"/home/{USER}")
    own(f"/home/{USER}")


def exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def with_member(line: str) -> str:
    """Add `hadoop` to the groups that administer."""
    name, *_rest = line.split(":")
    if name not in ("sudo", "wheel", "adm"):
        return line
    return f"{line}{'' if line.endswith(':') else ','}{USER}"


def edit(path: str, change: Callable[[str], str]) -> None:
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(change(text))


def own(path: str) -> None:
    """Give a directory and all in it to `hadoop`."""
    uid = pwd.getpwnam(USER).pw_uid
    for directory, _directories, files in os.walk(path):
        for name in (directory, *(os.path.join(directory, file) for file in files)):
            os.chown(name, uid, uid)


def write_info(info: dict[str, Any]) -> None:
    """Write the files that describe the instance, where EMR has them."""
    os.makedirs(INFO, exist_ok=True)
    for name, document in info.items():
        with open(f"{INFO}/{name}", "w") as file:
            json.dump(document, file, indent=1)
    for path in (f"{LOGS}/hadoop/steps", f"{LOGS}/bootstrap-actions", ACTION_DIRECTORY):
        os.makedirs(path, exist_ok=True)
    os.chmod("/emr", 0o755)
    os.chmod(HOME, 0o755)
    if not os.path.islink(f"{HOME}/lib/info"):
        os.symlink(INFO, f"{HOME}/lib/info")


def run_action(service: Service, store: Store, about: dict[str, Any], action: dict[str, Any]) -> bool:
    """Run a bootstrap action; report its failure, and return whether it succeeded."""
    number = action["number"]
    logs = f"{about['logs']}/node/{about['instance_id']}/bootstrap-actions/{number}" if about["logs"] else ""
    run = Run(service, store, f"{LOGS}/bootstrap-actions/{number}", logs)
    script = f"{ACTION_DIRECTORY}/{number}/{os.path.basename(action['path'])}"
    how = "download"
    # Unkind: nothing says that blanks within an argument survive (docs/aws-behaviour.md 7.25).
    words = [word for argument in action["args"] for word in argument.split(" ")]
    if run.fetch(action["path"], script):
        how = run.execute([script, *words], f"/mnt/var/lib/bootstrap-actions/{number}", action["limit_s"])
    run.store()
    if how == "stopped":
        service.report("done")
    elif how != "done":
        service.report("failed", number=number, how=how)
    return how == "done"


def run_step(service: Service, store: Store, logs: str, step: dict[str, Any]) -> None:
    """Run a step, and report how it ended."""
    name = step["id"]
    run = Run(service, store, f"{LOGS}/hadoop/steps/{name}", f"{logs}/steps/{name}" if logs else "")
    directory, command = f"/mnt/var/lib/hadoop/steps/{name}", step["args"]
    fetched = True
    if step["path"]:
        script = f"{directory}/{os.path.basename(step['path'])}"
        fetched, command = run.fetch(step["path"], script), [script, *command]
    if fetched:
        run.execute(command, directory)
    run.store()
    service.report("done", step=name, code=run.code)


class Run:
    """A command under `hadoop`, with its logs: here, and in S3 unless `remote` is empty."""

    def __init__(self, service: Service, objects: Store, local: str, remote: str) -> None:
        self._service, self._objects, self._local, self._remote = service, objects, local, remote
        self.code: int | None = None
        os.makedirs(local, exist_ok=True)
        for name in ("controller", "stdout", "stderr"):
            open(f"{local}/{name}", "w").close()

    def log(self, level: str, text: str) -> None:
        moment = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        with open(f"{self._local}/controller", "a") as log:
            log.write(f"{stamp}.{int(moment * 1000) % 1000:03}Z {level} {text}\n")

    def fetch(self, path: str, target: str) -> bool:
        """Fetch a script from S3; return whether that worked."""
        self.log("INFO", f"Fetching file '{path}'")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            content = local_file(path) if path.startswith("file:") else self._objects.read(path)
        except (OSError, ValueError) as problem:
            self.log("ERROR", f"Failed to fetch '{path}': {problem}")
            return False
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, 0o755)
        return True

    def execute(self, command: list[str], directory: str, limit_s: float = math.inf) -> str:
        """Run a command; return how it ended: done, exit, timeout or stopped."""
        os.makedirs(directory, exist_ok=True)
        own(directory)
        self.log("INFO", f"startExec '{' '.join(command)}'")
        self.log("INFO", f"Working dir {directory}")
        begun = time.monotonic()
        try:
            process = self._start(command, directory)
        except OSError as problem:
            self.log("ERROR", f'Cannot run program "{command[0]}": {problem.strerror}')
            self.code = 127
            return "exit"
        if too_long := self._watch(process, begun + limit_s):
            return self._stop(process, too_long)
        self.code = process.returncode
        self.log("INFO", f"waitProcessCompletion ended with exit code {self.code} : {command[0]}")
        self.log("INFO", f"total process run time: {time.monotonic() - begun:.0f} seconds")
        return "exit" if self.code else "done"

    def _watch(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """Wait for the end of a process, and store its logs now and then; return why it must be ended, or ""."""
        stored = time.monotonic()
        while process.poll() is None:
            if time.monotonic() > deadline:
                return "timeout"
            if self._service.report("tick").get("stop"):
                return "stopped"
            if time.monotonic() - stored > _STORE_EVERY_S:
                self.store()
                stored = time.monotonic()
            wait(process, _TICK_S)
        return ""

    def _start(self, command: list[str], directory: str) -> subprocess.Popen[bytes]:
        account = pwd.getpwnam(USER)
        groups = os.getgrouplist(USER, account.pw_gid)
        with open(f"{self._local}/stdout", "wb") as out, open(f"{self._local}/stderr", "wb") as err:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=environment(account.pw_dir),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                user=account.pw_uid,
                group=account.pw_gid,
                extra_groups=groups,
            )

    def _stop(self, process: subprocess.Popen[bytes], how: str) -> str:
        # It is not reaped before the last line, so its number can't be another's.
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(_TICK_S)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.code = process.returncode
        self.log("ERROR", f"the process was ended: {how}")
        return how

    def store(self) -> None:
        """Store the logs in S3, as far as the instance profile may."""
        for name in ("controller", "stdout", "stderr") if self._remote else ():
            with open(f"{self._local}/{name}", "rb") as log:
                content = gzip.compress(log.read())
            try:
                self._objects.write(f"{self._remote}/{name}.gz", content)
            except (OSError, ValueError) as problem:
                self.log("ERROR", f"Failed to store {name}.gz: {problem}")
                return


def local_file(path: str) -> bytes:
    """Read a file of the image, such as file:/bin/echo."""
    with open(path[len("file:") :], "rb") as file:
        return file.read()


def wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end of a process; return whether it has ended."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def environment(home: str) -> dict[str, str]:
    """Return the variables of a login, with those of /etc/environment."""
    found = {"HOME": home, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
    with open("/etc/environment") as lines:
        pairs = (line.strip().partition("=") for line in lines if "=" in line)
        found.update({name: value.strip('"') for name, _equals, value in pairs})
    return found


class Store:
    """S3, with the credentials of the instance's role, which may lack rights for `patience_s`."""

    def __init__(self, region: str, patience_s: float) -> None:
        self._region, self._patient_until = region, time.monotonic() + patience_s
        self._endpoint = os.environ.get("AWS_ENDPOINT_URL") or environment("/")["AWS_ENDPOINT_URL"]

    def read(self, uri: str) -> bytes:
        return self._insist("GET", uri, b"")

    def write(self, uri: str, content: bytes) -> None:
        self._insist("PUT", uri, content)

    def _insist(self, method: str, uri: str, content: bytes) -> bytes:
        """Make a request; try again while the role's credentials or rights are not there yet."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._request(method, uri, content, credentials())
            except (OSError, ValueError) as problem:
                if not may_pass(problem, time.monotonic() < self._patient_until) or time.monotonic() > end:
                    raise
                time.sleep(_TICK_S)

    def _request(self, method: str, uri: str, content: bytes, keys: dict[str, str]) -> bytes:
        bucket_and_key = uri.partition("://")[2]
        path = urllib.parse.quote(f"/{bucket_and_key}", safe="/~-._")
        host = urllib.parse.urlsplit(self._endpoint).netloc
        headers = sign(method, host, path, content, self._region, keys)
        request = urllib.request.Request(
            f"{self._endpoint}{path}", content if method == "PUT" else None, headers, method=method
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            return answer.read()


def may_pass(problem: Exception, is_new: bool) -> bool:
    """Whether a failure may be one of a new instance: no credentials or rights yet, or no connection."""
    codes = (401, 403, 429, 500, 503) if is_new else (401, 429, 500, 503)
    return not isinstance(problem, urllib.error.HTTPError) or problem.code in codes


def credentials() -> dict[str, str]:
    """Return the role's credentials. Raises ValueError while the metadata service has none."""
    token = imds("PUT", "/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    header = {"X-aws-ec2-metadata-token": token}
    base = "/meta-data/iam/security-credentials/"
    found = json.loads(imds("GET", base + imds("GET", base, header), header))
    if found.get("Code") != "Success":
        raise ValueError(found.get("Message", "no credentials"))
    return found


def imds(method: str, path: str, headers: dict[str, str]) -> str:
    try:
        request = urllib.request.Request(IMDS + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as problem:
        raise ValueError(f"the metadata service has no {path}: {problem.code}") from None


def sign(method: str, host: str, path: str, content: bytes, region: str, keys: dict[str, str]) -> dict[str, str]:
    """Return the headers of a request to S3, signed by Signature Version 4."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest = hashlib.sha256(content).hexdigest()
    headers = {
        "host": host,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        "x-amz-security-token": keys["Token"],
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join((method, path, "", lines, names, digest))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys['SecretAccessKey']}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{keys['AccessKeyId']}/{scope}"
    headers["content-type"] = "binary/octet-stream"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    return headers


if __name__ == "__main__":
    main()
