"""The examples, shortened, as jobs on a real cluster."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminals import EXAMPLES, ONE_THREAD, SPEC, Terminal
from verdicts import is_gone, is_proven

pytestmark = pytest.mark.cluster
ROOT = EXAMPLES.parent
DOCS = ROOT / "docs"
GETTING_STARTED = DOCS / "getting-started.md"
JOB_PAGES = tuple(
    path
    for path in sorted((*DOCS.glob("*.md"), *EXAMPLES.glob("*/README.md")))
    if path != GETTING_STARTED and re.search(r"^\$ phalanx (run|launch) ", path.read_text(), re.MULTILINE)
)


def test_hello_mpi_runs_on_every_node(cluster):
    job = cluster.phalanx(
        *("run", "--directory", str(EXAMPLES / "hello_mpi"), "--launcher", "mpi", "-n", "8", "-N", "2"),
        *("--", "python", "hello.py"),
    )
    assert job.stdout.count("hello from rank") == 8
    assert "the sum of 1…8 over all ranks is 36" in job.stdout


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist")
@pytest.mark.parametrize(
    "resumes",
    # Jobs that resume are also in test_engine_jax.py and test_data_in_s3.py.
    [False, pytest.param(True, marks=pytest.mark.long)],
)
def test_fashion_mnist_trains_checkpoints_and_passes_its_evaluation(cluster, resumes):
    code, name = ("run", "--directory", str(EXAMPLES / "fashion_mnist")), f"fashion-{resumes}".lower()
    training = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "torchrun", "-n", "2", "-N", "1", "--name", name),
        *("--checkpoint", name, "--"),
        *("train.py", "--epochs", "1", "--images", "20000", "--batch-size", "50", "--exchange", "suggest"),
        timeout_s=900,
    )
    assert "[0] 2 processes, 20,000 training images" in training.stdout
    assert training.stdout.count("suggested: ") == 1
    assert "validation/main/accuracy" in training.stdout
    evaluation = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "exec", "-n", "1"),
        *("--", "python", "evaluate.py", f"/efs/{name}/checkpoint.pt", "--at-least", "0.8"),
    )
    assert "test accuracy 0.8" in evaluation.stdout
    if resumes:
        resumed = cluster.phalanx(*code, "--resume", name, timeout_s=900)
        # It has nothing left to train, and shows the epoch that the first one trained.
        rows = [re.findall(r"^\[0\] 1 +\S.*$", job.stdout, re.MULTILINE) for job in (training, resumed)]
        assert rows[0] == rows[1] != []


def test_the_programs_of_the_page_about_pytorch_run_as_it_says(cluster, tmp_path):
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "pytorch.md").read_text(), re.DOTALL)
    for name, program in zip(("train.py", "fsdp.py"), programs, strict=True):
        (tmp_path / name).write_text(program)
    # On one node, which starts torchrun once: test_fashion_mnist trains on two.
    code = ("run", "--directory", str(tmp_path), *ONE_THREAD, "-n", "2", "-N", "2")
    done = cluster.phalanx(*code, "--", "python", "train.py", timeout_s=600)
    assert "[0] trained by 2 processes" in done.stdout
    cluster.phalanx(*code, "--checkpoint", "checkpoints/fsdp", "--", "python", "fsdp.py", timeout_s=600)
    files = cluster.on("head", "ls -A /efs/checkpoints/fsdp").split()
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_the_commands_of_getting_started_run_one_after_the_other(cluster, tmp_path):
    sections = dict(re.findall(r"^## (\d)\. .+?\n(.*?)(?=^## )", GETTING_STARTED.read_text(), re.MULTILINE | re.DOTALL))
    # Install is `make fresh`, and Train takes a minute: a shorter training is above.
    page = "".join(text for number, text in sections.items() if number not in "15")
    shown = cluster.typed(as_script(page), tmp_path, HOME=str(tmp_path))
    assert sorted(set(re.findall(r"rank \d of \d", shown))) == [f"rank {rank} of 4" for rank in range(4)]
    assert "Cluster first is deleted" in shown and is_gone(shown)
    of_the_demo = (DOCS / "demo.md").read_text()
    outlines = [outline(line.replace("fashion", "first")) for line in lines_of_up_and_down(of_the_demo)]
    assert len(outlines) >= 3
    assert set(outlines) <= set(map(outline, shown.splitlines()))


def test_the_five_commands_of_the_readme_run_one_after_the_other(cluster, tmp_path):
    project = tmp_path / "mine"
    project.mkdir()
    (project / "train.py").write_text("open('checkpoint.pt', 'w').write('weights')\n")
    section = (ROOT / "README.md").read_text().partition("## Five commands")[2].partition("\n## ")[0]
    shown = cluster.typed(as_script(section), project)
    assert (project / "checkpoint.pt").read_text() == "weights"
    assert "Cluster mine is deleted" in shown and is_gone(shown)


@pytest.mark.parametrize("page", JOB_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_jobs_of_a_page_are_planned_as_it_says(cluster, tmp_path, page):
    """By --dry-run: the engines themselves run in the tests of engines, and of schedulers, and --resume runs above."""
    for name in ("more.txt", "requirements.txt"):
        (tmp_path / name).write_text("requests\n")
    (tmp_path / "hosts").write_text("deeplearning-worker1\ndeeplearning-worker2\n")
    (tmp_path / "train.py").touch()
    pattern = r"^\$ ((?:export|phalanx run(?! --resume)|phalanx launch) .+)$"
    commands = re.findall(pattern, page.read_text(), re.MULTILINE)
    script = re.sub("^(phalanx [a-z]+)", r"\1 -c contract --dry-run", "\n".join(commands), flags=re.MULTILINE)
    if re.search(r"^export|[$<>|;&*`\\]", script, re.MULTILINE):
        shown = cluster.typed(script, tmp_path)
    else:
        here = Terminal(tmp_path, cluster.state)
        lines = (shlex.split(line, comments=True) for line in script.splitlines())
        shown = "".join(here.phalanx(*words[1:]).stdout for words in lines)
    assert shown.count("deeplearning-worker1") >= script.count("--dry-run") > 0


HANGS = """
import time


def waits_for_the_others():
    time.sleep(600)


print("begins", flush=True)
waits_for_the_others()
"""


def test_the_page_about_debugging_shows_where_each_rank_hangs(cluster, tmp_path):
    section = (DOCS / "debugging.md").read_text().partition("## Where does it hang")[2].partition("\n## ")[0]
    start, show = re.findall(r"^\$ (.+)$", section, re.MULTILINE)
    (tmp_path / "train.py").write_text(HANGS)
    (tmp_path / "phalanx.yaml").write_text(SPEC)
    cluster.typed(start, tmp_path)
    cluster.wait_until_printed("slow", "begins", times=8)
    shown = cluster.typed(f"{show}\nphalanx stop slow", tmp_path)
    assert re.search(r"ranks 0-7 wait in waits_for_the_others \(train.py:\d+\)", shown), shown


def test_the_data_page_lists_what_it_says(cluster, tmp_path):
    """`data fetch` itself fetches from a server of its own in tests/parts/test_datasets.py."""
    (listed,) = re.findall(r"^\$ (phalanx data catalog.*)$", (DOCS / "data.md").read_text(), re.MULTILINE)
    shown = cluster.typed(listed, tmp_path)
    assert all(name in shown for name in ("mnist", "fashion-mnist", "cifar10"))


def test_the_commands_of_older_tutorials_run_on_the_head(cluster):
    block = next(re.finditer(r"```console\n(.*?)```", (DOCS / "nodes.md").read_text(), re.DOTALL))[1]
    mpiexec, loop = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    assert len(set(cluster.on("head", loop).split())) == 4
    assert sorted(cluster.on("head", mpiexec).split()) == sorted(cluster.on("head", loop).split() * 2)


def test_what_took_the_place_of_older_commands_runs(cluster, tmp_path):
    (tmp_path / "phalanx.yaml").write_text(SPEC)
    (tmp_path / "hello.py").write_text("print('hello')\n")
    shown = cluster.typed(as_script((DOCS / "older-tutorials.md").read_text()), tmp_path)
    assert len(re.findall(r"^hello$", shown, re.MULTILINE)) == 8, "mpiexec on the head"
    assert len(re.findall(r"^\[\d\] hello$", shown, re.MULTILINE)) == 8, "run, and its logs"
    assert shown.count("deeplearning-worker3\n") >= 4


def test_other_commands_of_older_tutorials_run_as_they_were_typed(cluster):
    cluster.on("head", 'echo "echo $DEEPLEARNING_WORKERS_COUNT as $(id -un)" > /efs/who.sh')
    switched = cluster.phalanx("ssh", "--admin", "head", "--", "sudo su phalanx -c 'bash -l /efs/who.sh'").stdout
    assert switched == "4 as phalanx\n"
    passed_on = "export GREETING=hello; mpiexec -x GREETING -n 8 -N 2 printenv GREETING"
    assert cluster.on("head", passed_on).split() == ["hello"] * 8
    assert cluster.on("head", "echo --gpus $(seq -s , 0 1 $(($DEEPLEARNING_WORKER_GPU_COUNT - 1)))") == "--gpus\n"


# As AWS's tutorial of 2017 clones its examples.
CLONE = """
git clone -q http://deeplearning-worker2:8126/examples $EFS_MOUNT/examples && \\
cd $EFS_MOUNT/examples && \\
git submodule -q update --init $EFS_MOUNT/examples/mxnet
"""
PUBLISH = """
set -e
mkdir /tmp/published /tmp/written
cd /tmp/published
nohup python3 -m http.server 8126 >/dev/null 2>&1 & echo $! > /tmp/written/pid
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8126))' 2>/dev/null; do sleep 0.1; done
for name in mxnet examples; do
    git init -q /tmp/written/$name
    cd /tmp/written/$name
    echo "print('$name')" > train.py
    [ $name = mxnet ] || git submodule --quiet add http://deeplearning-worker2:8126/mxnet
    git add .
    git -c user.name=me -c user.email=me@example.com commit -qm first
    git clone -q --bare . /tmp/published/$name
    git -C /tmp/published/$name update-server-info
done
"""


def test_a_repository_with_submodules_is_cloned_onto_the_shared_directory(cluster):
    """Another node serves it, for the web may be out of reach."""
    cluster.on("worker2", PUBLISH)
    try:
        cluster.on("head", CLONE)
        assert cluster.on("worker3", "cat $EFS_MOUNT/examples/train.py") == "print('examples')\n"
        assert cluster.on("worker3", "python3 $EFS_MOUNT/examples/mxnet/train.py") == "mxnet\n"
    finally:
        cluster.on("worker2", "kill $(cat /tmp/written/pid); rm -rf /tmp/written /tmp/published; rm -rf /efs/examples")


def test_code_and_data_are_fetched_on_the_head_as_they_were_typed(cluster, tmp_path):
    source = tmp_path / "source"
    (source / "cifar-10-batches-bin").mkdir(parents=True)
    (source / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes(3073))
    (source / "train.py").write_text("print('trained')\n")
    cluster.phalanx("put", str(source), "then/")
    shown = cluster.on("head", f"bash -c {shlex.quote(FETCHED_ON_THE_HEAD)}")
    assert shown.split() == ["trained", "trained", "3073", "trained"]


# The addresses are the test's, and Python plays the program that downloads, which a minimal system lacks.
FETCHED_ON_THE_HEAD = """
set -e
cd /efs/then/source
tar -czf cifar-10-binary.tar.gz cifar-10-batches-bin
python3 -m http.server 8123 > /dev/null 2>&1 &
trap 'kill $!' EXIT
url=http://deeplearning-master:8123
listens="import socket; socket.create_connection(('deeplearning-master', 8123))"
until python3 -c "$listens" 2>/dev/null; do sleep 0.1; done
fetched() { python3 -c 'import sys, urllib.request as web; web.urlretrieve(*sys.argv[1:])' "$@"; }
fetched $url/train.py /efs/train.py
python3 /efs/train.py
mkdir logs && python3 train.py > logs/worker1
tail -f $EFS_MOUNT/then/source/logs/* | grep -m 1 trained
mkdir $EFS_MOUNT/cifar10_data && \\
fetched $url/cifar-10-binary.tar.gz $EFS_MOUNT/cifar10_data/cifar-10-binary.tar.gz && \\
tar -xzf $EFS_MOUNT/cifar10_data/cifar-10-binary.tar.gz -C $EFS_MOUNT/cifar10_data
stat -c %s $EFS_MOUNT/cifar10_data/cifar-10-batches-bin/test_batch.bin
sed -i.bak "s!trained!trained!" /efs/train.py && python3 /efs/train.py
"""

# The loop of 2018, and the line of MXNet's guide. The brackets spare the shell that runs it, whose command line a
# terminal does not have.
KILLS = {
    "pkill": 'while read -u 10 host; do ssh -o "StrictHostKeyChecking no" $host "pkill -f [p]ython"; '
    "done 10<$DEEPLEARNING_WORKERS_PATH",
    "xargs": "cat $DEEPLEARNING_WORKERS_PATH | "
    "xargs -I{} ssh -o StrictHostKeyChecking=no {} 'uname -a; pgrep python | xargs kill -9'",
}


@pytest.mark.parametrize("kill", KILLS)
def test_killing_python_on_all_nodes_ends_the_job_whole_and_the_next_one_runs(cluster, tmp_path, kill):
    run = ("run", "--directory", str(tmp_path), "--launcher", "exec")
    program = ("python3", "-uc", "import time; print('began'); time.sleep(4711)")
    cluster.phalanx(*run, "--name", kill, "--detach", "--", *program)
    cluster.wait_until_printed(kill, "began", times=4)
    cluster.on("head", KILLS[kill], check=False)
    ended = cluster.phalanx("logs", "-f", kill, check=False).stderr
    assert is_proven(ended, 4)
    assert "killing pid" not in ended
    (job,) = (one for one in json.loads(cluster.phalanx("jobs", "--json").stdout) if one["name"] == kill)
    assert (job["state"], job["verified"]) == ("lost", True)
    assert cluster.phalanx(*run, "--", "python3", "-c", "print('hello')").stdout.count("hello") == 4


def lines_of_up_and_down(page: str) -> Iterator[str]:
    """Yield what the demo's page shows of `up` and `down`; a line with … stands for others."""
    for section in re.findall(r"^== [^\n]*phalanx (?:up|down)\n(.*?)^$\n(?===)", page, re.MULTILINE | re.DOTALL):
        yield from (line for line in section.splitlines() if line and "…" not in line and "local cloud" not in line)


def outline(line: str) -> str:
    """Return the line without its numbers and spaces."""
    return re.sub(r"[\d. ]+", " ", line).strip()


def as_script(page: str) -> str:
    """Return the page's commands, and its program as a command that writes hello.py, in the page's order."""
    lines: list[str] = []
    for language, block in re.findall(r"```(console|python)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            lines.append(f"cat > hello.py <<'END'\n{block}END")
        else:
            lines += re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    return "\n".join(lines)
