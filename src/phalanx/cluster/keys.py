"""This machine's key for a cluster: made by ssh-keygen, or copied from a key that the nodes accept already."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from phalanx.errors import ClusterError
from phalanx.node import files
from phalanx.state_files import cluster_directory, make_directory, state_directory, write_private


def make(name: str) -> str:
    """Return the public half of this machine's key for a cluster; create it if needed (no passphrase).

    It is ECDSA's, on P-256: machines in FIPS mode refuse ed25519 (docs/aws-behaviour.md 6.9).
    """
    private = path(name)
    _require_readable_by_ssh(state_directory())
    make_directory(private.parent)
    private.parent.chmod(0o700)
    if private.exists() and not private.stat().st_size:
        # ssh-keygen does not sync what it writes, so a power failure may leave it empty.
        private.with_suffix(".pub").unlink(missing_ok=True)
        private.unlink()
    if not private.exists():
        _generate(private, comment=f"phalanx-{name}")
    if not public(name):
        found = _public_half(private)
        if not found:
            raise ClusterError(
                f"ssh-keygen can't read {private}: it has a passphrase, or is damaged",
                f"Write its public half to {private}.pub, or delete a key without use, and run `phalanx up` again.",
                code="unreadable-key",
            )
        write_private(private.with_suffix(".pub"), found)
    return public(name)


def take(name: str, private: Path, public: str) -> bool:
    """Copy an existing private key for a cluster, if it has no passphrase and `public` is its public half."""
    found = _public_half(private)
    if not found or found.split()[:2] != public.split()[:2]:
        return False
    _require_readable_by_ssh(state_directory())
    mine = path(name)
    write_private(mine, private.read_text())
    write_private(mine.with_suffix(".pub"), found)
    return True


def _public_half(private: Path) -> str:
    """Return the public half of a private key without a passphrase; "" of any other file."""
    derive = ["ssh-keygen", "-y", "-P", "", "-f", str(private)]
    ended = subprocess.run(derive, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    return ended.stdout


def public(name: str) -> str:
    """Return the public half of this machine's key for a cluster; empty if it has none."""
    found = path(name).with_suffix(".pub")
    return found.read_text().strip() if found.exists() else ""


def path(name: str) -> Path:
    """Return where this machine's private key for a cluster is; earlier versions made another kind."""
    made = cluster_directory(name) / "id_ed25519"
    return made if made.exists() else made.with_name("id_ecdsa")


def _require_readable_by_ssh(path: Path) -> None:
    """Raise ClusterError for characters that not all versions of OpenSSH read alike in a path."""
    wrong = re.search(r'["$\\\x00-\x1f]', str(path))
    if wrong:
        raise ClusterError(
            f"ssh can't use keys below {path}: its path contains {wrong[0]!r}",
            "Set PHALANX_STATE_DIR to another directory.",
            code="unusable-path",
        )


def _generate(private: Path, comment: str) -> None:
    """Generate a private key under another name and link it into place: two concurrent `up` use the same key.

    After a power failure it is there as a whole, or not at all.
    """
    beside = private.with_name(f".{private.name}.{os.getpid()}")
    argv = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", comment, "-f", str(beside)]
    try:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except FileNotFoundError as error:
        raise ClusterError(
            "the command `ssh-keygen` is not installed",
            "Debian, Ubuntu: apt-get install openssh-client",
            code="no-program",
        ) from error
    try:
        files.sync(str(beside))
        private.hardlink_to(beside)
    except FileExistsError:
        pass
    finally:
        beside.unlink()
        Path(f"{beside}.pub").unlink()
    files.sync(str(private.parent))
