"""AWS Control Tower's rules, by its own program cfn-guard: each one that a template breaks is excused with a reason."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import other_programs
import pytest
import yaml
from terminals import a_terminal

pytestmark = pytest.mark.long

EXCUSED = yaml.safe_load((Path(__file__).parent / "control-tower.yaml").read_text())["excused"]
PACKAGE = "@cdklabs/cdk-validator-cfnguard@0.0.62"
SPECS = (
    "type: c5.large",
    "type: p4d.24xlarge",
    "down_after: 7d",
    "storage: lustre",
    "network: {access: private}\nimage: dlami-base",
    "storage: head\nmetrics: yes",
    "capacity: spot\nhead: {type: m5.large}\nplacement: cluster",
    "idle: 1h\nlease: 8h\nmail: team@example.org",
    "cloud: emr\ntype: m5.xlarge\nssh_from: 203.0.113.7/32\nemr: {logs: s3://my-bucket/emr}",
)


def test_every_rule_that_a_template_breaks_is_excused_and_no_excuse_is_left_over(tmp_path: Path):
    package, templates = other_programs.npm_package(PACKAGE), tmp_path / "templates"
    templates.mkdir()
    with a_terminal("") as terminal:
        for number, spec in enumerate(SPECS):
            text = f"name: judged\nregion: us-east-1\nnodes: 4\n{spec}\n"
            made = terminal.beside(f"judged-{number}", text).phalanx("template")
            (templates / f"{number}.json").write_text(made.stdout)
    program, rules = package / "bin/ubuntu/x86_64/cfn-guard", package / "rules/control-tower/cfn-guard"
    program.chmod(0o755)
    options = ["--show-summary", "none", "--output-format", "json", "--structured"]
    command = [program, "validate", "--data", templates, "--rules", rules, *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    broken = set(broken_rules(json.loads(done.stdout)))
    print(f"JUDGED cfn-guard: {len([*rules.rglob('*.guard')])} rules, {len(SPECS)} templates, broken: {len(broken)}")
    assert broken == set(EXCUSED)
    of_files = {rule: path.stem.replace("-", ".").upper() for path in rules.rglob("*.guard") for rule in named(path)}
    assert {rule: excuse["control"] for rule, excuse in EXCUSED.items()} == {rule: of_files[rule] for rule in EXCUSED}


def named(path: Path) -> list[str]:
    """Return the names of the rules in a file of cfn-guard."""
    return re.findall(r"^rule (\w+)", path.read_text(), re.MULTILINE)


def broken_rules(report: list[dict[str, Any]]) -> Iterator[str]:
    for file in report:
        yield from (one["Rule"]["name"] for one in file["not_compliant"])
