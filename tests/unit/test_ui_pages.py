"""The pages of `phalanx ui`: who gets an answer, what changes something, and what is said of what goes wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted_causes import event, of_stack, signalled
from starlette.testclient import TestClient
from ui_queries import HOSTILE, JOB, MadeQueries

from phalanx.aws.model import StackEvent
from phalanx.errors import JobError
from phalanx.runner.files import ring
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.load import Load, pack
from phalanx.ui import queries as real
from phalanx.ui.door import Door
from phalanx.ui.pages import application

PAGES = ["/", "/clusters/demo", f"/clusters/demo/jobs/{JOB}", f"/kept/gone/{JOB}"]
ANSWERS = ["/api/clusters", "/api/clusters/demo", f"/api/clusters/demo/jobs/{JOB}", "/api/clusters/demo/events"]
LOG = f"/api/clusters/demo/jobs/{JOB}/log"
STOP = f"/api/clusters/demo/jobs/{JOB}/stop"


def slot(at_s: int) -> bytes:
    return ring._TIME.pack(at_s) + pack(Load(cores=1.0))


class Visitor:
    """A browser at the page's address; `entered`: it has opened the link."""

    def __init__(self, made: MadeQueries, entered: bool = True) -> None:
        self.made, self.door = made, Door(application(made, lambda: False), 8400)
        self.client = TestClient(self.door, base_url=self.door.origin, raise_server_exceptions=False)
        if entered:
            assert self.enter(self.door.link.partition("#")[2]).status_code == 204

    def enter(self, key: str):
        return self.client.post("/enter", headers={"X-Phalanx-Key": key, "Origin": self.door.origin})

    @property
    def token(self) -> str:
        found = re.search(r'name="phalanx-token" content="([^"]*)"', self.client.get("/").text)
        assert found
        return found[1]

    def stop(self, **headers: str):
        own = {"Origin": self.door.origin, "X-Phalanx-Token": self.token}
        sent = {name: value for name, value in {**own, **headers}.items() if value}
        return self.client.post(STOP, headers=sent)


@pytest.fixture
def visitor() -> Visitor:
    return Visitor(MadeQueries())


@pytest.mark.parametrize("path", [*PAGES, *ANSWERS, LOG, f"{LOG}.txt", "/api/nothing"])
def test_nobody_gets_an_answer_without_the_cookie(path):
    outsider = Visitor(MadeQueries(text="secret text"), entered=False)
    got = outsider.client.get(path)
    assert got.status_code == 403 and "secret text" not in got.text
    assert not any(secret in got.text for secret in (outsider.door._cookie, outsider.door._key, outsider.door._token))


def test_the_link_works_once_and_gives_a_cookie_that_scripts_and_other_sites_can_t_use():
    visitor = Visitor(MadeQueries(), entered=False)
    key = visitor.door.link.partition("#")[2]
    assert visitor.enter("guess").status_code == visitor.enter("").status_code == 403
    cookie = visitor.enter(key).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(cookie.split("; ")) and "Domain" not in cookie
    assert key not in cookie
    assert visitor.client.get("/api/clusters").status_code == 200
    other = TestClient(visitor.door, base_url=visitor.door.origin)
    again = other.post("/enter", headers={"X-Phalanx-Key": key, "Origin": visitor.door.origin})
    assert again.status_code == 403 and "Set-Cookie" not in again.headers


def test_the_key_is_behind_a_hash_and_each_page_has_a_random_name():
    links = [Visitor(MadeQueries(), entered=False).door.link for _ in range(2)]
    form = r"http://phalanx-[0-9a-f]{16}\.localhost:8400/enter#[\w-]{43}"
    assert all(re.fullmatch(form, link) for link in links)
    assert links[0][:35] != links[1][:35]


@pytest.mark.parametrize("host", ["127.0.0.1:8400", "localhost:8400", "evil.example", "demo.localhost:8400", ""])
@pytest.mark.parametrize("path", ["/", "/enter", "/static/page.js", LOG])
def test_a_request_by_another_name_gets_no_answer(visitor, host, path):
    assert visitor.client.get(path, headers={"Host": host}).status_code == 421


def test_the_port_is_part_of_the_name(visitor):
    assert visitor.client.get("/", headers={"Host": visitor.door._host.replace("8400", "8401")}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        # Another port of the same name, or another name below localhost.
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://other.localhost:8400"},
    ],
)
@pytest.mark.parametrize("path", [*PAGES, *ANSWERS, LOG, "/static/page.js"])
def test_another_page_gets_no_answer_even_with_the_cookie(visitor, headers, path):
    got = visitor.client.get(path, headers=headers)
    assert got.status_code == 403 and not [name for name in got.headers if name.startswith("access-control")]


def test_a_job_is_stopped_by_the_page_itself_only(visitor):
    for headers in (
        {"X-Phalanx-Token": ""},
        {"X-Phalanx-Token": "guess"},
        {"Origin": ""},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Cookie": "phalanx-ui=guess"},
        {"Host": "127.0.0.1:8400"},
    ):
        assert visitor.stop(**headers).status_code in (403, 421), headers
    assert visitor.client.get(STOP).status_code == 405
    assert visitor.made.stopped == []
    assert visitor.stop().status_code == 200
    assert visitor.made.stopped == [JOB]


@pytest.mark.parametrize("path", [*PAGES, *ANSWERS, "/enter", "/static/page.js", "/nothing"])
def test_every_answer_forbids_what_is_not_its_own(visitor, path):
    headers = visitor.client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("path", [*PAGES, "/enter"])
def test_a_page_has_landmarks_and_nothing_inline_or_from_elsewhere(visitor, path):
    text = visitor.client.get(path).text
    assert '<html lang="en">' in text and "<main" in text and "<nav" in text and "<h1" in text
    assert not re.search(r"<script(?![^>]* src=)|<style|\bstyle=|\bon\w+=|https?://|javascript:", text)
    for place in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        assert visitor.client.get(place).status_code == 200


def test_scripts_write_text_and_never_markup():
    for path in (Path(real.__file__).parent / "static").glob("*.js"):
        if path.name != "uplot.js":
            text = path.read_text()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text)


def test_what_a_job_named_reaches_the_page_as_escaped_text(visitor):
    visitor.made.text = HOSTILE
    for path in ANSWERS:
        got = visitor.client.get(path)
        assert got.headers["Content-Type"] == "application/json"
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", got.json().__str__()), path


@pytest.mark.parametrize("path", ["/clusters/a..b", "/clusters/a%2Fb", "/clusters/-c", "/clusters/demo/jobs/--help"])
def test_what_can_t_be_a_name_is_no_page(visitor, path):
    for place in (path, f"/api{path}"):
        assert visitor.client.get(place).status_code == 404


def test_what_the_address_has_is_no_option_of_a_command():
    assert "--rank" not in real.Queries().log("demo", JOB)
    assert real.Queries().log("demo", JOB, "3")[-4:] == ["--rank", "3", "--", JOB]
    asked: list[str] = []
    visitor = Visitor(MadeQueries())
    visitor.made.load = lambda name, job, node: asked.append(node) or {}  # type: ignore[method-assign]
    visitor.client.get(f"/api/clusters/demo/jobs/{JOB}/load?node=--output=/tmp/x")
    assert asked == [""]


def test_a_job_whose_directory_is_gone_is_one_sentence(visitor):
    visitor.made.wrong = JobError(f"job {JOB} is not on cluster demo: its directory is gone", "Look.", code="no-job")
    got = visitor.client.get(f"/api/clusters/demo/jobs/{JOB}")
    assert got.status_code == 404
    assert got.json() == {"error": {"message": visitor.made.wrong.message, "hint": "Look."}}
    assert visitor.client.get("/api/clusters/demo").status_code == 200


def test_a_part_that_fails_leaves_the_others(monkeypatch):
    def fail(*_: object):
        raise JobError("the shared directory /efs does not answer", code="shared-silent")

    found = real.Queries()
    job = JobStatus(JOB, HOSTILE, "mpi", ("true",), JobState.RUNNING, 1.8e9)
    monkeypatch.setattr(found, "_cluster", lambda name: None)
    monkeypatch.setattr(found, "_state", lambda name: {"state": "CREATE_COMPLETE"})
    monkeypatch.setattr(found, "_jobs", lambda name: [job])
    monkeypatch.setattr(real, "loads_of", fail)
    shown = found.cluster("demo")
    assert shown["state"] == {"state": "CREATE_COMPLETE"} and shown["loads"] == []
    assert [one["id"] for one in shown["jobs"]] == [JOB] and "\\u202e" in shown["jobs"][0]["name"]
    assert shown["problems"] == ["The shared directory /efs does not answer."]


def test_events_are_read_on_from_the_last_and_a_failure_has_the_node_s_own_words(monkeypatch):
    asked: list[str | None] = []
    events = [event("nothing", "HeadGroup", "CREATE_COMPLETE"), signalled("boot step 'boot script' failed: \u202eno")]

    def since(_aws: object, _stack: str, after: str | None) -> list[StackEvent]:
        asked.append(after)
        return [replace(events[len(asked) - 1], event_id=str(len(asked)))]

    found = real.Queries()
    record = SimpleNamespace(stack_id="arn", aws=lambda: None)
    monkeypatch.setattr(found, "_cluster", lambda name: record)
    monkeypatch.setattr(real.stacks, "events", since)
    for _ in range(2):
        shown = found.events("demo")["events"]
        found._answers.forget(("events", "demo"))
    assert asked == [None, "1"] and [one["cause"] for one in shown] == [False, True]
    assert shown[1]["reason"] == "boot step 'boot script' failed: \\u202eno"


def test_a_creation_that_failed_has_its_events_after_its_stack_is_gone(monkeypatch):
    monkeypatch.setattr(real.evidence, "kept", lambda name: of_stack(event("no machine"), verdict="x"))
    (shown,) = real.Queries().events("broken")["events"]
    assert shown["cause"] and "no machine" in shown["reason"]


def test_the_plan_is_that_of_this_directory_and_a_mistake_in_the_file_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert real.Queries().plan() == {"plan": None, "problems": []}
    (tmp_path / "phalanx.yaml").write_text("name: seen\ncloud: nowhere\n")
    found = real.Queries().plan()
    assert found["plan"] is None and len(found["problems"]) == 1 and "nowhere" in found["problems"][0]
    (tmp_path / "phalanx.yaml").write_text("name: seen\ncloud: local\nnodes: 2\ntype: c5.large\n")
    rows = dict(real.Queries().plan()["plan"]["rows"])
    assert "seen" in rows["cluster"] and rows["cost"]
    monkeypatch.setattr(real, "known", lambda: ["seen"])
    assert real.Queries().plan() == {"plan": None, "problems": []}


def test_curves_of_other_jobs_are_beside_those_of_a_job_and_one_that_is_gone_is_named(monkeypatch):
    def read(_: str, job: str) -> dict[str, object]:
        if job == "gone":
            raise JobError("job gone is not on cluster demo: its directory is gone", code="no-job")
        names = ["loss", "own"] if job == "a" else ["loss", "other"]
        curves = [{"name": name, "place": "runs", "points": [(1, 2.0)]} for name in names]
        return {"label": job, "curves": curves, "problems": []}

    found = real.Queries()
    monkeypatch.setattr(found, "_read_curves", read)
    shown = found.curves("demo", "a", ["gone", "b", "a", "b"])
    assert [(one["name"], [line["label"] for line in one["lines"]]) for one in shown["charts"]] == [
        ("loss", ["a", "b"]),
        ("own", ["a"]),
    ]
    assert shown["problems"] == ["Job gone is not on cluster demo: its directory is gone."]


@pytest.mark.parametrize(
    ("ring_bytes", "samples", "says"),
    [
        (b"", 0, []),
        (b"phalanx-load-1\n".ljust(64, b"\0") + b"\1" * 400, 0, ["another layout"]),
        (b"\xff" * 64, 0, ["another layout"]),
        # Cut within a slot, and with a slot of numbers that no node can have.
        (ring._HEADER.ljust(64, b"\0") + slot(7) + ring._TIME.pack(9) + b"\xff" * ring.PACKED.size + b"\1\2", 1, []),
    ],
)
def test_a_ring_of_another_version_cut_short_or_damaged_is_a_sentence_or_left_out(
    monkeypatch, ring_bytes, samples, says
):
    found = real.Queries()
    record = SimpleNamespace(remote=lambda: None, shared="/efs", name="demo")
    monkeypatch.setattr(found, "_cluster", lambda name: record)
    monkeypatch.setattr(real.toolbox, "run", lambda *_, **__: SimpleNamespace(stdout=ring_bytes))
    shown = found.load("demo", JOB, "deeplearning-worker1")
    assert len(shown["samples"]) == samples and len(shown["problems"]) == len(says)
    assert all(text in problem for text, problem in zip(says, shown["problems"], strict=True))


def test_pages_that_ask_at_once_share_an_answer():
    answers, asked = real._Answers(), []
    assert [answers.get("jobs", lambda: asked.append(1) or 7) for _ in range(3)] == [7, 7, 7]
    answers.forget("jobs")
    answers.get("jobs", lambda: asked.append(2))
    assert asked == [1, 2]
