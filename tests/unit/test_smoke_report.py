"""What `make smoke-aws` says before it creates anything, and what it costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from dataclasses import replace
from fnmatch import fnmatchcase
from types import SimpleNamespace

import pytest
from benchmarks import smoke_cost
from benchmarks.__main__ import machine
from benchmarks.measure import ROOT
from benchmarks.smoke import Smoke, agrees
from benchmarks.smoke_report import Report, Step
from clusters import FACTS, aws_spec

from phalanx import connection
from phalanx.errors import CloudError
from phalanx.plan.plan import make_plan
from phalanx.template import synthesize
from phalanx.template.policy import policy

IDENTITY = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/ann"}


def answer_as(monkeypatch, call):
    monkeypatch.setattr(connection, "connect", lambda *_: SimpleNamespace(call=call))


@pytest.fixture
def a_smoke(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Smoke, "phalanx", lambda smoke, *arguments: smoke.report.say(f"$ phalanx {' '.join(arguments)}")
    )
    return Smoke("aws", "us-east-1", "198.51.100.7/32", tmp_path, Report(tmp_path / "report"))


def test_it_costs_less_than_20_cents_and_the_page_says_the_same():
    assert smoke_cost.total_usd() < 0.20
    page = (ROOT / "docs" / "aws-smoke.md").read_text()
    assert f"**${smoke_cost.total_usd():.2f}**" in page
    assert all(item.what in page for item in smoke_cost.bill() if "disk" not in item.what and "shared" not in item.what)


def test_the_pages_policy_allows_all_that_phalanx_policy_names():
    """It is shorter, and bound to roles with the name of such a cluster; what takes no resource needs all of them."""
    (text,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "aws-smoke.md").read_text(), re.DOTALL)
    allowed = {str(one["Resource"]): one["Action"] for one in json.loads(text)["Statement"]}
    spec = aws_spec(name="smoke-0a1b2c", nodes=2, min=2, type="t3.small", throughput="bursting", keep="no")
    document = json.loads(synthesize(make_plan(spec, replace(FACTS, cloud="aws"))))
    for needed in policy(document, spec.name)["Statement"]:
        lists = [allowed["*"]] if needed["Resource"] == ["*"] else list(allowed.values())
        patterns = [pattern for one in lists for pattern in ([one] if isinstance(one, str) else one)]
        actions = [needed["Action"]] if isinstance(needed["Action"], str) else needed["Action"]
        assert [one for one in actions if not any(fnmatchcase(one, pattern) for pattern in patterns)] == []


def test_a_volunteers_machine_is_described_also_where_linux_does_not_run(monkeypatch):
    """It is the last line before the report, and macOS counts its cores otherwise."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="abc\n"))
    assert machine()["cores"] == os.cpu_count()


def test_the_question_shows_account_region_and_price(a_smoke, monkeypatch, capsys):
    answer_as(monkeypatch, lambda *_: IDENTITY)
    assert agrees(a_smoke, assumed=True)
    shown = capsys.readouterr().out
    assert "account  123456789012, as arn:aws:iam::123456789012:user/ann" in shown
    assert "region   us-east-1" in shown
    assert "$ phalanx plan" in shown
    assert f"${smoke_cost.total_usd():.2f}" in shown
    written = (a_smoke.report.directory / "output.txt").read_text()
    assert "account  <account>, as arn:aws:iam::<account>:user/<user>" in written


def test_without_a_terminal_nothing_is_created_unasked(a_smoke, monkeypatch):
    answer_as(monkeypatch, lambda *_: pytest.fail("it must not call AWS yet"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(SystemExit, match="--yes creates the cluster without a question"):
        agrees(a_smoke, assumed=False)


def test_missing_credentials_are_no_traceback(a_smoke, monkeypatch):
    def refuse(*_):
        raise CloudError("no AWS credentials were found", "Run `aws configure`.")

    answer_as(monkeypatch, refuse)
    with pytest.raises(SystemExit, match="no AWS credentials were found\nRun `aws configure`"):
        agrees(a_smoke, assumed=True)


def test_the_archive_has_each_step_and_no_secret(tmp_path, capsys):
    report = Report(tmp_path / "smoke")
    report.add(Step("it comes up", 1.5))
    report.add(Step("hello", 0.1, "52.94.236.248 refused AKIAIOSFODNN7EXAMPLE"))
    report.add_boot_logs({"10.0.0.4": "account 123456789012", "2026/11/22/[$LATEST]f": "x"})
    with tarfile.open(report.close({"region": "us-east-1"})) as archive:
        files = {name.partition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert set(texts) == {"output.txt", "report.json", "boot-logs/10.0.0.4.log", "boot-logs/2026_11_22_[$LATEST]f.log"}
    document = json.loads(texts["report.json"])
    assert not document["passed"]
    assert document["steps"][1]["problem"] == "<address> refused <key id>"
    assert texts["boot-logs/10.0.0.4.log"] == "account <account>\n"
    assert "FAILED: <address> refused <key id>" in texts["output.txt"]
