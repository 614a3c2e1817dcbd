"""A job leaves links where later copies from S3 will write: they lead nowhere that a job may not write itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_clouds import api
from terminals import Terminal

pytestmark = pytest.mark.cluster

SPEC = """\
name: links
cloud: local
nodes: 1
min: 1
type: c5d.large
shared: /efs
keep: no
data: {pets: s3://links-bucket/pets}
"""
# Of the copy's directory, of the file in it, and of the lock beside it, each to what is root's.
LINKS = {
    "the directory": "ln -s /etc/ssh pets",
    "a file": "mkdir pets && ln -s /etc/hosts pets/hosts",
    "the lock": "ln -s /etc/hosts .pets.lock",
}
ROOTS = "find /etc -newer /run/before ! -name known_hosts; cat /etc/hosts | sha256sum"


@pytest.fixture(scope="module")
def links(cluster: Terminal) -> Iterator[Terminal]:
    terminal = cluster.beside("links", SPEC)
    s3 = api(terminal, "s3")
    s3.create_bucket(Bucket="links-bucket")
    s3.put_object(Bucket="links-bucket", Key="pets/hosts", Body=b"6.6.6.6 deeplearning-master\n")
    terminal.phalanx("up")
    yield terminal
    terminal.phalanx("down", "--yes", "--keep", "no")


@pytest.mark.parametrize(("where", "link"), [("/efs", "a file"), *(("/scratch", link) for link in LINKS)])
def test_a_copy_writes_through_no_link_to_what_is_roots(links, where, link):
    place = f"{where}/data"
    links.phalanx("exec", "--sudo", "--", "touch /run/before")
    before = links.on("head", ROOTS)
    links.on("head", f"rm -rf {place}; mkdir -p {place} && cd {place} && {LINKS[link]}")
    copied = links.phalanx("data", "stage", "pets", *(["--scratch"] if where == "/scratch" else []), check=False)
    assert links.on("head", ROOTS) == before
    if copied.returncode == 0:
        assert links.on("head", f"stat -c '%F %U' {place}/pets/hosts") == "regular file phalanx\n"
    else:
        assert "Traceback" not in copied.stdout + copied.stderr
