"""phalanx.yaml: what is read, and every mistake in plain words with its line."""

import json
import random
import re
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import pytest
import yaml

from phalanx.errors import SpecError
from phalanx.spec import spec_checks as checks
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec import KEYS, ClusterSpec
from phalanx.spec.spec_init import init_text
from phalanx.spec.spec_load import load

# What the system runs or reads as root is in these, or may be.
HELD_BY_ROOT = (
    *(
        "/home/ubuntu",
        "/home/ec2-user/x",
        "/var/lib/cloud",
        "/var/spool/cron",
        "/opt/aws",
        "/srv/x",
        "/tmp/x",
        "/run/x",
    ),
    *("/media/x", "/snap/bin", "/emr", "/mnt", "/mnt/yarn", "/mnt/var/lib"),
    # Other images' systems have these, and what a later one has is not known.
    *("/usr2", "/nix/store", "/ostree", "/sysroot", "/afs", "/app", "/x", "/.efs", "/scratch"),
)
GOOD = "name: demo\nnodes: 4\n"


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "phalanx.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def mistakes(write):
    """The lines of the SpecError for a text, without the directory of the file."""

    def mistakes(content: str | bytes) -> list[str]:
        path = write(content)
        with pytest.raises(SpecError) as caught:
            load(path)
        return str(caught.value).replace(f"{path.parent}/", "").split("\n")

    return mistakes


def test_two_lines_are_enough(write):
    assert asdict(load(write(GOOD))) == {
        "name": "demo",
        "cloud": "local",
        "region": "us-east-1",
        "zones": None,
        "nodes": 4,
        "min": 1,
        "type": "c5.large",
        "head": None,
        "emr": None,
        "capacity": None,
        "image": None,
        "shared": "/efs",
        "slots": None,
        "network": None,
        "ssh_from": "127.0.0.1/32",
        "key_pair": None,
        "node_timeout_s": 600,
        "storage": None,
        "file_system": None,
        "throughput": None,
        "metrics": None,
        "disk": None,
        "placement": None,
        "efa": None,
        "policies": None,
        "data": None,
        "lustre": None,
        "permissions_boundary": None,
        "cloudformation_role": None,
        "kms_key": None,
        "tls": None,
        "tags": None,
        "bucket": None,
        "keep": None,
        "lease_s": None,
        "idle_s": None,
        "down_after_s": None,
        "job": None,
        "budget": None,
        "mail": None,
        "boot": None,
        "other_types": (),
    }


@pytest.mark.parametrize(
    ("shown", "keep"), [("yes", "yes"), ("no", "no"), ("No", "no"), ("'no'", "no"), ("ask", "ask")]
)
def test_keep_is_a_word_although_yaml_has_truth_values(write, shown, keep):
    assert load(write(GOOD + f"keep: {shown}\n")).keep == keep


def test_every_key(write):
    spec = load(
        write(
            "name: A-1\ncloud: aws\nregion: eu-central-1\nnodes: 16\nmin: 16\ntype: p5.48xlarge\n"
            "image: /aws/service/x\nshared: /mnt/fs/\nslots: 8\nssh_from: 203.0.113.9\nkey_pair: my key\n"
            "node_timeout: 1m30s\nboot: |\n  true\n  false\n"
        )
    )
    assert (spec.name, spec.cloud, spec.region, spec.nodes, spec.min) == ("A-1", "aws", "eu-central-1", 16, 16)
    assert (spec.type, spec.image, spec.shared, spec.slots) == ("p5.48xlarge", "/aws/service/x", "/mnt/fs", 8)
    assert (spec.ssh_from, spec.key_pair, spec.node_timeout_s) == ("203.0.113.9/32", "my key", 90)
    assert spec.boot == "true\nfalse\n"


@pytest.mark.parametrize(
    "text", ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), "---\n" + GOOD, "name: &n demo\nnodes: 4\n"]
)
def test_harmless_variants_of_the_file(write, text):
    assert load(write(text)).name == "demo"


def test_a_group_of_keys_is_written_in_one_line_or_in_several(write):
    in_one = load(write(GOOD + "disk: {size_gib: 8, type: IO1, iops: 400}\ntags: {cost center: ML-7}\n"))
    in_several = load(write(GOOD + "disk:\n  size_gib: 8\n  type: io1\n  iops: 400\ntags:\n  cost center: ML-7\n"))
    assert in_one == in_several == replace(in_one, nodes=4)
    assert (in_one.disk, in_one.tags) == ({"size_gib": 8, "type": "io1", "iops": 400}, {"cost center": "ML-7"})


def test_an_image_by_its_id(write):
    assert load(write(GOOD + "image: ami-0123456789abcdef0\n")).image == "ami-0123456789abcdef0"


def test_a_spec_is_frozen():
    spec = ClusterSpec(name="demo", nodes=1)
    with pytest.raises(FrozenInstanceError):
        spec.nodes = 2  # type: ignore[misc]


def test_a_spec_made_in_python_is_checked_as_the_file_is():
    with pytest.raises(SpecError) as caught:
        ClusterSpec(name="1st", nodes="4", min=True, cloud="aws", keep="maybe")  # type: ignore[arg-type]
    assert str(caught.value).split("\n") == [
        "name: '1st' can't be the name of a cluster; begin with a letter, then letters, digits and '-'; at most 48",
        "nodes: must be int, is '4'",
        "min: must be int, is True",
        "ssh_from: is missing: who may reach the head by ssh?; write your own network, such as 203.0.113.7/32 "
        "(auto finds it), or anywhere",
        "keep: must be yes, no or ask, is 'maybe'; valid: ask, no, yes",
    ]


def test_a_checked_spec_can_be_changed_in_one_field(write):
    spec = load(write(GOOD + "cloud: aws\nssh_from: anywhere\nshared: /mnt//fs/\nkeep: NO\nnode_timeout: 1m\n"))
    assert replace(replace(spec, nodes=8), nodes=4) == spec


@pytest.mark.parametrize("path", ["/share", "/shared/x", "/data-1", "/datasets", "/workspace", "/mnt/nas"])
def test_usual_names_of_a_shared_directory_are_allowed(write, path):
    assert load(write(f"{GOOD}shared: {path}\n")).shared == path


def test_all_mistakes_at_once_in_order_of_lines(mistakes):
    text = "nodez: 3\nname: 1st\nnodes: 0\nmin: yes\ntype: c5\nregion: us-est-1\nnode_timeout: 10\n"
    assert [line.split(": ", 2)[:2] for line in mistakes(text)] == [
        ["phalanx.yaml:1", "nodez"],
        ["phalanx.yaml:2", "name"],
        ["phalanx.yaml:3", "nodes"],
        ["phalanx.yaml:4", "min"],
        ["phalanx.yaml:5", "type"],
        ["phalanx.yaml:6", "region"],
        ["phalanx.yaml:7", "node_timeout"],
    ]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("nodse: 4", "nodse: is not a key of phalanx.yaml; did you mean nodes?"),
        ("zzz: 4", f"zzz: is not a key of phalanx.yaml; valid: {', '.join(sorted(KEYS))}"),
        ("spot: yes", "spot: is not a key of phalanx.yaml; write `capacity: spot`"),
        ("workers: 4", "workers: is not a key of phalanx.yaml; write `nodes`, which counts the head, too"),
        ("instanceType: x", "instanceType: is not a key of phalanx.yaml; write `type`"),
        ("InstanceCount: 4", "InstanceCount: is not a key of phalanx.yaml; write `nodes`"),
        ("Min: 4", "Min: is not a key of phalanx.yaml; write `min`"),
        ("per_node: 4", "per_node: is not a key of phalanx.yaml; write `per_node` below `job`"),
        ("perNode: 4", "perNode: is not a key of phalanx.yaml; write `per_node` below `job`"),
        ("restarts: 4", "restarts: is not a key of phalanx.yaml; write `restarts` below `job`"),
        ("fsx: x", "fsx: is not a key of phalanx.yaml; write `storage: lustre`"),
        ("KeyName: x", "KeyName: is not a key of phalanx.yaml; write `key_pair`"),
        ("node_timeout_s: 4", "node_timeout_s: is not a key of phalanx.yaml; did you mean node_timeout?"),
        ("min: 5", "min: must be at most nodes (4), is 5"),
        ("min: 0", "min: must be at least 1, is 0"),
        ("min: yes", "min: must be a whole number, is yes, which YAML reads as true; write digits only"),
        ('min: "2"', "min: must be a whole number, is the text '2'; write digits only"),
        ("min: 2.0", "min: must be a whole number, is the number 2.0;"),
        ("min: 010", "min: must be a whole number, is the number 010;"),
        ("min: 1:30", "min: must be a whole number, is the number 1:30;"),
        ("min: 2024-01-02", "min: must be a whole number, is 2024-01-02, which YAML reads as a date;"),
        ("min: [2]", "min: must be a whole number, is a list;"),
        ("min: {a: 2}", "min: must be a whole number, is a group of keys;"),
        ("min: " + "9" * 5000, "min: must be a whole number, is the number 9999"),
        ("zones: us-east-1a", "zones: must be a list, is the text 'us-east-1a'; write one such as [first, second]"),
        ("zones: []", "zones: must have 1 to 10 entries, has 0"),
        ("zones: [1]", "zones: '1' is not the name of an ordinary zone, such as us-east-1a"),
        ("zones: [use1-az1]", "zones: 'use1-az1' is not the name of an ordinary zone, such as us-east-1a"),
        ("zones: [us-east-1-atl-2a]", "zones: 'us-east-1-atl-2a' is not the name of an ordinary zone, such as"),
        ("zones: [us-east-1a, us-east-1a]", "zones: has us-east-1a twice; remove one"),
        ("zones: [us-east-1a, eu-west-1a]", "zones: eu-west-1a is not a zone of us-east-1; write zones such as"),
        ("throughput: fast", "throughput: must be bursting or elastic, is 'fast'"),
        ("slots:", "slots: has no value; write one, or remove the line"),
        ("slots: ~", "slots: has no value;"),
        ("slots: 0", "slots: must be at least 1, is 0"),
        ("cloud: awz", "cloud: 'awz' is not a cloud that phalanx supports; did you mean aws?"),
        ("cloud: gcp", "cloud: 'gcp' is not a cloud that phalanx supports; valid: aws, emr, local, local-emr"),
        ("cloud: no", "cloud: must be text, is no, which YAML reads as false; put it in quotes"),
        ("region: us-east1", "region: 'us-east1' is not an AWS region; did you mean us-east-1"),
        ("type: 5", "type: must be text, is the number 5;"),
        ("type: c5large", "type: 'c5large' is not an instance type; did you mean c5.large"),
        ("image: ami-0abc", "image: 'ami-0abc' is not a known image; did you mean ami-…"),
        ("tags: team", "tags: must be a group of keys, is the text 'team'"),
        ("tags: {}", "tags: must have 1 to 40 entries, has 0"),
        ("tags: {team: 7}", "tags: team must be text, is the number 7; put it in quotes if that is what you mean"),
        ("tags: {Name: x}", "tags: the name Name is reserved; 1 to 40 names"),
        ("tags: {a: {b: c}}", "tags: a must be text, is a group of keys"),
        ("tags: {a: x, a: y}", "tags.a: is written twice, first in line 3; remove one"),
        (
            "data: {a: /x, B: s3://my-bucket}",
            "data: '/x' can't be the value of a, and 'B' can't be a name; 1 to 10 names",
        ),
        ("data: {a: s3://my-bucket/x/../y}", "data: 's3://my-bucket/x/../y' can't be the value of a"),
        ("data: {a: 's3://my-bucket/*'}", "data: 's3://my-bucket/*' can't be the value of a"),
        ("data: {a: s3://my-bucket wo}", "data: 's3://my-bucket wo' can't be the value of a"),
        ("policies: [ReadOnly]", "policies: 'ReadOnly' is not the ARN of a managed policy, such as arn:aws:iam::aws:"),
        (
            "permissions_boundary: b",
            "permissions_boundary: 'b' is not the ARN of a managed policy; such as arn:aws:iam::1",
        ),
        ("head: {type: m5large}", "head: type 'm5large' is not an instance type; did you mean m5.large"),
        ("head: {trains: no}", "head: has no key 'trains'; valid: type"),
        ("capacity: cheap", "capacity: 'cheap' is no way to buy machines; write on-demand, spot, or the id"),
        ("efa: maybe", "efa: must be yes or no, is 'maybe'"),
        ("tls: maybe", "tls: must be required, is 'maybe'"),
        ("placement: a*b", "placement: 'a*b' can't be the name of a placement group; write cluster, or the name"),
        ("disk: 200", "disk: must be a group of keys, is the number 200"),
        ("disk: {}", "disk: has no keys; write one of size_gib, type, iops, throughput_mib_s, or remove the line"),
        ("disk: {size: 200}", "disk: has no key 'size'; did you mean size_gib?"),
        ("disk: {size_gib: 0}", "disk: size_gib must be at least 1, is 0"),
        ("disk: {size_gib: 2 TB}", "disk: size_gib must be a whole number, is the text '2 TB'; write digits only"),
        ("disk: {type: io2}", "disk: must have iops for the type io2; such as 100"),
        ("disk: {type: gp2, iops: 3000}", "disk: can't have iops for the type gp2; choose the type gp3, io1 or io2"),
        ("disk: {type: gp2, size_gib: 20000}", "disk: size_gib must be from 1 to 16384 for the type gp2, is 20000"),
        ("disk: {iops: 2999}", "disk: iops must be from 3000 to 80000 for the type gp3, is 2999"),
        (
            "disk: {iops: 5000, size_gib: 8}",
            "disk: can't have 5000 iops with 8 GiB: gp3 allows 500 for each GiB; at least 10",
        ),
        (
            "disk: {type: io2, iops: 9000, throughput_mib_s: 500}",
            "disk: can't have throughput_mib_s for the type io2; only gp3",
        ),
        ("image: ubuntu-24", "image: 'ubuntu-24' is not a known image; did you mean ubuntu-24.04"),
        ("shared: efs", "shared: must be an absolute path, is 'efs'; letters"),
        ("shared: /a/../etc", "shared: must be an absolute path, is '/a/../etc';"),
        ("shared: /my data", "shared: must be an absolute path, is '/my data';"),
        ("shared: /", "shared: '/' may belong to the system of a node, as images differ; name one below /mnt,"),
        *((f"shared: {path}", f"shared: '{path}' may belong to the system") for path in HELD_BY_ROOT),
        ("shared: //usr//local", "shared: '/usr/local' may belong to the system"),
        ("shared: /efs/./x", "shared: '/efs/x' may belong"),
        ("shared: /etc", "shared: '/etc' may belong to the system"),
        ("shared: /opt", "shared: '/opt' may belong to the system"),
        ("shared: /opt/phalanx/x", "shared: '/opt/phalanx/x' may belong to the system"),
        ("ssh_from: 0.0.0.0/0", "ssh_from: '0.0.0.0/0' opens ssh to the whole internet; write `ssh_from: anywhere`"),
        ("ssh_from: 10.0.0.5/8", "ssh_from: '10.0.0.5/8' is an address inside a network; write 10.0.0.0/8"),
        ("ssh_from: 10.0.0.0/33", "ssh_from: '10.0.0.0/33' is not a network; write one such as"),
        ("ssh_from: [auto, auto]", "ssh_from: must have 1 to 50 different entries"),
        ("ssh_from: [auto, home]", "ssh_from: 'home' is not a network;"),
        (
            "ssh_from: [0.0.0.0/1, 128.0.0.0/1]",
            "ssh_from: 0.0.0.0/1, 128.0.0.0/1 together open ssh to the whole internet; write `ssh_from: anywhere`",
        ),
        ("ssh_from: [auto, 128.0.0.0/2, 64.0.0.0/2, 0.0.0.0/2, 192.0.0.0/3]", "ssh_from: 128.0.0.0/2, 64.0.0.0/2,"),
        ('ssh_from: "::1"', "ssh_from: '::1' is an IPv6 network"),
        ("ssh_from: home", "ssh_from: 'home' is not a network;"),
        ("node_timeout: 600", "node_timeout: must be a time with its unit, is '600'; such as 600s, 600m or 600h"),
        ("node_timeout: 10 m", "node_timeout: must be a time with its unit, is '10 m'; such as 90s"),
        ("keep: maybe", "keep: must be yes, no or ask, is 'maybe'"),
        ("file_system: fs-xyz", "file_system: must be the id of a file system of EFS or FSx, is 'fs-xyz'"),
        ("node_timeout: 0s", "node_timeout: must be from 1s to 45m, is 0s; the stack itself"),
        ("node_timeout: 2h", "node_timeout: must be from 1s to 45m, is 7200s;"),
        ("node_timeout: yes", "node_timeout: must be a time with its unit, is yes, which YAML reads as true;"),
        ('key_pair: " k"', "key_pair: ' k' can't be the name of an EC2 key pair;"),
        ("name: other", "name: is written twice, first in line 1; remove one"),
        ("<<: {min: 2}", "<<: is not a key of phalanx.yaml;"),
        ("[a]: 2", "a key must be a word, is a list"),
        ("min: !Ref x", "min: must be a whole number, is x, tagged !Ref;"),
    ],
)
def test_one_mistake(mistakes, line, shown):
    (found,) = mistakes(GOOD + line + "\n")
    assert found.startswith(f"phalanx.yaml:3: {shown}")


@pytest.mark.parametrize("name", ["1st", "-a", "my_cluster", "my cluster", "ä", "a" * 49, "a.b", '""'])
def test_names_that_a_cluster_can_t_have(mistakes, name):
    (found,) = mistakes(f"name: {name}\nnodes: 1\n")
    assert "can't be the name of a cluster" in found
    assert found.endswith("begin with a letter, then letters, digits and '-'; at most 48")


def test_a_name_that_yaml_reads_as_a_number(mistakes):
    assert mistakes("name: 123\nnodes: 1\n") == [
        "phalanx.yaml:1: name: must be text, is the number 123; put it in quotes if that is what you mean"
    ]


def test_missing_keys(mistakes):
    assert mistakes("min: 2\n") == [
        "phalanx.yaml:1: name: is missing; add a line such as `name: demo`",
        "phalanx.yaml:1: nodes: is missing; add a line such as `nodes: 4`",
    ]


def test_a_mistake_in_nodes_does_not_hide_one_in_min(mistakes):
    assert len(mistakes("name: a\nnodes: 0\nmin: 0\n")) == 2


def test_aws_must_say_who_may_ssh(mistakes, write):
    (found,) = mistakes(GOOD + "cloud: aws\n")
    assert "ssh_from: is missing" in found
    assert load(write(GOOD + "cloud: aws\nssh_from: anywhere\n")).ssh_sources == ("anywhere",)


def test_networks_that_leave_a_part_of_the_internet_out_are_allowed(write):
    for given in ("[0.0.0.0/1, 203.0.113.0/24]", "[10.0.0.0/8, 172.16.0.0/12]", "[anywhere, 0.0.0.0/1, 128.0.0.0/1]"):
        assert load(write(GOOD + f"cloud: aws\nssh_from: {given}\n")).ssh_sources


def test_boot_limit_is_of_the_compressed_script():
    assert checks.boot("echo the same line again and again\n" * 20_000)
    with pytest.raises(checks.WrongError, match=f"and at most {checks.LARGEST_BOOT_BYTES} fit"):
        checks.boot(random.Random(1).randbytes(checks.LARGEST_BOOT_BYTES).hex())


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n", "must contain lines such as `name: demo`, is a list"),
        (b"just words", "must contain lines such as `name: demo`, is the text 'just words'"),
        (b"name: a\n\tnodes: 1\n", "a tab can't indent in YAML; use spaces"),
        (b"name: a: b\n", "a second `: ` in one line"),
        (b"name: 'a\n", "a quote is not closed"),
        (b"name: a\n---\nname: b\n", "contains more than one document"),
        (b"name: *x\n", "an alias (*name) refers to nothing"),
        (b"name: &x [*x]\n", "an alias (*name) refers to a list or a group; write it out"),
        (b"name:a\nnodes: 1\n", "check the indentation and the space after the colon above"),
        (b"name: @x\n", "a value begins with a character that YAML reserves"),
        (b"name: a\n nodes: 1\n", "a second `: ` in one line; quote the value, or check the indentation"),
        (b"name: a\x00b\n", "contains the character U+0000, which YAML does not allow"),
        (b"name: \xff\n", "is not UTF-8 text (byte 0xff)"),
        ("name: a\n".encode("utf-16"), "is UTF-16 text"),
        (b"[" * 900, "phalanx.yaml:1: is nested too deeply; phalanx.yaml is a flat list of `key: value`"),
        (b"name: demo\nnodes: " + b"[" * 1000 + b"]" * 1000, "phalanx.yaml:2: is nested too deeply"),
        (b"a: {" * 100, "is nested too deeply"),
        (b"- " * 100, "is nested too deeply"),
        ("".join(f"{' ' * level}a:\n" for level in range(100)).encode(), "is nested too deeply"),
        (rb'name: "\ud83d"', "phalanx.yaml:1: contains half of a character (\\ud83d); write the character itself"),
        (rb'"\ud83d": 1', "phalanx.yaml:1: contains half of a character"),
        (rb'boot: "\udc4d\ud83d"', "phalanx.yaml:1: contains half of a character"),
        (b"a" * 300_000, "is larger than 256 KiB"),
    ],
)
def test_what_is_no_yaml(mistakes, content, shown):
    assert shown in mistakes(content)[0]


def test_deep_nesting_is_refused_before_it_is_read_to_its_end(write, monkeypatch):
    """PyYAML's work grows with the square of the depth: 0.5 s for a thousand brackets."""
    brackets = 0

    def fetch(loader, *arguments):
        nonlocal brackets
        brackets += 1
        return fetched(loader, *arguments)

    fetched = yaml.SafeLoader.fetch_flow_collection_start
    monkeypatch.setattr(yaml.SafeLoader, "fetch_flow_collection_start", fetch)
    with pytest.raises(SpecError):
        load(write("a: " + "[" * 1000))
    assert brackets < 50


def test_a_character_as_json_writes_it(write):
    """`json.dumps` writes what lies beyond U+FFFF as two escapes."""
    text = json.dumps({"name": "demo", "nodes": 2, "boot": "echo 👍 ä"})
    assert "\\ud83d\\udc4d" in text
    assert load(write(text)).boot == "echo 👍 ä"


def test_init_text_is_a_good_spec(write):
    spec = load(write(init_text("first")))
    assert (spec.name, spec.cloud, spec.nodes, spec.min) == ("first", "local", 4, 2)


def test_init_text_for_aws_wants_one_thing(mistakes):
    (found,) = mistakes(init_text("first", "aws"))
    assert "ssh_from" in found


@pytest.mark.parametrize("cloud", CLOUDS)
def test_init_text_has_ten_keys_in_short_lines_and_names_the_page_of_all(cloud):
    text = init_text("a" * 40, cloud)
    assert len(re.findall(r"^(?:# )?[a-z_]+: ", text, re.MULTILINE)) == 10
    assert max(map(len, text.splitlines())) <= 100
    assert "docs/phalanx-yaml.md" in text


@pytest.mark.parametrize(
    ("line", "timeout_s"),
    [
        ("type: c5.large", 600),
        ("type: c5.metal", 1800),
        ("type: [c5.large, m7i.metal-24xl]", 1800),
        ("head: {type: c5.metal}", 1800),
        ("type: c5.metal\nnode_timeout: 10m", 600),
    ],
)
def test_bare_metal_has_longer_to_answer(write, line, timeout_s):
    assert load(write(f"name: demo\nnodes: 2\n{line}\n")).node_timeout_s == timeout_s
