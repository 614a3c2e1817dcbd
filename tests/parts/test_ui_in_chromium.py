"""The pages of `phalanx ui` in a real Chromium, with made clusters: what it shows, forbids and bears."""

from __future__ import annotations

import http.server
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, a_browser
from ui_queries import HOSTILE, JOB, OTHER, MadeQueries

from phalanx.errors import ClusterError, JobError
from phalanx.ui.server import Page

FIRST_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
READY = "return [...document.querySelectorAll('.tile')].filter((one) => one.textContent).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@contextmanager
def serving(made: MadeQueries) -> Iterator[Page]:
    """Serve pages on this machine in a thread."""
    page = Page(made)
    is_ready = threading.Event()
    thread = threading.Thread(target=page.serve, args=(lambda _: is_ready.set(),))
    thread.start()
    is_ready.wait(30)
    try:
        yield page
    finally:
        page.end()
        thread.join(30)


@contextmanager
def opened(browser: Browser, made: MadeQueries, path: str = "/") -> Iterator[Page]:
    """Serve pages, open their link, and visit one; nothing may be forbidden that the page itself wants."""
    with serving(made) as page:
        browser.visit(page.door.link)
        browser.wait(lambda: browser.count("#clusters"), "the list of clusters")
        if path != "/":
            browser.visit(page.door.origin + path)
        browser.said()
        yield page
        assert not [line for line in browser.said() if "Security Policy" in line or "TypeError" in line]
        browser.visit("about:blank")


def test_the_link_opens_the_page_once_and_leaves_no_key_in_the_address(browser):
    with serving(MadeQueries()) as page:
        browser.visit(page.door.link)
        browser.wait_for("demo", "#clusters")
        assert browser.run("return location.href") == f"{page.door.origin}/"
        assert "phalanx" not in browser.run("return document.cookie")
        with a_browser() as other:
            other.visit(page.door.link)
            other.wait_for("another one", "#entry")
            other.visit(f"{page.door.origin}/clusters/demo")
            assert "demo" not in other.text("#main")


@pytest.mark.parametrize("path", ["/clusters/demo", f"/clusters/demo/jobs/{JOB}"])
def test_text_of_a_job_is_text_on_every_page(browser, path):
    made = MadeQueries(text=HOSTILE, output=f"print({HOSTILE!r})")
    with opened(browser, made, path):
        browser.wait_for("<img src=x", "#main")
        if "jobs" in path:
            browser.wait_for("window.pwned=1", "#log")
            browser.wait_for("<script>", "#curves")
            browser.click("#ask-stacks")
            browser.wait_for("<img src=x", "#stacks")
        assert browser.count("#main img, #main script") == 0
        assert browser.run("return window.pwned === undefined")
        assert "\u202e" not in browser.text() and "\\u202e" in browser.text()


def test_four_hundred_nodes_are_there_within_a_second(browser):
    with opened(browser, MadeQueries(nodes=400), "/clusters/demo"):
        painted_ms = []
        # This machine may have other work at one of these moments.
        for _ in range(3):
            browser.run("location.reload()")
            browser.wait(lambda: browser.run(READY) == 400, "400 tiles")
            painted_ms.append(browser.wait(lambda: browser.run(FIRST_PAINT), "the first paint"))
        assert min(painted_ms) <= 1000
        browser.click(".tile:nth-child(7)")
        browser.wait_for("deeplearning-worker7 ", "#node")
        browser.type(".tile:nth-child(7)", "ArrowRight")
        assert browser.run("return document.activeElement.getAttribute('aria-label')").startswith(
            "worker8: 5.0 of 8 cores"
        )


def test_a_node_that_falls_silent_is_marked(browser):
    made = MadeQueries()
    with opened(browser, made, "/clusters/demo"):
        browser.wait(lambda: browser.count(".tile.ready") == 4, "four nodes")
        made.silent = {"deeplearning-worker3"}
        browser.wait_for("silent", ".tile.silent")


def test_a_curve_grows(browser):
    made = MadeQueries(text="loss")
    with opened(browser, made, f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.count("#curves figure[data-points='20'] canvas"), "the curve")
        made.curves_["loss"].append([20, 0.5])
        browser.wait_for("0.5 at 20", "#curves figcaption")


def test_curves_of_another_job_are_drawn_in_the_same_charts(browser):
    with opened(browser, MadeQueries(text="loss"), f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.count("#curves canvas") == 1, "the curve")
        browser.click("#compare summary")
        browser.wait(lambda: browser.count("#others input") == 1, "the other job")
        browser.click("#others input")
        browser.wait_for(f"╍ {OTHER}: 0.05 at 19", "#curves figcaption")
        assert f"━ {JOB}: 0.05 at 19" in browser.text("#curves figcaption") and browser.count("#curves canvas") == 1


def test_events_of_a_stack_come_and_what_failed_first_is_named(browser):
    made = MadeQueries(text=HOSTILE)
    failed, made.events_ = made.events_[-1], made.events_[:1]
    made.state = "CREATE_IN_PROGRESS"
    with opened(browser, made, "/clusters/demo"):
        browser.wait_for("HeadGroup", "#events")
        assert browser.text("#stack-cause") == ""
        made.events_ = [*made.events_, failed]
        made.state = "ROLLBACK_IN_PROGRESS"
        browser.wait_for("Ready1 failed first: <img src=x", "#stack-cause")
        assert browser.count("#events tbody tr") == 2 and browser.count("#main img") == 0


def test_without_a_cluster_the_plan_and_its_price_are_there_and_creations_that_failed(browser):
    made = MadeQueries(text=HOSTILE)
    made.plan_ = {"file": "phalanx.yaml", "rows": [["nodes", "4 x c5.large"], ["cost", "$0.39 per hour"]]}
    with opened(browser, made) as page:
        browser.wait_for("$0.39 per hour", "#plan")
        browser.wait_for("<img src=x", "#plan-problems")
        browser.wait_for("broken", "#failed")
        assert browser.run("return document.querySelector('#failed a').href") == f"{page.door.origin}/clusters/broken"


MANY = "import sys\nfor n in range(1_000_000): sys.stdout.write(f'2026-11-27T00:00:00.000Z [0] line {n} of many\\n')\n"
FAST = "import time\nwhile True:\n print('x' * 40, flush=False)\n"


def test_a_log_of_a_million_lines_ends_with_its_last_and_takes_bounded_memory(browser):
    with opened(browser, MadeQueries(output=MANY), f"/clusters/demo/jobs/{JOB}"):
        browser.wait_for("line 999999 of many", "#log", within_s=60)
        browser.wait_for("The output has ended", "#log-state")
        assert browser.count("#log > div") <= 3000
        left_out = browser.run(
            "return [...document.querySelectorAll('.left-out')].map((one) => one.textContent).join()"
        )
        assert "left out" in left_out
        browser.type("#log-find", "line 4999 ")
        browser.wait(lambda: browser.count("#log > div") == 1, "one line", within_s=60)
        assert "line 4999 of many" in browser.text("#log")


def test_a_job_that_writes_without_pause_does_not_stop_the_page(browser):
    with opened(browser, MadeQueries(output=FAST), f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.count("#log > div") > 2000, "many lines")
        slowest_ms = browser.run(
            "return (async () => { let most = 0; for (let n = 0; n < 20; n++) { const at = performance.now() + 50;"
            "await new Promise((done) => setTimeout(done, 50)); most = Math.max(most, performance.now() - at); }"
            "return most; })()"
        )
        assert slowest_ms < 1000
        browser.click("#log-pause")
        before = browser.text("#log")
        browser.wait(lambda: browser.text("#log") == before, "a log that stands")


def test_a_job_is_stopped_after_a_question(browser):
    made = MadeQueries()
    with opened(browser, made, f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.run("return !document.getElementById('stop').hidden"), "the button")
        browser.click("#stop")
        browser.click("#stop-dialog button[value=no]")
        browser.click("#stop")
        assert made.stopped == []
        browser.click("#stop-dialog button[value=stop]")
        browser.wait(lambda: made.stopped == [JOB], "the stop")
        browser.wait_for("stopped", "#facts")


EVIL = """<!doctype html><title>evil</title><form id=f method=post action="{stop}"></form><script>
const tries = [fetch("{stop}", {{method: "POST", mode: "no-cors", credentials: "include"}}),
  fetch("{stop}", {{method: "POST", credentials: "include", headers: {{"X-Phalanx-Token": "guess"}}}}),
  fetch("{api}", {{credentials: "include"}}).then((got) => got.text()).then((text) => {{ window.got = text; }}),
  new Promise((done) => {{ const source = new EventSource("{log}", {{withCredentials: true}});
    source.onmessage = () => {{ window.got = "events"; }};
    source.onerror = () => {{ source.close(); done(); }}; }}),
  new Promise((done) => {{ const frame = document.createElement("iframe"); frame.src = "{page}"; frame.onload = done;
    document.body.append(frame); }})];
Promise.allSettled(tries).then(() => {{ document.title = "tried"; }});
</script>"""


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.localhost"])
def test_a_page_of_another_origin_stops_no_job_and_reads_nothing(browser, host):
    made = MadeQueries(output="print('secret output')")
    with opened(browser, made) as page:
        api = f"{page.door.origin}/api/clusters/demo/jobs/{JOB}"
        places = {"api": api, "stop": f"{api}/stop", "log": f"{api}/log", "page": f"{page.door.origin}/clusters/demo"}
        body = EVIL.format(**places).encode()

        class Evil(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
            threading.Thread(target=server.serve_forever).start()
            try:
                browser.visit(f"http://{host}:{server.server_port}/")
                browser.wait(lambda: browser.run("return document.title") == "tried", "all tries")
                assert browser.run("return window.got === undefined")
                browser.run("document.getElementById('f').submit()")
                browser.wait(lambda: browser.run("return location.href").startswith(api), "the form's answer")
                assert "demo" not in browser.text()
            finally:
                server.shutdown()
        assert made.stopped == []
        # The page itself still works.
        browser.visit(page.door.origin)
        browser.wait_for("demo", "#clusters")
        browser.said()


def test_a_job_that_is_gone_is_one_sentence_and_the_page_goes_on(browser):
    with opened(browser, MadeQueries(), "/clusters/demo/jobs/261127-999999-000000"):
        browser.wait_for("its directory is gone", "#trouble")
        assert browser.count("#ask-stacks") == 1


LOST = {
    "the job's directory": JobError(f"job {JOB} is not on cluster demo: its directory is gone", code="no-job"),
    "the head": ClusterError("the head of cluster demo does not answer", "Wait.", code="connection-lost"),
}


@pytest.mark.parametrize("what", LOST)
def test_what_is_lost_while_it_is_shown_is_one_sentence_and_what_was_there_stays(browser, what):
    made = MadeQueries(text="loss", output="import time; print('a line', flush=True); time.sleep(60)")
    with opened(browser, made, f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.count("#curves canvas") == 1 and browser.count("#load canvas") == 3, "curves")
        made.wrong = LOST[what]
        browser.wait_for(LOST[what].message, "#trouble")
        assert browser.text("#trouble").count(LOST[what].message) == 1 and browser.count("#curves canvas") == 1
        assert "a line" in browser.text("#log")
        made.wrong = None
        made.curves_["loss"].append([20, 0.5])
        browser.wait_for("0.5 at 20", "#curves figcaption")
        browser.wait(lambda: browser.text("#trouble") == "", "no trouble")


def test_a_file_that_can_t_be_read_is_named_and_the_rest_is_there(browser):
    made = MadeQueries(text="loss")
    made.problems = ["node.ring has another layout: this phalanx can't read it."]
    with opened(browser, made, f"/clusters/demo/jobs/{JOB}"):
        browser.wait_for("another layout", "#load-state")
        browser.wait_for("another layout", "#curves-state")
        assert browser.count("#curves canvas") == 1 and browser.count("#ranks tbody tr") == 1
        assert browser.text("#trouble") == ""


@pytest.mark.parametrize("width", [480, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_narrow_and_wide_windows_in_both_colours(width, dark):
    with a_browser(width, dark) as browser, serving(MadeQueries(output="print('[0] a line')")) as page:
        browser.visit(page.door.link)
        browser.wait_for("demo", "#clusters")
        for path in ("/", "/clusters/demo", f"/clusters/demo/jobs/{JOB}"):
            browser.visit(page.door.origin + path)
            browser.wait(lambda: browser.count("td"), "a table")
            assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
                path
            )
        browser.visit("about:blank")


def test_the_picture_of_the_documents_is_made(browser, tmp_path):
    """`PHALANX_PICTURES=docs pytest …` writes docs/ui.png."""
    made = MadeQueries(text="resnet50")
    made.curves_ = {
        "train/loss": [[step, 2.2 * math.exp(-step / 260) + 0.12 + 0.03 * math.sin(step * 1.7)] for step in range(900)],
        "validation/accuracy": [[step, 0.94 - 0.8 * math.exp(-step / 180)] for step in range(0, 900, 30)],
    }
    with opened(browser, made, f"/clusters/demo/jobs/{JOB}"):
        browser.wait(lambda: browser.count("#curves canvas") == 2 and browser.count("#load canvas") == 3, "charts")
        path = Path(os.environ.get("PHALANX_PICTURES", tmp_path)) / "ui.png"
        browser.picture(path)
    assert path.read_bytes().startswith(b"\x89PNG")
