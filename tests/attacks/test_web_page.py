"""A web page in the user's browser, and another user of this machine: neither gets an answer from the local cloud.

A page of any origin can make the browser send a GET, or a POST of a form or of text, to 127.0.0.1; with a name that
resolves there (DNS rebinding) it can also add headers and read the answer. It knows no key.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from local_clouds import endpoint
from ports import free_port
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: page\ncloud: local\nnodes: 1\nmin: 1\ntype: c5.large\nshared: /efs\nkeep: no\n"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TEXT = {"Content-Type": "text/plain"}
EVIL = {"Origin": "http://evil.example", "Host": "evil.example"}
SCOPE = "20260101/us-east-1/cloudformation/aws4_request"
DELETE = "Action=DeleteStack&StackName=page&Version=2010-05-15"
REQUESTS = {
    "the status": ("GET", "/_localcloud/status", {}, ""),
    "an end by form": ("POST", "/_localcloud/stop", FORM, '{"force": true}'),
    "an end by text": ("POST", "/_localcloud/stop", TEXT, '{"force": true}'),
    "faults": ("POST", "/_localcloud/faults", TEXT, '{"launch_failures": 9}'),
    "a call of the API": ("POST", "/", FORM, DELETE),
    "a call in the address": ("GET", f"/?{DELETE}", {}, ""),
    "a call with somebody's key": (
        "POST",
        "/",
        {**FORM, "Authorization": f"AWS4-HMAC-SHA256 Credential=AKIA/{SCOPE}, SignedHeaders=host, Signature=0"},
        DELETE,
    ),
    "a bucket": ("GET", "/bucket/key", {}, ""),
    "what moto offers": ("GET", "/moto-api/data.json", {}, ""),
    "moto's reset": ("POST", "/moto-api/reset", TEXT, ""),
    "moto's recorder": ("POST", "/moto-api/recorder/start-recording", TEXT, ""),
    "a signal of a node": ("PUT", "/waitcondition/guess", {}, '{"Status": "FAILURE", "UniqueId": "x", "Reason": "x"}'),
    "leave to ask across origins": ("OPTIONS", "/", {"Access-Control-Request-Method": "PUT"}, ""),
}
# Imported first: the interpreter may be in a directory that only root can enter.
BECOME = "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)"
HOLD = (Path(__file__).parent / "hold_connections.py").read_text()
# Runs as another user in a separate process, and prints what it got.
LOOK = f"""
{BECOME}
for path in sys.argv[1:]:
    try:
        if os.path.basename(path).endswith(".sock") or os.stat(path).st_mode & 0o170000 == 0o140000:
            socket.socket(socket.AF_UNIX).connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path).close()
    except OSError:
        continue
    print(path)
"""


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        # Another user can enter the directories above the state directory, so only its own permissions protect it.
        terminal.state.parent.chmod(0o755)
        yield terminal


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("headers", [{}, EVIL], ids=["from any origin", "rebound"])
def test_a_page_gets_no_answer_and_changes_nothing(terminal, request_, headers):
    method, path, own, body = request_
    there = http.client.HTTPConnection(urlsplit(endpoint(terminal)["url"]).netloc, timeout=240)
    there.request(method, path, body.encode(), {**own, **headers})
    answer = there.getresponse()
    reported = answer.read().decode()
    there.close()
    assert answer.status in (403, 405), reported
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert endpoint(terminal)["secret_access_key"] not in reported
    assert json.loads(terminal.phalanx("ls", "--json").stdout)[0]["state"] == "CREATE_COMPLETE"


def test_nobody_but_this_machine_reaches_the_api(terminal):
    host, port = urlsplit(endpoint(terminal)["url"]).netloc.split(":")
    assert host == "127.0.0.1"
    outside = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    for address in {address for address in outside if not address.startswith("127.")}:
        with socket.socket() as probe, pytest.raises(OSError):
            probe.settimeout(2)
            probe.connect((str(address), int(port)))


def test_what_others_may_look_at_holds_no_key(terminal):
    """Every file of the state directory, except public keys, is private, by its own mode or by its directory's."""
    for path in (path for path in terminal.state.rglob("*") if not path.is_symlink()):
        inside = [parent for parent in (path, *path.parents) if terminal.state in parent.parents]
        closed = any(not stat.S_IMODE(one.lstat().st_mode) & 0o077 for one in inside)
        assert closed or path.is_dir(), path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user_reads_and_connects_to_nothing(terminal):
    terminal.on("head", "true")
    control = Path("/tmp") / f"phalanx-{os.getuid()}"
    sockets = [path for path in control.rglob("*") if path.is_socket()]
    files = [path for path in terminal.state.rglob("*") if "efs" not in path.parts and not path.is_symlink()]
    places = [control, terminal.state / "local", terminal.state / "clusters/page", *files, *sockets]
    got = subprocess.run(
        [sys.executable, "-I", "-c", LOOK, *map(str, places)], capture_output=True, text=True, timeout=240
    )
    assert got.returncode == 0, got.stderr
    assert got.stdout.split() in ([], [str(terminal.state / "clusters")]), got


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user_s_unfinished_requests_shut_nobody_out(terminal):
    there = urlsplit(endpoint(terminal)["url"]).netloc
    imported = "import encodings.idna, select, socket, sys, threading, time"
    command = [sys.executable, "-I", "-c", f"{imported}\n{BECOME}\n{HOLD}", there, "headers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout and other.stdout.readline() == "holding\n"
            ours = http.client.HTTPConnection(there, timeout=240)
            ours.request("GET", "/_localcloud/status")
            # Not that the local cloud is busy.
            assert ours.getresponse().status == 403
            ours.close()
        finally:
            other.kill()


# A page of a job. It notes the cookies that it gets, sets some, and sends the browser on to where it likes. Each
# connection has a thread, because Chromium opens some on which it asks nothing yet.
PAGE = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/efs/cookies", "a") as kept:
            print(self.headers["Host"].partition(":")[0], self.headers["Cookie"], file=kept)
        path, _, away = self.path.partition("?")
        self.send_response(302 if away else 200)
        self.send_header("Set-Cookie", "job=%s; Max-Age=999; Path=/" % path[1:])
        self.send_header("Set-Cookie", "wide=%s; Max-Age=999; Path=/; Domain=localhost" % path[1:])
        if away:
            self.send_header("Location", away)
        self.end_headers()
        self.wfile.write(b"a page")
http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Page).serve_forever()
"""
CHROMIUM = "chromium --headless --no-sandbox --disable-gpu --user-data-dir={jar} --dump-dom {url}"


class Browser:
    """Keeps cookies as browsers do, by hosts and not by ports, and follows a page that sends it on."""

    def __init__(self) -> None:
        self._jar: dict[str, dict[str, str]] = {}

    def visit(self, url: str) -> str:
        for _ in range(5):
            parts = urlsplit(url)
            own = self._jar.setdefault(parts.hostname or "", {})
            page = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)
            headers = {"Host": parts.netloc, "Sec-Fetch-Mode": "navigate"}
            if own:
                headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in own.items())
            try:
                page.request("GET", url.partition(parts.netloc)[2], headers=headers)
                answer = page.getresponse()
                body = answer.read().decode()
            except OSError:
                return ""
            finally:
                page.close()
            for line in answer.headers.get_all("Set-Cookie") or ():
                # No browser takes a cookie for all of localhost.
                if "Domain=" not in line:
                    own.update([line.partition(";")[0].split("=", 1)])
            if "Location" not in answer.headers:
                return body
            url = urljoin(url, answer.headers["Location"])
        return ""


class Service(BaseHTTPRequestHandler):
    """A service of the user's on this machine, with a cookie as Jupyter has it."""

    def do_GET(self):
        self.server.got.append(self.headers["Cookie"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Set-Cookie", "token=secret; Max-Age=999; Path=/; HttpOnly")
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("browser", ["plain", "chromium"])
def test_a_page_of_a_job_gets_and_sets_no_cookie_of_other_services_of_this_machine(terminal, tmp_path, browser):
    if browser == "chromium" and not shutil.which("chromium"):
        pytest.skip("chromium is not on this machine")
    plain = Browser()
    terminal.on("head", f"rm -f /efs/cookies; cat > /tmp/page.py <<'END'\n{PAGE}END")
    terminal.on("head", "(setsid python3 /tmp/page.py > /dev/null 2>&1 & echo $! > /tmp/page.pid)")
    port = free_port()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.got = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever).start()
    own = f"http://127.0.0.1:{server.server_port}/"

    def visit(url: str) -> str:
        if browser == "plain":
            return plain.visit(url)
        argv = shlex.split(CHROMIUM.format(jar=tmp_path / "jar", url=url))
        return subprocess.run(argv, capture_output=True, text=True, timeout=240).stdout

    with terminal.start("forward", f"{port}:8123") as forwarding:
        try:
            assert forwarding.stdout
            page = forwarding.stdout.readline().strip()
            visit(own)
            wait = time.monotonic() + 60
            while "a page" not in visit(f"{page}/first") and time.monotonic() < wait:
                time.sleep(0.2)
            for host in ("127.0.0.1", "localhost"):
                visit(f"{page}/away?http://{host}:{port}/stolen")
                visit(f"http://{host}:{port}/asked")
            visit(own)
        finally:
            forwarding.terminate()
            server.shutdown()
            server.server_close()
            terminal.on("head", "kill $(cat /tmp/page.pid)")
    seen = terminal.on("head", "cat /efs/cookies")
    assert "job=" in seen
    assert "token=secret" not in seen
    assert "page.localhost" in seen
    first, *others = server.got  # type: ignore[attr-defined]
    # Chromium also looks for an icon.
    assert (first, {*others}) == (None, {"token=secret"})
