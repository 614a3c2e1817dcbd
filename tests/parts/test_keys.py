"""This machine's key for a cluster, made by the real ssh-keygen."""

from __future__ import annotations

import stat

import pytest

from phalanx import state_files
from phalanx.cluster import keys
from phalanx.errors import ClusterError


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_key_is_made_once_and_is_private(state):
    key = keys.make("demo")
    assert key.startswith("ecdsa-sha2-nistp256 ")
    assert keys.make("demo") == key == keys.public("demo")
    directory = state / "clusters/demo"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "id_ecdsa").stat().st_mode) == 0o600
    assert sorted(path.name for path in directory.iterdir()) == ["id_ecdsa", "id_ecdsa.pub"]


def test_a_key_of_an_earlier_version_is_kept(state):
    made = state_files.cluster_directory("demo") / "id_ed25519"
    made.parent.mkdir(parents=True)
    keys._generate(made, "earlier")
    assert keys.path("demo") == made
    assert keys.make("demo") == keys.public("demo")
    assert sorted(path.name for path in made.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


@pytest.mark.parametrize("half", ["id_ecdsa", "id_ecdsa.pub"])
def test_a_half_that_a_power_failure_emptied_is_made_again(state, half):
    before = keys.make("demo")
    (state_files.cluster_directory("demo") / half).write_text("")
    after = keys.make("demo")
    assert after.startswith("ecdsa-sha2-nistp256 ") and (after == before) == (half == "id_ecdsa.pub")
    assert (state_files.cluster_directory("demo") / "id_ecdsa").stat().st_size


def test_what_others_could_read_is_private_again(state):
    path = state_files.cluster_directory("demo") / "secret"
    state_files.write_private(path, "text")
    path.chmod(0o644)
    state_files.write_private(path, "text")
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_ssh_keygen_its_package_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match="`ssh-keygen` is not installed") as reported:
        keys.make("demo")
    assert "openssh-client" in reported.value.hint
