"""What can go wrong: odd arguments, bytes that are not text, a cloud that hangs, a missing sshd."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.error import HTTPError

import pytest
from local_clouds import break_on_purpose
from processes import descendants, process_file
from terminals import PHALANX, a_terminal, assert_nothing_is_left, read_until
from verdicts import is_proven

from phalanx.node.decision import SILENT_S

pytestmark = pytest.mark.cluster

# Longer than it takes to find out that the shared directory does not answer, and to stop a job without it.
AWAY_S = 600.0
SPEC = "name: trouble\ncloud: local\nnodes: 1\nkeep: no\n"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="hides a program from phalanx in a mount namespace")


@pytest.fixture
def code(tmp_path):
    """Make a directory of code; return the options of `run` for it."""

    def write(text):
        (tmp_path / "rank.py").write_text(text)
        return ["--directory", str(tmp_path), "--launcher", "exec"]

    return write


@pytest.fixture
def alone():
    """A user with a separate local cloud, which must be gone at the end."""
    with a_terminal(SPEC) as terminal:
        yield terminal


def in_namespaces(terminal, flags, before):
    """Run `phalanx up` in new namespaces, after a command that removes something there."""
    script = f'{before} && exec "$0" up'
    return subprocess.run(
        ["unshare", *flags, "sh", "-ec", script, str(PHALANX)],
        cwd=terminal.directory,
        env={**os.environ, "PHALANX_STATE_DIR": str(terminal.state)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_odd_words_reach_the_job_as_they_were_typed(cluster, code):
    arguments = ["a b", "it's", '"q"', "$HOME", "`id`", "new\nline", "é☃", "--", "", "*", "\\", ";", "%h", "~", "-n"]
    value = "a b'c\"d$e\\f\né=;#%"
    options = code("import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['ODD']]))")
    done = cluster.phalanx("run", *options, "-n", "1", "--env", f"ODD={value}", "--", "python", "rank.py", *arguments)
    assert json.loads(done.stdout.removeprefix("[0] ")) == [arguments, value]


def test_output_without_newlines_and_bytes_that_are_no_text_arrive_whole(cluster, code):
    options = code("import os, sys\nos.write(1, bytes(range(14, 256)) + b'\\n')\nsys.stdout.write('x' * 3_000_000)")
    environment = {**os.environ, "PHALANX_STATE_DIR": str(cluster.state)}
    argv = [str(PHALANX), "run", *options, "-n", "1", "--", "python", "rank.py"]
    done = subprocess.run(argv, cwd=cluster.directory, env=environment, capture_output=True, timeout=600)
    assert done.returncode == 0
    assert done.stdout.startswith(b"[0] " + bytes(range(14, 256)) + b"\n")
    assert done.stdout.count(b"x") == 3_000_000 + 1


SSH_CONFIG = """Host *
  ProxyJump nowhere.invalid
  RemoteCommand /bin/false
  RequestTTY force
  SendEnv *
  User nobody
  Port 1
  ControlMaster auto
  ControlPath {home}/shared-%r@%h
  LocalForward 22222 localhost:1
  PermitLocalCommand yes
  LocalCommand touch {home}/ran
  StdinNull yes
"""
# What shells, conda, other launchers and CI systems set.
OF_THE_SHELL = """RANK=7 WORLD_SIZE=9 MASTER_ADDR=elsewhere MASTER_PORT=1 OMP_NUM_THREADS=77 PYTHONPATH=/nowhere
VIRTUAL_ENV=/nowhere CONDA_PREFIX=/nowhere CUDA_VISIBLE_DEVICES=9 LANG=C LC_ALL=xx_YY TZ=Mars/Olympus TMPDIR=/nowhere
XDG_RUNTIME_DIR=/nowhere SHELL=/bin/false SSH_AUTH_SOCK=/nowhere SSH_ASKPASS_REQUIRE=force LD_LIBRARY_PATH=/nowhere"""


def test_the_user_s_ssh_and_shell_settings_change_nothing(cluster, code, tmp_path):
    home = tmp_path / "home with blanks"
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    (home / ".ssh/config").write_text(SSH_CONFIG.format(home=home))
    names = "RANK", "WORLD_SIZE", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "LANG", "SHELL"
    options = code(f"import os\nprint(*(os.environ.get(name, '-') for name in {names}), 'ü', sep='|')")
    shell = dict(one.split("=") for one in OF_THE_SHELL.split())
    environment = {**os.environ, **shell, "PHALANX_STATE_DIR": str(cluster.state), "HOME": str(home)}

    def typed(*words):
        argv = [str(PHALANX), *words]
        done = subprocess.run(argv, cwd=cluster.directory, env=environment, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    shown = typed("run", *options, "-n", "1", "--", "python", "rank.py").split("|")
    assert (shown[:2], "/nowhere" in "".join(shown), shown[3:6], shown[-1]) == (["[0] 0", "1"], False, ["-"] * 3, "ü\n")
    assert typed("ssh", "--", "echo", "here") == "here\n"
    assert typed("put", str(home / ".ssh/config"), "config") == "/efs/config\n"
    assert not (home / "ran").exists()


def test_a_terminal_is_told_what_a_silent_rank_does_and_a_file_is_not(cluster, code):
    options = code("import time\ntime.sleep(6)")
    line = shlex.join([str(PHALANX), "run", *options, "-n", "1", "--", "python", "rank.py"])
    environment = {**os.environ, "PHALANX_STATE_DIR": str(cluster.state)}
    for typed, said in ((["script", "-qec", line, os.devnull], True), (["sh", "-c", line], False)):
        done = subprocess.run(
            typed, cwd=cluster.directory, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=600
        )
        assert done.returncode == 0, done
        assert (b"no output yet; after " in done.stdout and b"rank 0 (python) waits" in done.stdout) == said, done


def test_a_reader_that_leaves_does_not_end_the_job(cluster, code):
    options = code("import time\nprint('first', flush=True)\nfor _ in range(20000): print('more')\ntime.sleep(0.5)")
    piped = f'"{PHALANX}" run --name piped {" ".join(options)} -n 1 -- python rank.py | head -1'
    environment = {**os.environ, "PHALANX_STATE_DIR": str(cluster.state)}
    shown = subprocess.run(piped, shell=True, cwd=cluster.directory, env=environment, capture_output=True, timeout=600)
    assert shown.stdout == b"[0] first\n"
    assert "more" in cluster.phalanx("logs", "--follow", "piped").stdout


def test_an_unknown_job_is_reported_with_the_newest_one(cluster):
    cluster.phalanx("run", "--launcher", "exec", "-n", "1", "--", "true")
    for command in ("logs", "stop"):
        done = cluster.phalanx(command, "no-such-job", check=False)
        assert (done.returncode, "no job 'no-such-job'" in done.stderr) == (2, True), done.stderr


def test_a_local_cloud_that_hangs_is_reported_and_jobs_continue(cluster, code):
    pid = json.loads((cluster.state / "local/endpoint.json").read_text())["pid"]
    # All of them have the command line of the first: of one that was forked (forked_cli), too.
    served = [one for one in descendants(pid) if process_file(one, "cmdline") == process_file(pid, "cmdline")]
    try:
        for one in served:
            os.kill(one, signal.SIGSTOP)
        done = cluster.phalanx("status", check=False)
        assert (done.returncode, "phalanx local stop --force" in done.stderr) == (5, True), done.stderr
        assert cluster.phalanx("ssh", "--", "hostname").stdout.startswith("ip-")
    finally:
        for one in served:
            os.kill(one, signal.SIGCONT)
    assert "deeplearning-worker4" in cluster.phalanx("nodes").stdout


def running_jobs(cluster, *names):
    """Wait until jobs of these names run; return them by name."""
    deadline = time.monotonic() + 60
    while True:
        found = {job["name"]: job for job in json.loads(cluster.phalanx("jobs", "--json").stdout)}
        if all(found.get(name, {}).get("state") == "running" for name in names):
            return {name: found[name] for name in names}
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def freeze(cluster, nodes, for_s):
    for node in nodes:
        break_on_purpose(cluster, freeze={"instance_id": node["instance_id"], "for_s": for_s})


def test_a_shared_directory_that_stops_answering_is_named_and_all_goes_on_without_it(cluster, code):
    # It takes no lock of the directory, for which others would wait in a way that no signal ends.
    loop = "for n in range(1000):\n    os.listdir('/efs'); print(n, flush=True); time.sleep(0.2)"
    options = [*code(f"import os, time\n{loop}"), "-n", "1", "--", "python", "rank.py"]
    nodes = json.loads(cluster.phalanx("nodes", "--json").stdout)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        with pytest.raises(HTTPError):
            break_on_purpose(cluster, freeze={"instance_id": nodes[0]["instance_id"], "for_s": AWAY_S})
        pytest.skip("/dev/fuse can't be opened here, so no shared directory can stop answering; the cloud said so")
    goes_on = cluster.start("run", "--name", "goes-on", *options)
    with goes_on as followed, ThreadPoolExecutor(3) as pool, ExitStack() as at_end:
        at_end.callback(followed.kill)
        at_end.callback(freeze, cluster, nodes, 0)
        named = "the shared directory /efs does not answer; the job goes on"
        said = pool.submit(lambda: next(line for line in followed.stdout if named in line))
        cluster.phalanx("run", "--detach", "--name", "ends", *options)
        both = running_jobs(cluster, "goes-on", "ends")
        # What still starts can wait for the directory in a way that no signal ends.
        for job in both.values():
            cluster.wait_until_printed(job["id"], "2")
        ends = both["ends"]["id"]
        freeze(cluster, nodes, AWAY_S)
        jobs, stopped = (pool.submit(cluster.phalanx, *words, check=False) for words in (["jobs"], ["stop", ends]))
        time.sleep(SILENT_S)
        assert cluster.phalanx("ssh", "worker2", "--", "hostname").stdout.startswith("ip-")
        after = json.loads(cluster.phalanx("nodes", "--json").stdout)
        assert [(node["instance_id"], node["state"]) for node in after] == [(n["instance_id"], "ready") for n in nodes]
        shown = cluster.phalanx("status").stdout
        assert "nodes     4 ready of 4\n" in shown
        assert "jobs      unknown: the shared directory" in shown
        assert "/efs does not answer" in jobs.result().stderr
        assert "its record follows" in stopped.result().stderr
        assert is_proven(stopped.result().stderr, 4)
        said.result(timeout=180)
        freeze(cluster, nodes, 0)
        shown = cluster.phalanx("logs", "goes-on").stdout.count("\n")
        deadline = time.monotonic() + 120
        while cluster.phalanx("logs", "goes-on").stdout.count("\n") == shown:
            assert time.monotonic() < deadline, "the job does not go on"
        assert "stopped on request" in cluster.phalanx("stop", "goes-on").stderr
    states = {job["id"]: job["state"] for job in json.loads(cluster.phalanx("jobs", "--json").stdout)}
    assert states[ends] == "stopped"


def wait_until_silent(cluster, *names):
    """Wait until `status` names these nodes, and only them, as those whose shared directory does not answer."""
    deadline = time.monotonic() + 60
    while (found := json.loads(cluster.phalanx("status", "--json").stdout)["shared_silent"]) != list(names):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


# Of a node that is not the head, and of the head: what answers nevertheless.
WORKER, THE_HEAD = 2, 0
ANSWER = {
    WORKER: (("put", "file"), ("get", "file", "got"), ("logs",), ("jobs",)),
    THE_HEAD: (("nodes",), ("exec", "--", "true"), ("scale", "4", "--yes")),
}
SAY_SO = {
    WORKER: (("run", "--launcher", "exec", "--", "true"),),
    THE_HEAD: (
        ("run", "--launcher", "exec", "--", "true"),
        ("put", "file"),
        ("get", "file", "got"),
        ("logs",),
        ("jobs",),
        ("jobs", "--prune", "0s", "--yes"),
        ("scale", "3", "--yes"),
    ),
}


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse can't be opened here")
@pytest.mark.parametrize("which", [WORKER, THE_HEAD])
def test_a_node_whose_shared_directory_does_not_answer_is_named(cluster, which):
    waits = f"waits-{which}"
    (cluster.directory / "file").write_text("content")
    cluster.phalanx("put", "file")
    cluster.phalanx("run", "--detach", "--name", waits, "--launcher", "exec", "--", "sleep", "600")
    running_jobs(cluster, waits)
    node = json.loads(cluster.phalanx("nodes", "--json").stdout)[which]
    with ThreadPoolExecutor(8) as pool, ExitStack() as at_end:
        at_end.callback(cluster.phalanx, "stop", waits)
        at_end.callback(freeze, cluster, [node], 0)
        freeze(cluster, [node], AWAY_S)
        wait_until_silent(cluster, node["name"])
        named = json.loads(cluster.phalanx("why", "--json").stdout)
        assert "shared directory does not answer" in named["cause"] and node["name"] in named["evidence"][0]["text"]
        if which == WORKER:
            with cluster.start("logs", "--follow", waits) as followed:
                read_until(followed, f"/efs does not answer on {node['name']}; the job goes on")
                followed.kill()
        began = time.monotonic()
        say = [pool.submit(cluster.phalanx, *words, check=False) for words in SAY_SO[which]]
        answer = [pool.submit(cluster.phalanx, *words) for words in ANSWER[which]]
        for done in answer:
            done.result()
        for one in say:
            done = one.result()
            assert done.returncode and "does not answer" in done.stderr, (done.args, done.stderr)
            assert which == THE_HEAD or f"{node['name']} can't be reached: its shared directory" in done.stderr
        assert time.monotonic() < began + 90
    wait_until_silent(cluster)
    assert "nothing is wrong" in cluster.phalanx("why").stdout


def test_a_shared_directory_that_jobs_can_not_write_to_is_named(cluster):
    if not json.loads(cluster.phalanx("status", "--json").stdout)["accounts_separated"]:
        pytest.skip("jobs run as root on these nodes, and may write anywhere")
    wait_until_silent(cluster)  # which would be the cause, where another test has just frozen a node
    assert json.loads(cluster.phalanx("status", "--json").stdout)["shared_closed"] == ""
    before = cluster.phalanx("exec", "--sudo", "--", "stat -c '%u:%g %a' /efs").stdout.split()[-2:]
    cluster.phalanx("exec", "--sudo", "--", "chown root:root /efs; chmod 755 /efs")
    try:
        assert "root" in json.loads(cluster.phalanx("status", "--json").stdout)["shared_closed"]
        named = json.loads(cluster.phalanx("why", "--json").stdout)
        assert "can't write" in named["cause"] and "/efs belongs to root, with mode 755" in named["evidence"][0]["text"]
        for shown in (cluster.phalanx("status").stdout, cluster.phalanx("why").stdout):
            assert "chmod o+rwx,+t" in shown
    finally:
        cluster.phalanx("exec", "--sudo", "--", f"chown {before[0]} /efs; chmod {before[1]} /efs")
    assert "nothing is wrong" in cluster.phalanx("why").stdout


def test_two_at_once_make_one_cluster_and_take_it_down_once(alone):
    """The state directory has spaces, a percent sign, and a path longer than a socket's address."""
    deep = type(alone)(alone.directory, alone.state / ("50% deep " * 12).strip())
    try:
        with ThreadPoolExecutor(2) as pool:
            ups = [pool.submit(deep.phalanx, "up") for _ in range(2)]
            assert all("is ready" in up.result().stdout or "is up already" in up.result().stdout for up in ups)
            processes = deep.local_cloud_processes()
            stacks = json.loads(deep.phalanx("local", "status", "--json").stdout)["stacks"]
            assert [stack["name"] for stack in stacks] == ["trouble"]
            assert "[0]" in deep.phalanx("run", "--launcher", "exec", "--", "hostname").stdout
            for down in [pool.submit(deep.phalanx, "down", "--yes") for _ in range(2)]:
                down.result()
        assert_nothing_is_left(deep, processes)
    finally:
        deep.phalanx("local", "stop", "--force", check=False)


def test_without_user_namespaces_up_says_how_to_fix_it(alone):
    done = in_namespaces(alone, ["-Ur"], "echo 0 > /proc/sys/user/max_user_namespaces")
    assert done.returncode == 5
    assert "sysctl -w user.max_user_namespaces" in done.stderr
    assert_nothing_is_left(alone, alone.local_cloud_processes())


@as_root
def test_without_sshd_up_says_what_to_install(alone):
    done = in_namespaces(alone, ["-m"], "mount --bind /dev/null /usr/sbin/sshd")
    assert done.returncode == 5
    assert "sudo apt-get install -y openssh-server" in done.stderr
    assert_nothing_is_left(alone, alone.local_cloud_processes())


BOOT = SPEC + "node_timeout: {}s\nboot: |\n  echo this far\n  {}\n"


@pytest.mark.parametrize(
    ("timeout_s", "script", "reported", "cause"),
    [
        (
            3,
            "sleep 1000",
            ["boot step 'boot script' failed on i-", "exit 124: this far", "time is up after 2.7 s"],
            "the boot script failed",
        ),
        (
            300,
            "reboot; sleep 1000",
            ["boot step 'boot script' failed on i-", "the machine restarted while it ran"],
            "the boot script failed",
        ),
        (
            300,
            "poweroff -f; sleep 1000",
            ["heads were launched one after another, and each ended during its step 'boot"],
            "one machine after another",
        ),
    ],
)
def test_a_boot_script_that_keeps_the_head_from_coming_up_is_reported(alone, timeout_s, script, reported, cause):
    (alone.directory / "phalanx.yaml").write_text(BOOT.format(timeout_s, script))
    done = alone.phalanx("up", check=False)
    assert (done.returncode, [message for message in reported if message not in done.stderr]) == (4, []), done.stderr
    assert f"The cause: {cause}" in done.stderr
    assert_nothing_is_left(alone, alone.local_cloud_processes())
    assert cause in alone.phalanx("why").stdout, "after the rollback, and without a local cloud"


ONE_DISK = """
mount -t tmpfs -o size=400m,mode=700 disk /mnt && cd /mnt && mkdir -m 700 state tmp project && cd project
# What is tested may be below /tmp.
mkdir /mnt/code && mount --bind "$CODE" /mnt/code
mount --bind /mnt/tmp /var/tmp && mount --bind /mnt/tmp /tmp && mkdir -p "$CODE" && mount --bind /mnt/code "$CODE"
echo "$SPEC" >phalanx.yaml && echo content >file
unset TMPDIR XDG_RUNTIME_DIR
export HOME=/mnt PHALANX_STATE_DIR=/mnt/state
do_() { "$PHALANX" "$@" </dev/null 2>&1; echo "== $1 $?"; }
do_ up; do_ put file; do_ run --launcher exec -- true
ssh -o ControlPath="$(echo /tmp/phalanx-*/*-*)" -O exit any
cat /dev/zero >/mnt/fill
do_ status; do_ run --launcher exec -- true; do_ logs; do_ get /efs/file got; do_ ssh -- true; do_ exec -- true; do_ up
do_ jobs --prune 0s --yes; rm /mnt/fill; do_ get /efs/file got; cat /dev/zero >/mnt/fill
do_ down --yes
"$PHALANX" local stop --force
"""


@as_root
def test_while_the_only_disk_of_this_machine_is_full_all_works_that_writes_nothing():
    """Bills would go on if `down` did not. The local cloud's /efs is on that disk, too."""
    given = {"PHALANX": str(PHALANX), "CODE": str(PHALANX.parents[2]), "SPEC": SPEC.replace("keep: no\n", "")}
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", ONE_DISK],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    codes = [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]
    before, full = ["up 0", "put 0", "run 0"], ["status 0", "run 1", "logs 0", "get 1", "ssh 0", "exec 0", "up 0"]
    assert codes == [*before, *full, "jobs 0", "get 0", "down 0"], done.stdout
    assert "unexpected" not in done.stdout and "nothing else of it is left" in done.stdout
