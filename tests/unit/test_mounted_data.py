"""`data` with ` mount`: what is refused, what the plan says, and what nodes get."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, aws_spec, plan, spec
from error_codes import raises_code
from fake_cloud import FakeAws

from phalanx.aws import buckets
from phalanx.cli.mounted import scattered
from phalanx.cluster.cluster_record import Cluster
from phalanx.connection import attached
from phalanx.errors import CloudError, SpecError
from phalanx.node import data_mounts
from phalanx.node.command import CommandError
from phalanx.plan.mounted_data import MOST_COUNTED, Contents
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import describe, explain, warnings
from phalanx.spec.spec_data import MOUNTS_BYTES
from phalanx.template import egress, fleet, userdata

DATA = {"pets": "s3://my-bucket/pets mount", "runs": "s3://my-bucket/a/runs/ rw mount", "other": "s3://my-bucket"}


AWS = replace(FACTS, cloud="aws")


def on_aws(**fields: Any) -> Plan:
    return make_plan(aws_spec(**fields), AWS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": {"a": "s3://my-bucket mount rw"}}, "'s3://my-bucket mount rw' can't be the value of a"),
        (
            {"cloud": "local-emr", "emr": {"logs": "s3://my-bucket/logs"}, "data": DATA},
            "data: has ` mount`, and phalanx mounts nothing on EMR; stage the prefix, or read s3:// with EMRFS",
        ),
        (
            {"data": {f"name{n}": f"s3://my-bucket/{'x' * 100} mount" for n in range(6)}},
            f"mounts prefixes whose names have 707 characters together, and {MOUNTS_BYTES} are possible",
        ),
        (
            {"data": DATA, "storage": "lustre", "lustre": {"data": ["pets"]}},
            "lustre: data links pets, which `data` mounts; do one of the two",
        ),
    ],
)
def test_what_can_t_be_mounted(fields, message):
    with pytest.raises(SpecError) as refused:
        spec(**fields)
    assert message in str(refused.value)


def test_a_private_network_without_amazon_linux_has_no_mountpoint():
    private = {"cloud": "aws", "network": {"access": "private"}, "data": DATA}
    with raises_code("image-lacks", "dlami-base"):
        make_plan(spec(image="dlami-base", **private), AWS)
    make_plan(spec(image="amazon-linux-2023", **private), AWS)


def test_the_plan_says_where_prefixes_are_mounted_and_what_is_in_them():
    counted = {"pets": Contents(2, 8), "runs": Contents(MOST_COUNTED, MOST_COUNTED * 4096, is_all=False)}
    made = plan(replace(FACTS, data=counted), data=DATA)
    assert dict(describe(made))["data of jobs"] == (
        "pets: s3://my-bucket/pets/ (read; mounted at /s3/pets, 2 objects, 8 bytes), "
        "runs: s3://my-bucket/a/runs/ (read, write; mounted at /s3/runs, more than 20,000 objects), "
        "other: s3://my-bucket/ (read)"
    )
    (scattered,) = [one for one in warnings(made) if "on average" in one]
    assert scattered == (
        "data: runs has more than 20,000 objects of 4.0 KiB on average, and through a mount every file costs requests "
        "of its own: `phalanx data stage runs` copies them once, and `phalanx data shard` packs them into few large "
        "files"
    )


@pytest.mark.parametrize(
    "contents", [Contents(1000, 0), Contents(1001, 1001 << 20), Contents(0, 0)], ids=["few", "large", "none"]
)
def test_few_or_large_objects_suit_a_mount(contents):
    assert not [one for one in explain(plan(replace(FACTS, data={"pets": contents}), data=DATA)) if "average" in one]


def test_the_plan_says_that_a_bind_plays_mountpoint_here():
    assert any("a bind of the bucket's files plays Mountpoint" in one for one in warnings(plan(data=DATA)))
    assert not any("plays Mountpoint" in one for one in warnings(on_aws(data=DATA)))


class Listed(FakeAws):
    """Lists objects of `sizes`, one after another, and notes how many were taken."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes, self.taken = sizes, 0

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        assert (service, operation, arguments) == ("s3", "list_objects_v2", {"Bucket": "my-bucket", "Prefix": "pets/"})
        yield {"Key": "pets/", "Size": 0}
        for size in self.sizes:
            if size < 0:
                raise CloudError("s3:ListObjectsV2: AccessDenied", "")
            self.taken += 1
            yield {"Key": "pets/x", "Size": size}


def test_objects_are_counted_without_markers_and_only_as_many_as_decide():
    only = {"pets": DATA["pets"]}
    assert buckets.count(Listed(1, 2), only) == {"pets": Contents(2, 3)}
    many = Listed(*[1] * (MOST_COUNTED + 100))
    assert buckets.count(many, only) == {"pets": Contents(MOST_COUNTED, MOST_COUNTED, is_all=False)}
    assert many.taken == MOST_COUNTED + 1
    assert buckets.count(Listed(1, -1), only) == {}
    assert buckets.count(Listed(1), {"pets": "s3://my-bucket/pets"}) == {}


def test_nodes_are_told_what_to_mount():
    setting = fleet.config("worker", plan(data=DATA))["data"]
    pets, runs = data_mounts.of(setting)
    assert pets == data_mounts.Mount("pets", "my-bucket", "pets/", False)
    assert runs == data_mounts.Mount("runs", "my-bucket", "a/runs/", True)
    assert data_mounts.of("all:my-bucket/") == [data_mounts.Mount("all", "my-bucket", "", False)]
    assert "data" not in fleet.config("worker", plan(data={"other": DATA["other"]}))


def test_the_longest_mounts_fit_into_user_data():
    data = {f"name{n}": f"s3://my-bucket/{'x' * 100} mount" for n in range(5)}
    config = {key: value for key, value in fleet.config("head", plan(data=data)).items() if isinstance(value, str)}
    assert len(config["data"]) > 580
    assert len(userdata.render(config)) < userdata.LIMIT_BYTES - 4096


def test_mountpoint_is_told_what_it_may_do(tmp_path):
    pets, runs = data_mounts.of(fleet.config("worker", plan(data=DATA))["data"])
    read = " ".join(data_mounts.command(pets, "us-east-1", 1001, str(tmp_path)))
    assert read == (
        "mount-s3 my-bucket /s3/pets --region=us-east-1 --log-directory=/var/log/phalanx-s3/pets --uid=1001 --gid=1001 "
        "--allow-other --prefix=pets/ --read-only --cache=/var/cache/phalanx-s3/pets"
    )
    written = " ".join(data_mounts.command(runs, "us-east-1", 1001, str(tmp_path)))
    assert written.endswith("--prefix=a/runs/ --allow-delete --allow-overwrite") and "--cache" not in written


def test_ubuntu_nodes_reach_the_server_that_has_mountpoint():
    def hosts(image: str, data: Any) -> set[str]:
        return {one.host for one in egress.of(on_aws(image=image, data=data), "amazonaws.com")}

    assert "s3.amazonaws.com" in hosts("ubuntu-24.04", DATA)
    assert "s3.amazonaws.com" not in hosts("ubuntu-24.04", {"other": DATA["other"]})
    assert "s3.amazonaws.com" not in hosts("amazon-linux-2023", DATA)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("python", "train.py", "--data=/s3/pets/a"), ["pets"]),
        (("sh", "-c", "ls /s3/pets; ls /s3/runs"), ["pets", "runs"]),
        (("python", "train.py", "/s3/pets2", "/efs/data/pets", "/s3/other"), []),
    ],
)
def test_run_counts_the_mounted_prefixes_that_its_command_names(monkeypatch, command, names):
    asked: list[str] = []

    def count(_: Any, data: dict[str, str]) -> dict[str, Contents]:
        asked.extend(data)
        return dict.fromkeys(data, Contents(60_000, 60_000))

    monkeypatch.setattr(buckets, "count", count)
    cluster = Cluster("pets", "local", "us-east-1", spec={"data": {**DATA, "pets2": "s3://my-bucket/pets2"}})
    said = list(scattered(attached(cluster), command))
    assert asked == names
    assert [one.split()[1] for one in said] == names
    assert all("has 60,000 objects, 58.6 KiB of 1 byte on average" in one for one in said)


def test_jobs_can_t_put_another_directory_in_the_place_of_a_cache(tmp_path):
    """The instance's own disks belong to jobs, and root removes what it finds in a cache."""
    data_mounts.keep_own_place(str(tmp_path))
    data_mounts.keep_own_place(str(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    place = tmp_path / ".phalanx-s3"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.rmdir()
    place.symlink_to("/tmp")
    with pytest.raises(CommandError, match="something of a job is in the way"):
        data_mounts.keep_own_place(str(tmp_path))
