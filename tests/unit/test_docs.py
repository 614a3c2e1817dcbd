"""The documents stay correct: every local link is valid, and every `phalanx` command in them exists."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import runpy
from dataclasses import replace
from pathlib import Path

import click
import pytest
from clusters import FACTS, aws_spec
from plans import CLOSED, PLANS

from phalanx import __version__
from phalanx.cli import cli
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc
from phalanx.plan.plan import make_plan, offline_facts
from phalanx.spec.spec_load import load
from phalanx.template import synthesize

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path for place in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in ROOT.glob(place))
OF_THE_LOCAL_CLOUD = sorted((ROOT / "localcloud").glob("**/*.md"))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)|src=\"(?!https?:)([^\"]+)\"")
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
COMMAND = re.compile(r"(?:^|[`$(] ?)phalanx ((?:local )?[a-z][a-z-]*)", re.MULTILINE)


WAYS = ((1, INTERNET), (2, NAT))


def without_quoted_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def heading_anchors(text: str) -> set[str]:
    """Return GitHub's anchors of headings: lower case, hyphens for spaces, without other punctuation."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [*DOCUMENTS, *OF_THE_LOCAL_CLOUD], ids=lambda path: str(path.relative_to(ROOT)))
def test_local_links_lead_somewhere(document: Path) -> None:
    for target, anchor, source in LINK.findall(without_quoted_code(document.read_text())):
        path = (document.parent / (target or source)) if target or source else document
        assert path.exists(), f"{document.name} links to {target or source}"
        if anchor:
            assert anchor[1:] in heading_anchors(path.read_text()), f"{document.name} links to {target}{anchor}"


def commands_of(text: str) -> list[str]:
    """Return the commands of phalanx in a page's code. In its prose, a sentence may begin with the name."""
    return [command for code in CODE.findall(text) for command in COMMAND.findall(code)]


def exists(path: list[str]) -> bool:
    """Whether `phalanx WORD [WORD]` is a command; `local status` is in a group."""
    command: click.Command | None = cli
    for word in path:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command is not None


def test_the_page_of_the_console_names_every_parameter_that_a_person_can_set() -> None:
    head, workers = (replace(CLOSED, subnet_id=f"subnet-0000000{number}", way_out=way) for number, way in WAYS)
    vpc = ExistingVpc(CLOSED.vpc, True, True, head, workers, ("10.1.0.0/16",))
    network = {"head_subnet": head.subnet_id, "worker_subnet": workers.subnet_id}
    public = make_plan(aws_spec(network=network), replace(FACTS, cloud="aws", vpc=vpc))
    labels = set()
    for plan in (*PLANS.values(), public):
        interface = json.loads(synthesize(plan))["Metadata"]["AWS::CloudFormation::Interface"]
        labels |= {one["default"] for one in interface["ParameterLabels"].values()}
    page = (ROOT / "docs/console.md").read_text()
    named = re.findall(r"^\| ([A-Z][^|]*|ssh from) \|", page, re.MULTILINE)
    assert sorted(named) == sorted(labels)


def test_every_page_is_in_a_menu_of_the_site() -> None:
    menus = set(re.findall(r"^docs/([\w/-]+)$", (ROOT / "docs/site/index.md").read_text(), re.MULTILINE))
    # `make site` writes the page of modules.
    pages = (path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "site")
    assert menus == {*(str(path.relative_to(ROOT / "docs").with_suffix("")) for path in pages), "modules"}


def test_the_page_of_modules_has_a_line_for_each() -> None:
    page = runpy.run_path(str(ROOT / "scripts/tree"))["tree"]()
    trees = (ROOT / "src/phalanx", ROOT / "localcloud/src/localcloud")
    modules = [path for tree in trees for path in tree.rglob("*.py") if path.name != "__init__.py"]
    assert len(re.findall(r"^ +\w+\.py +\S", page, re.MULTILINE)) == len(modules)


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_site_has_every_file_that_a_page_links_to(document: Path) -> None:
    patterns = re.findall(r"'(\S+)'", (ROOT / "scripts/site").read_text())
    for target, _, source in LINK.findall(without_quoted_code(document.read_text())):
        name = os.path.relpath(document.parent / (target or source or document.name), ROOT)
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), f"scripts/site does not copy {name}"


_JAPANESE = "unit/test_docs.py::test_japanese_pages_have_the_commands_of_the_english_ones"
# The test that runs a document's console blocks and programs: on a cluster or, if that takes long, as said beside it.
RUN_BY = {
    "README.md": "cluster/test_examples.py::test_the_five_commands_of_the_readme_run_one_after_the_other",
    "CONTRIBUTING.md": "unit/test_docs.py::test_targets_of_make_exist",
    # A rehearsal; its interruption is a test, and all of it is `make smoke-aws ENDPOINT=local`, which takes minutes.
    "docs/aws-smoke.md": "cluster/test_smoke.py::test_ctrl_c_ends_it_with_everything_deleted_and_a_report",
    "docs/watch.md": "cluster/test_engine_mpi.py::test_the_rank_for_which_the_others_wait_is_named_with_its_line",
    "docs/data.md": "cluster/test_examples.py::test_the_data_page_lists_what_it_says",
    "docs/getting-started.md": "cluster/test_examples.py::test_the_commands_of_getting_started_run_one_after_the_other",
    # By AWS's own command line, with these arguments.
    "docs/emr.md": "cluster/test_emr_of_others.py::test_the_bootstrap_action_mounts_the_file_system_on_every_node",
    # Builds an image for minutes.
    "docs/images.md": "unit/test_docs.py::test_the_image_of_the_page_is_what_make_full_os_builds",
    "docs/older-tutorials.md": "cluster/test_examples.py::test_what_took_the_place_of_older_commands_runs",
    # For AWS, with a policy of the reader's own.
    "docs/jobs.md": "attacks/test_metadata.py::test_a_job_has_a_role_of_its_own_that_may_do_what_it_was_granted",
    "docs/local-cloud.md": "cluster/test_networks.py::test_the_program_of_the_page_closes_the_head_s_port",
    "docs/python.md": "cluster/test_tools.py::test_the_program_of_the_python_page_runs_as_it_stands",
    "docs/ja/README.md": _JAPANESE,
    "docs/ja/getting-started.md": _JAPANESE,
    "docs/nodes.md": "cluster/test_examples.py::test_the_commands_of_older_tutorials_run_on_the_head",
}
# Jobs that train for minutes are planned as the page says; shorter ones are in tests/cluster/test_engine_*, test_via.
PLANNED = "cluster/test_examples.py::test_the_jobs_of_a_page_are_planned_as_it_says"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_console_blocks_are_run_by_a_test(document: Path) -> None:
    name, text = str(document.relative_to(ROOT)), document.read_text()
    if re.search(r"^```(console|sh|bash|python)\b", text, re.MULTILINE):
        file, _, test = RUN_BY.get(name, PLANNED).partition("::")
        assert name in RUN_BY or re.search(r"^\$ phalanx (run|launch) ", text, re.MULTILINE), f"no test runs {name}"
        assert f"def {test}(" in (ROOT / "tests" / file).read_text()


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for path in DOCUMENTS
        for target in re.findall(r"(?:^\$ |`)make ([a-z-]+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 10
    assert named - targets == set()


def test_the_tests_that_documents_name_exist() -> None:
    """The security page refers to those of tests/attacks by their file's name alone."""
    text = "".join(path.read_text() for path in DOCUMENTS)
    named = set(re.findall(r"`((?:(?:localcloud/)?tests/\w+/)?test_\w+\.py)`", text))
    there = {
        str(path.relative_to(ROOT)) for part in ("", "localcloud/") for path in ROOT.glob(f"{part}tests/*/test_*.py")
    }
    attacks = {path.rpartition("/")[2] for path in there if "tests/attacks/" in path}
    assert len(named) > 20
    assert named - there - attacks == set()


def test_the_image_of_the_page_is_what_make_full_os_builds() -> None:
    (name,) = re.findall(r"```sh\nphalanx local image build (.*?) *#", (ROOT / "docs/images.md").read_text())
    assert f"image=${{IMAGE:-{name}}}\n" in (ROOT / "scripts/full-os").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_for_phalanx_yaml_are_valid(document: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
    for block in (block for block in blocks if re.search(r"^nodes: ", block, re.MULTILINE) and "name: " in block):
        (tmp_path / "phalanx.yaml").write_text(block)
        load(tmp_path / "phalanx.yaml")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    named = commands_of(document.read_text())
    assert [command for command in named if not exists(command.split())] == []


@pytest.mark.parametrize(
    ("japanese", "english"), [("README", "README.md"), ("getting-started", "docs/getting-started.md")]
)
def test_japanese_pages_have_the_commands_of_the_english_ones(japanese: str, english: str) -> None:
    text = (ROOT / f"docs/ja/{japanese}.md").read_text()
    lines = [
        [re.sub(" *# .*|<.*>", "", line) for line in re.findall(r"^\$ (.*)$", page, re.MULTILINE)]
        for page in (text, (ROOT / english).read_text())
    ]
    assert lines[0] == lines[1] != []
    assert f"phalanx {__version__} " in text.partition("\n\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("japanese", "english"), [("README", "README.md"), ("getting-started", "docs/getting-started.md")]
)
def test_japanese_pages_have_the_sections_files_and_links_of_the_english_ones(japanese: str, english: str) -> None:
    here, there = ROOT / f"docs/ja/{japanese}.md", ROOT / english
    shapes = [re.findall(r"^(?:#+ |\|(?=[-|]+$)|- |```\w*)", page.read_text(), re.MULTILINE) for page in (here, there)]
    assert shapes[0] == shapes[1]
    found = [
        {os.path.relpath(page.parent / target, ROOT) for target, *_ in LINK.findall(page.read_text()) if target}
        for page in (here, there)
    ]
    of_each_other = {"docs/getting-started.md", "docs/ja/getting-started.md", "docs/ja/README.md"}
    assert found[0] - of_each_other == found[1] - of_each_other


def test_the_readme_shows_the_daily_commands() -> None:
    named = set(commands_of((ROOT / "README.md").read_text()))
    assert {"init", "up", "run", "ssh", "logs", "down"} <= named


SOURCE = "".join(path.read_text() for part in ("src", "localcloud/src") for path in sorted((ROOT / part).rglob("*.py")))
QUOTED_MESSAGES = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


def without_line_breaks(source: str) -> str:
    """Join the strings in Python source that are written over several lines."""
    return re.sub(r"\"\s*\n\s*f?\"", "", source)


@pytest.mark.parametrize("message", QUOTED_MESSAGES)
def test_the_messages_of_the_troubleshooting_page_exist(message: str) -> None:
    source = without_line_breaks(SOURCE)
    pieces = [piece.strip(" '") for piece in message.split("…")]
    assert [piece for piece in pieces if piece not in source] == []


DAYS = r"^\| (\d+) × `([\w.-]+)`( and `head: \{type: ([\w.]+)\}`)? \| \$([\d.,]+) \| \$([\d.,]+) \|$"


@pytest.mark.parametrize("row", re.findall(DAYS, (ROOT / "docs/costs.md").read_text(), re.MULTILINE), ids=str)
def test_the_page_of_costs_has_the_prices_of_plan(row: tuple[str, ...]) -> None:
    nodes, kind, _, head, hour, day = row
    more = {"head": {"type": head}, "efa": "yes"} if head else {}
    spec = aws_spec(type=kind, nodes=int(nodes) + bool(head), min=1, **more)
    facts = offline_facts(spec)
    assert facts
    cost = make_plan(spec, facts).cost_usd_per_hour
    assert cost and (f"{cost:,.2f}", f"{24 * cost:,.0f}") == (hour, day)
