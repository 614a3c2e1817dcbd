"""User data of strangers: whatever it is, a node gets scripts of limited size, or the console says what is wrong."""

from __future__ import annotations

import base64
import gzip
import tracemalloc

import pytest

from localcloud.nodes.user_data import scripts


def read(text: str | bytes) -> dict[str, str]:
    return scripts(text if isinstance(text, bytes) else text.encode(), "ubuntu")


def test_a_script_is_run_as_it_is_whatever_its_bytes():
    data = b"#!/bin/sh\necho \xff\xfe\r\n"
    assert read(data)["scripts/part-001"].encode("utf-8", "surrogateescape") == data
    assert read(gzip.compress(data)) == read(data)
    assert read(b"") == {}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("#cloud-config\nusers: [", "unreadable"),
        ("#cloud-config\n- a list\n", "must be a mapping"),
        ("#cloud-config\nwrite_files: 7\n", "write_files is unreadable"),
        ("#cloud-config\nwrite_files: [{content: x}]\n", "write_files is unreadable"),
        ("#cloud-config\nwrite_files: [{path: /x, permissions: '0644; id'}]\n", "permissions"),
        ("#cloud-config\nwrite_files: [{path: /x, owner: 'a; id'}]\n", "owner"),
        ("#cloud-config\nwrite_files: [{path: /x, encoding: b64, content: '%'}]\n", "write_files is unreadable"),
        ("#cloud-config\nusers: [{name: '$(id)'}]\n", "user"),
        ("#cloud-config\nhostname: 'a; id'\n", "hostname"),
        ("#cloud-config\nruncmd: {a: b}\n", "runcmd is unreadable"),
        ("#cloud-config\nmounts: [[tmpfs, '/m; id\\nx', tmpfs]]\n", "blanks"),
        ("#cloud-config\nmounts: [[ephemeral0, /mnt]]\n", "ephemeral0 is not mounted"),
        ("#cloud-config\nx: !!python/object/apply:os.system [id]\n", "unreadable"),
        ("#include\nhttp://x/\n", "x-include-url is not served"),
        ("## template: jinja\n#cloud-config\n", "jinja2 is not served"),
        ("MZ\x00", "not a script"),
        (b"\x1f\x8b\x08broken", "unreadable"),
        (gzip.compress(b"#!/bin/sh\n" + b"#" * (2 << 20)), "unpacks to more than"),
        ("#cloud-config\na: &a [x, x]\nb: &b [*a, *a]\nruncmd: [*b]\n" + "x: " + "[" * 900, "unreadable"),
    ],
)
def test_what_can_not_be_read_is_named_and_the_node_boots(data: str | bytes, why: str):
    found = read(data)
    assert why in found["config"]
    assert "os.system" not in str(found.get("scripts/runcmd"))
    assert set(found) <= {"config"}


def test_a_small_file_can_not_become_large_scripts():
    same = "\n".join(f"- {{path: /f{n}, content: *c}}" for n in range(400))
    found = read(f"#cloud-config\nx: &c {'y' * 9000}\nwrite_files:\n{same}\n")
    assert "more than" in found["config"]


def lists(depth: int) -> str:
    return "x:\n" + "\n".join(f"- &l{n} [{', '.join([f'*l{n - 1}'] * 9) if n else 'x'}]" for n in range(depth))


def archive(parts: int) -> bytes:
    part = base64.b64encode(gzip.compress(b"#!/bin/sh\n" + b"#" * 1_000_000)).decode()
    parts_text = f"--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n{part}\n" * parts
    return gzip.compress(f"Content-Type: multipart/mixed; boundary=b\n\n{parts_text}--b--\n".encode())


@pytest.mark.parametrize(
    "data",
    [
        f"#cloud-config\n{lists(8)}\nruncmd: [[*l7]]\n",
        f"#cloud-config\n{lists(8)}\nwrite_files: [{{path: *l7}}]\n",
        "#cloud-config\nruncmd: &a [*a]\n",
        archive(100),
    ],
    ids=["commands", "path", "itself", "parts"],
)
def test_a_small_file_takes_little_memory(data: str | bytes):
    tracemalloc.start()
    try:
        assert "of more than" in read(data)["config"]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_later_part_replaces_the_keys_of_an_earlier_one():
    part = "--b\nContent-Type: text/cloud-config\n\n#cloud-config\nruncmd: [{}]\n"
    archive = "Content-Type: multipart/mixed; boundary=b\n\n" + part.format("first") + part.format("second") + "--b--\n"
    assert read(archive)["scripts/runcmd"] == "#!/bin/sh\nsecond\n"


@pytest.mark.parametrize(
    ("how", "commands"),
    [
        ("'list(append)+dict(recurse_array)+str()'", "first\nsecond"),
        ("[{name: list, settings: [prepend]}, {name: dict, settings: [recurse_list]}]", "second\nfirst"),
        ("'dict(replace)+list()+str()'", "second"),
    ],
)
def test_a_later_part_says_how_its_lists_are_merged(how: str, commands: str):
    part = "--b\nContent-Type: text/cloud-config\n\n#cloud-config\nruncmd: [{}]\n"
    parts = part.format("first") + part.format("second") + f"merge_how: {how}\n--b--\n"
    found = read("Content-Type: multipart/mixed; boundary=b\n\n" + parts)
    assert found == {"scripts/runcmd": f"#!/bin/sh\n{commands}\n"}


def test_commands_are_run_by_the_shell_that_the_image_calls_sh():
    found = scripts(b"#cloud-config\nruncmd: ['[[ 1 == 1 ]]']\n", "ec2-user")
    assert found == {"scripts/runcmd": "#!/bin/bash\n[[ 1 == 1 ]]\n"}
