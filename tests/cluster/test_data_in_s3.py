"""Data in S3 on real nodes: staged with the rights of the role of jobs, and nothing beyond what phalanx.yaml names.

The shared directory is a file system of FSx for Lustre that is linked to two other prefixes, and two are mounted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_networks import wait_until
from error_codes import assert_refused
from fleet_fakes import until
from local_clouds import api
from terminals import Terminal

pytestmark = pytest.mark.cluster

JOBS = Path(__file__).parents[1] / "data" / "jobs_in_s3"
SPEC = "name: data\ncloud: local\nnodes: 2\nmin: 2\ntype: c5d.large\nshared: /efs\nkeep: ask\nstorage: lustre\n"
DATA = """data:
  pets: s3://my-bucket/pets
  runs: s3://my-bucket/runs rw
  bad: s3://my-bucket/bad
  none: s3://my-bucket/none
  shapes: s3://my-bucket/shapes
  sets: s3://my-bucket/sets
  out: s3://my-bucket/out rw
  shelf: s3://my-bucket/shelf mount
  made: s3://my-bucket/made rw mount
lustre: {data: [sets, out]}
"""
LARGE = os.urandom(20 << 20)
OBJECTS = {
    "pets/": b"",
    "pets/cats/a b+%2Fé.txt": b"cat",
    "pets/large": LARGE,
    "bad/a/../../x": b"",
    "bad/b": b"",
    "bad/b/c": b"",
    "secret": b"s",
    "sets/large": LARGE,
    "sets/sub/one": b"one",
    "out/earlier": b"earlier",
    "shelf/sub/one": b"one",
}


@pytest.fixture(scope="module")
def bucket(pets) -> Any:
    return api(pets, "s3")


@pytest.fixture(scope="module")
def pets(cluster) -> Iterator[Terminal]:
    """A cluster of two nodes in the local cloud that runs, whose bucket is there before it is."""
    terminal = cluster.beside("pets", SPEC + DATA)
    assert_refused(
        terminal.phalanx("up", "--json", check=False), "no-bucket", "phalanx.yaml:9: data: ", "my-bucket (pets)"
    )
    s3 = api(terminal, "s3")
    s3.create_bucket(Bucket="my-bucket")
    for key, content in OBJECTS.items():
        s3.upload_fileobj(io.BytesIO(content), "my-bucket", key)
    terminal.phalanx("up")
    yield terminal
    terminal.phalanx("down", "--yes", "--keep", "no")
    assert api(terminal, "fsx").describe_file_systems()["FileSystems"] == []


def test_a_prefix_is_staged_once_and_changed_objects_again(pets, bucket):
    first = pets.phalanx("data", "stage", "pets").stdout
    assert "[0] pets is in /efs/data/pets: 2 objects, 20.0 MiB" in first
    assert pets.on("deeplearning-worker2", "cat '/efs/data/pets/cats/a b+%2Fé.txt'") == "cat"
    assert pets.on("deeplearning-worker2", "md5sum < /efs/data/pets/large").split()[0] == hashlib.md5(LARGE).hexdigest()
    pets.on("deeplearning-worker1", "echo mine > /efs/data/pets/own")
    bucket.put_object(Bucket="my-bucket", Key="pets/cats/a b+%2Fé.txt", Body=b"dog!")
    pets.phalanx("data", "stage", "pets")
    assert pets.on("deeplearning-worker1", "cat /efs/data/pets/cats/* /efs/data/pets/own") == "dog!mine\n"
    assert pets.on("deeplearning-worker1", "find /efs/data -name '.phalanx-*'") == ""


def test_copies_on_the_nodes_own_disks_and_where_one_says(pets):
    assert pets.phalanx("data", "stage", "pets", "--scratch").stdout.count("pets is in /scratch/data/pets: 2 obj") == 2
    sums = [pets.on(f"deeplearning-worker{node}", "md5sum < $PHALANX_SCRATCH/data/pets/large") for node in (1, 2)]
    assert [line.split()[0] for line in sums] == [hashlib.md5(LARGE).hexdigest()] * 2
    pets.phalanx("data", "stage", "sets", "--scratch")
    assert pets.on("deeplearning-worker2", "cat $PHALANX_SCRATCH/data/sets/sub/one") == "one", "what Lustre has, too"
    for directory in (".", "/efs/"):
        pets.phalanx("put", "s3://my-bucket/pets/cats", directory)
        assert pets.on("head", "cd /efs; cat a*; rm a*") in ("cat", "dog!")
    refused = pets.phalanx("put", "s3://my-bucket/pets/cats", "../x", check=False).stderr
    assert "/x is outside" in refused and "/efs" in refused
    for key in ("pets/large", "pets/cats"):
        pets.phalanx("put", f"s3://my-bucket/{key}", f"put/{key}")
    assert pets.on("head", "cd /efs/put/pets; echo cats/* large/*") == "cats/a b+%2Fé.txt large/large\n"


def test_objects_that_can_t_be_files_are_named_before_anything_is_written(pets):
    refused = pets.phalanx("data", "stage", "bad", check=False)
    assert refused.returncode == 1
    assert "error: bad: 'a/../../x' has a part that is empty, '.' or '..'; 'b' would be a file and a directory" in (
        refused.stderr
    )
    assert pets.on("deeplearning-worker1", "ls -A /efs/data/bad /efs/x 2>&1 || true").count("No such file") == 2
    nothing = pets.phalanx("data", "stage", "none", check=False)
    assert "s3://my-bucket/none/" in nothing.stderr
    unknown = pets.phalanx("data", "stage", "pet", check=False)
    assert "'pet'" in unknown.stderr and "'pets'" in unknown.stderr


def test_a_job_may_do_what_the_file_says_and_nothing_else(pets, bucket, tmp_path):
    from phalanx.jobs.own_code import write_package

    write_package("objects", tmp_path / "code", "node.sigv4")
    shutil.copy(JOBS / "rights.py", tmp_path / "code")
    ran = pets.phalanx(
        *("run", "--directory", str(tmp_path / "code"), "--launcher", "exec", "-n", "1", "--"), "python3", "rights.py"
    )
    shown = [line.removeprefix("[0] ") for line in ran.stdout.splitlines()]
    assert shown == ["200", "PUT pets/large 403", "DELETE pets/large 403", "GET secret 403", "GET  403"]
    assert bucket.get_object(Bucket="my-bucket", Key="runs/result")["Body"].read() == b"42"


def test_this_machine_copies_to_s3_and_back_and_goes_on_with_an_upload(pets, bucket, tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a b+%2Fé").write_text("x")
    (source / "large").write_bytes(LARGE)
    (source / "link").symlink_to("/etc/passwd")
    begun = bucket.create_multipart_upload(Bucket="my-bucket", Key="mine/large")["UploadId"]
    bucket.upload_part(Bucket="my-bucket", Key="mine/large", UploadId=begun, PartNumber=1, Body=LARGE[: 8 << 20])
    put = pets.phalanx("data", "put", str(source), "s3://my-bucket/mine", "--json")
    assert json.loads(put.stdout) == {
        "place": "s3://my-bucket/mine/",
        "objects": 2,
        "bytes": len(LARGE) + 1,
        "left_out": ["link: it is a link"],
        "unchanged": 0,
    }
    (source / "sub" / "a b+%2Fé").write_text("y")
    os.mkfifo(source / "pipe")
    (source / os.fsdecode(b"\xff")).touch()
    put = pets.phalanx("data", "put", str(source), "s3://my-bucket/mine", "--json", check=False)
    assert (put.returncode, len(json.loads(put.stdout)["left_out"]), json.loads(put.stdout)["unchanged"]) == (1, 3, 1)
    assert "Uploads" not in bucket.list_multipart_uploads(Bucket="my-bucket")
    listed = json.loads(pets.phalanx("data", "ls", "s3://my-bucket/mine", "--json").stdout)
    assert [one["key"] for one in listed] == ["mine/large", "mine/sub/a b+%2Fé"]
    pets.phalanx("data", "get", "s3://my-bucket/mine", str(tmp_path / "back"))
    assert (tmp_path / "back" / "large").read_bytes() == LARGE
    assert (tmp_path / "back" / "sub" / "a b+%2Fé").read_text() == "y"
    again = pets.phalanx("data", "get", "s3://my-bucket/mine", str(tmp_path / "back"), "--json")
    assert json.loads(again.stdout)["unchanged"] == 2
    pets.phalanx("data", "get", "s3://my-bucket/mine/large", str(tmp_path / "one"))
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["large"]
    assert "add --yes" in pets.phalanx("data", "rm", "s3://my-bucket/mine", check=False).stderr
    assert pets.phalanx("data", "rm", "s3://my-bucket/mine", "--yes").stdout == "deleted 2 objects\n"
    refused = pets.phalanx("data", "get", "s3://no-bucket/mine", check=False)
    assert "no bucket no-bucket" in refused.stderr


def newest(bucket: Any) -> str:
    """Return the file of the newest checkpoint; "" if a newer one has just replaced it."""
    listed = json.loads(bucket.get_object(Bucket="my-bucket", Key="runs/mnist/checkpoint.json")["Body"].read())
    (one,) = listed["files"].values()
    try:
        return bucket.get_object(Bucket="my-bucket", Key=one["key"])["Body"].read().decode()
    except bucket.exceptions.NoSuchKey:
        return ""


def test_checkpoints_in_s3_outlive_the_shared_directory(pets, bucket, tmp_path):
    shutil.copy(JOBS / "train.py", tmp_path)
    job = ("run", "--directory", str(tmp_path), "--launcher", "exec", "-n", "1", "--name", "mnist")
    checkpoint = ("--checkpoint", "s3://my-bucket/runs/mnist")
    first = pets.phalanx(*job, *checkpoint, "--", "python3", "train.py", "2", "0")
    assert "[0] goes on after 0" in first.stdout and newest(bucket) == "2"
    # As on a new cluster of that name.
    pets.on("deeplearning-worker1", "rm -r /efs/.phalanx/s3")
    again = pets.phalanx("run", "--resume", "mnist", "--directory", str(tmp_path))
    assert "[0] goes on after 2" in again.stdout and newest(bucket) == "4"
    assert re.search(r"\[checkpoints\] 1 file, 1 byte from s3://my-bucket/runs/mnist/, by job \S+", again.stdout)
    listed = bucket.list_objects_v2(Bucket="my-bucket", Prefix="runs/mnist/")["Contents"]
    assert len(listed) == 2

    # While it runs, and when it is stopped.
    long = pets.phalanx(*job, *checkpoint, "--detach", "--", "python3", "train.py", "1", "600").stdout.strip()
    until(lambda: newest(bucket) == "5", "the checkpoint of the fifth epoch")
    refused = pets.phalanx("run", "--resume", long, "--directory", str(tmp_path), check=False)
    assert f"job {long} keeps" in refused.stderr and "/efs/.phalanx/s3/my-bucket~runs~mnist/files" in refused.stderr
    pets.on("deeplearning-worker1", "echo 6 > /efs/.phalanx/s3/my-bucket~runs~mnist/files/epoch")
    pets.phalanx("stop", long)
    assert newest(bucket) == "6\n"


def test_a_job_that_may_not_write_its_checkpoints_begins_nothing(pets, tmp_path):
    job = ("run", "--directory", str(tmp_path), "--launcher", "exec", "-n", "1")
    for url, reason in (
        ("s3://my-bucket/pets", "s3://my-bucket/pets/checkpoint.json: no permission (PUT)"),
        ("s3://no-bucket/x", "s3://no-bucket/x/checkpoint.json: "),
    ):
        refused = pets.phalanx(*job, "--checkpoint", url, "--", "echo", "began", check=False)
        assert refused.returncode == 1 and f"--checkpoint {url}/: {reason}" in refused.stderr
        assert "began" not in refused.stdout


def test_a_job_reads_the_prefixes_that_lustre_is_linked_to_and_writes_to_s3(pets, bucket, tmp_path):
    shutil.copy(JOBS / "linked.py", tmp_path)
    words = ("--directory", str(tmp_path), "--launcher", "exec", "-n", "1", "--", "python3", "linked.py")
    shown = [line.removeprefix("[0] ") for line in pets.phalanx("run", *words).stdout.splitlines()]
    assert shown == [f"{hashlib.md5(LARGE).hexdigest()} earlier", "refused", "refused"]
    bucket.put_object(Bucket="my-bucket", Key="sets/new", Body=b"new")
    wait = "for _ in $(seq 2400); do [ ! -e /efs/data/sets/new ] || break; sleep 0.1; done; cat /efs/data/sets/new"
    assert pets.on("deeplearning-worker2", wait) == "new"
    # Both sides are looked at in turn, so that what was written before is there, too.
    assert bucket.get_object(Bucket="my-bucket", Key="out/of-a-job")["Body"].read() == b"42"


def test_what_is_linked_needs_no_staging(pets):
    refused = pets.phalanx("data", "stage", "sets", check=False)
    assert "error: sets: linked" in refused.stderr


def test_a_job_reads_mounted_prefixes_and_what_it_writes_is_in_s3_when_it_has_ended(pets, bucket, tmp_path):
    shutil.copy(JOBS / "mounted.py", tmp_path)
    words = ("--directory", str(tmp_path), "--launcher", "exec", "-N", "2", "--", "python3", "mounted.py")
    shown = pets.phalanx("run", *words).stdout.splitlines()
    ranks = {line[: line.index(" ")] for line in shown}
    for rank in ranks:
        own = [line.removeprefix(f"{rank} ") for line in shown if line.startswith(f"{rank} ")]
        assert own == ["one ['made', 'shelf']", "Read-only file system"]
    listed = bucket.list_objects_v2(Bucket="my-bucket", Prefix="made/")["Contents"]
    assert len(listed) == len(ranks) == 4
    assert bucket.get_object(Bucket="my-bucket", Key="made/a/3")["Body"].read() == b"of rank 3"
    bucket.put_object(Bucket="my-bucket", Key="shelf/new", Body=b"new")
    wait = "for _ in $(seq 2400); do [ ! -e /s3/shelf/new ] || break; sleep 0.1; done; cat /s3/shelf/new"
    assert pets.on("deeplearning-worker2", wait) == "new"


def on_root(pets: Terminal, node: str, command: str) -> str:
    done = pets.phalanx("exec", "--sudo", "--json", "--node", node, "--", command)
    return json.loads(done.stdout)[0]["stdout"]


def running(pets: Terminal, tmp_path: Any, command: str) -> str:
    """Start a job on both nodes, wait until each of its processes runs, and return its id."""
    words = ("--directory", str(tmp_path), "--launcher", "exec", "-N", "1", "--detach", "--")
    job = pets.phalanx("run", *words, "sh", "-c", f"echo began; {command}").stdout.strip()
    pets.wait_until_printed(job, "began", times=2)
    return job


def ended(pets: Terminal, job: str) -> str:
    """Wait until a job has ended; return what is said of that."""
    return pets.phalanx("logs", "--follow", job, check=False).stderr


def test_a_mount_that_ends_ends_the_job_with_that_reason_and_comes_back(pets, tmp_path):
    job = running(pets, tmp_path, "sleep 600")
    on_root(pets, "worker2", "umount -l /s3/shelf")
    reason = "deeplearning-worker2: the mount of shelf at /s3/shelf ended: it is not mounted"
    assert reason in ended(pets, job)
    wait = "for _ in $(seq 2400); do ! mountpoint -q /s3/shelf || break; sleep 0.1; done; cat /s3/shelf/sub/one"
    assert pets.on("deeplearning-worker2", wait) == "one"
    # As when Mountpoint's process is killed.
    job = running(pets, tmp_path, "sleep 600")
    on_root(pets, "worker1", "kill -9 $(pgrep -n -f 'mount-s3 my-bucket /s3/sh[e]lf')")
    assert reason.replace("worker2", "worker1") in ended(pets, job)


def test_a_head_that_restarts_while_s3_refuses_its_mounts_serves_and_names_them(pets):
    iam, ec2 = api(pets, "iam"), api(pets, "ec2")
    (role,) = [one["RoleName"] for one in iam.list_roles()["Roles"] if one["RoleName"].startswith("data-JobRole")]
    denied = {"Effect": "Deny", "Action": "s3:ListBucket", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [denied]})
    iam.put_role_policy(RoleName=role, PolicyName="refused", PolicyDocument=document)
    head = json.loads(pets.phalanx("status", "--json").stdout)["nodes"][0]["instance_id"]
    ec2.reboot_instances(InstanceIds=[head])
    job = ("run", "--launcher", "exec", "-n", "1", "--", "cat", "/s3/shelf/sub/one")
    why = "deeplearning-worker1: shelf at /s3/shelf can't be mounted: Error: Failed to create S3 client"
    wait_until(lambda: why in pets.phalanx(*job, check=False).stderr, why)
    iam.delete_role_policy(RoleName=role, PolicyName="refused")
    wait_until(lambda: "[0] one" in pets.phalanx(*job, check=False).stdout, "the mount")


def test_a_job_whose_file_mountpoint_could_not_upload_has_not_succeeded(pets, tmp_path):
    job = running(pets, tmp_path, "while [ ! -e /efs/go-on ]; do sleep 0.1; done")
    line = (
        'WARN release{req=8 name="out"}: mountpoint_s3_fs::fuse: release failed with errno 5: upload error: put failed'
    )
    on_root(pets, "worker2", f"echo '{line}' | tee -a $(ls /var/log/phalanx-s3/made/*)")
    pets.on("deeplearning-worker1", "touch /efs/go-on")
    reason = "deeplearning-worker2: not in S3, from /s3/made: out: errno 5: upload error: put failed"
    assert reason in ended(pets, job)


def test_the_example_trains_on_shards_that_are_read_from_s3(pets, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "shards_from_s3"
    subprocess.run([sys.executable, example / "images.py", tmp_path / "images", "1000"], check=True)
    pets.phalanx("data", "shard", str(tmp_path / "images"), str(tmp_path / "shards"), "--shards", "3")
    pets.phalanx("data", "put", str(tmp_path / "shards"), "s3://my-bucket/shapes")
    words = ("--directory", str(example), "--launcher", "torchrun", "-N", "1", "--env", "OMP_NUM_THREADS=1", "--")
    trained = pets.phalanx("run", *words, "train.py", "s3://my-bucket/shapes").stdout
    epochs = re.findall(r"\[0\] epoch \d: 1000 images from s3://my-bucket/shapes, accuracy (0\.\d+|1\.000)", trained)
    assert len(epochs) == 5 and float(epochs[-1]) > 0.75, trained


def test_mountpoint_has_the_rights_of_jobs_and_not_those_of_the_node(pets):
    """Root on a node has no credentials for S3 but the role of jobs', which the agent lends to its own mounts."""
    mount = "mkdir -p /mnt/x; {} mount-s3 my-bucket /mnt/x --prefix={} 2>&1; rmdir /mnt/x"
    assert "No signing credentials available" in on_root(pets, "worker2", mount.format("", "shelf/"))
    place = "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:331/"
    lent = f"{place} AWS_CONTAINER_AUTHORIZATION_TOKEN=$(cat /run/phalanx-s3.token)"
    refused = on_root(pets, "worker2", mount.format(lent, "secret/"))
    assert "initial ListObjectsV2 failed for bucket my-bucket in region us-east-1" in refused
    assert "Forbidden: " in refused and "assumed-role" in refused and "JobRole" in refused


def test_lustre_is_mounted_as_aws_s_client_would_and_only_where_its_port_is_let_in(pets):
    table = pets.on("deeplearning-worker2", "grep lustre /etc/fstab; grep ' /efs ' /proc/mounts")
    place = table.split()[0]
    assert re.fullmatch(r"fs-[0-9a-f]{17}\.fsx\.us-east-1\.amazonaws\.com@tcp:/[a-z2-7]{8}", place)
    assert f"{place} /efs lustre _netdev,relatime,flock,nosuid,nodev 0 0" in table
    assert "nosuid,nodev" in table.splitlines()[1]
    again = "cd /mnt; sudo mkdir -p again; sudo mount -t lustre -o flock {}{} again 2>&1; sudo umount again 2>&1"

    def mounted(wrong: str = "") -> str:
        return pets.phalanx("ssh", "--admin", "worker2", "--", again.format(place, wrong), check=False).stdout

    assert mounted() == ""
    assert "failed: No such file or directory\nIs the MGS specification correct?" in mounted("x")
    ec2 = api(pets, "ec2")
    (group,) = ec2.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["data-StorageSecurityGroup-*"]}]
    )["SecurityGroups"]
    rules = [one for one in group["IpPermissions"] if one["FromPort"] == 988]
    ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)
    assert "failed: Connection timed out" in mounted()
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)


def test_a_lustre_file_system_grows_in_place_with_its_data_and_its_nodes(pets):
    """Only then: what FSx can't change is refused before anything is asked of it."""
    file, fsx = pets.directory / "phalanx.yaml", api(pets, "fsx")
    text, (before,) = file.read_text(), fsx.describe_file_systems()["FileSystems"]
    nodes = [one["instance_id"] for one in json.loads(pets.phalanx("nodes", "--json").stdout)]
    pets.on("deeplearning-worker2", "echo kept > /efs/kept")
    file.write_text(text.replace("lustre: {", "lustre: {size_gib: 2400, "))
    try:
        changed = json.loads(pets.phalanx("up", "--yes", "--json").stdout)["changed"]["resources"]
        (shown,) = (one for one in changed if one["name"] == "FileSystem")
        assert (shown["action"], shown["replaced"]) == ("Modify", "False")
        (found,) = fsx.describe_file_systems()["FileSystems"]
        assert (found["FileSystemId"], found["StorageCapacity"]) == (before["FileSystemId"], 2400)
        assert [one["instance_id"] for one in json.loads(pets.phalanx("nodes", "--json").stdout)] == nodes
        assert pets.on("deeplearning-worker2", "cat /efs/kept") == "kept\n"
        file.write_text(text)
        assert_refused(pets.phalanx("up", "--yes", "--json", check=False), "settings-differ", "can't become smaller")
    finally:
        file.write_text(text)


def test_down_deletes_nothing_of_a_cluster_whose_data_shall_stay(pets):
    """Its file system is in the network that would go with it."""
    assert_refused(pets.phalanx("down", "--yes", "--json", check=False), "data-would-be-lost", "fs-")
    assert pets.on("deeplearning-worker2", "cat /efs/data/out/earlier") == "earlier"
