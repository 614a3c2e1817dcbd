"""The node contract: every file that is derived from the roster, rewritten with each generation."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional, Tuple

from phalanx.node import account, files, local_disks, logins, trust
from phalanx.node.disk import SSH
from phalanx.node.roster import MASTER, Node, Roster

_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The directories of python in the PyTorch DLAMI, and of mpiexec in all DLAMIs (docs/aws-behaviour.md 5.5, 5.6).
_IMAGE_BINS = ("/opt/pytorch/bin", "/opt/amazon/openmpi/bin")
ROSTER = "/opt/phalanx/roster.json"
HUNG = "/opt/phalanx/hung"
"""On the head: the names of the nodes whose shared directory does not answer."""


class Machine(NamedTuple):
    """What the files need besides the roster: facts about this machine and its cluster.

    `cores` is the number that processes may use; `endpoint` is "" on AWS; `path` is the image's PATH;
    `scratch` is the directory of the local disks, "" without any. `administrator` and `address_file` are what the
    service that makes the machines adds to the contract (node.services.Fleet). `openssh` is the version of sshd, and
    `keys` the kind of the node's keys.
    """

    region: str
    shared: str
    job_user: str
    endpoint: str = ""
    cores: int = 1
    single_uid: bool = False
    path: str = ""
    scratch: str = ""
    administrator: str = ""
    address_file: str = ""
    openssh: Tuple[int, int] = (0, 0)
    keys: str = "ed25519"


class Papers(NamedTuple):
    """What the head issued to this node: the authority's public key and two certificates that it signed."""

    authority: str
    host_certificate: str
    user_certificate: str


def this_machine(
    region: str, shared: str, job_user: str, root: str = "", administrator: str = "", address_file: str = ""
) -> Machine:
    """Return the Machine that this process runs on."""
    return Machine(
        region,
        shared,
        job_user,
        os.environ.get("AWS_ENDPOINT_URL", ""),
        len(os.sched_getaffinity(0)),
        account.single_uid(root),
        _image_path(files.read(f"{root}/etc/environment"), [bin for bin in _IMAGE_BINS if os.path.isdir(root + bin)]),
        local_disks.place(root),
        administrator,
        address_file,
        trust.version_of_sshd(root),
        trust.kind_of_keys(root),
    )


def _image_path(environment: str, found: list[str]) -> str:
    """Return the PATH in the image's own part of /etc/environment, with the framework's directory first."""
    for line in files.without_block(environment).splitlines():
        name, _, value = line.strip().partition("=")
        if name == "PATH":
            found += value.strip("\"'").split(":")
    return ":".join(dict.fromkeys([*filter(None, found), *_STANDARD_PATH.split(":")]))


def environment(roster: Roster, node: Node, machine: Machine) -> dict[str, str]:
    """Return the variables that every job and every shell on this node gets."""
    crowded = machine.endpoint or node.slots > machine.cores
    variables: dict[str, Optional[str]] = {
        "PATH": machine.path,
        "DEEPLEARNING_WORKERS_PATH": "/opt/deeplearning/workers",
        "DEEPLEARNING_WORKERS_COUNT": str(len(roster.workers)),
        "DEEPLEARNING_WORKER_GPU_COUNT": str(node.gpus),
        "EFS_MOUNT": machine.shared,
        "PHALANX_SCRATCH": machine.scratch,
        "AWS_DEFAULT_REGION": machine.region,
        "AWS_ENDPOINT_URL": machine.endpoint,
        # mpiexec needs no flag: Open MPI 4 and 5.
        "OMPI_MCA_orte_default_hostfile": "/opt/phalanx/hostfile",
        "PRTE_MCA_prte_default_hostfile": "/opt/phalanx/hostfile",
        # Open MPI 5's daemons must start ranks in the thread that reaps them. In others, the default, a rank can end
        # before its pid is stored: mpiexec shows all output and never ends (PRRTE's pull request 2713).
        "PRTE_MCA_odls_base_max_threads": "0",
        # Ranks that share a core must not spin while they wait: 10 allreduces took 10 s, and 0.2 s with this.
        # The nodes of the local cloud share one machine's cores, however few slots each has.
        "OMPI_MCA_mpi_yield_when_idle": "1" if crowded else None,
        # Nor may they be bound: rank 0 of every node would get the same first core.
        "OMPI_MCA_hwloc_base_binding_policy": "none" if crowded else None,
        "PRTE_MCA_hwloc_default_binding_policy": "none" if crowded else None,
        "OMPI_ALLOW_RUN_AS_ROOT": "1" if machine.single_uid else None,
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1" if machine.single_uid else None,
    }
    found = {name: value for name, value in variables.items() if value}
    for name, value in found.items():
        if '"' in files.line(value):
            raise ValueError(f"{name} has a quote, which ends a value in sshd's and PAM's files: {value!r:.200}")
    return found


def texts(roster: Roster, node: Node, machine: Machine, papers: Papers) -> dict[str, str]:
    """Return path → text of all files that are only ours. A pure function."""
    variables = environment(roster, node, machine)
    return {
        "/opt/deeplearning/workers": _lines([n.name for n in roster.workers]),
        **({machine.address_file: _lines([n.address for n in roster.workers])} if machine.address_file else {}),
        "/opt/phalanx/hostfile": _lines([f"{n.name} slots={n.slots}" for n in roster.workers]),
        "/etc/profile.d/phalanx.sh": _lines([f"export {k}={_quoted(v)}" for k, v in variables.items()]),
        f"{SSH}/authority.pub": files.line(papers.authority),
        f"{SSH}/host-cert.pub": files.line(papers.host_certificate),
        f"{trust.user_key(machine.keys)}-cert.pub": files.line(papers.user_certificate),
        f"{SSH}/revoked": _lines(list(roster.revoked)),
        "/etc/ssh/ssh_config.d/60-phalanx.conf": _client(_reachable(roster), machine),
        "/etc/ssh/sshd_config.d/60-phalanx.conf": _server(variables, machine, len(roster.members)),
        # Last: when a new roster is there, the other files are too.
        ROSTER: roster.to_json() + "\n",
    }


def _reachable(roster: Roster) -> list[str]:
    return ["deeplearning-*", *(part for n in roster.members for part in (n.address, n.hostname))]


def _client(reachable: list[str], machine: Machine) -> str:
    # OpenSSH 9.2 prefers sntrup761, which costs each side 0.1 s of CPU: a login took 0.74 s, and 0.29 s without.
    administrator, key = machine.administrator, trust.user_key(machine.keys)
    every, hosts = f"Host {' '.join(reachable)}", ",".join(reachable)
    # An administrator reaches the same account of other nodes, with a forwarded agent or a key of its own.
    admin = f"Match localuser {administrator} host {hosts}\n    User {administrator}\n" if administrator else ""
    others = f"Match localuser !{administrator},* host {hosts}" if administrator else every
    return f"""{admin}{others}
    User {machine.job_user}
    IdentityFile {key}
    CertificateFile {key}-cert.pub
{every if administrator else ""}
    RevokedHostKeys {SSH}/revoked
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    SendEnv PHALANX_*
    ConnectTimeout 20
    KexAlgorithms -sntrup*
"""


def _server(variables: dict[str, str], machine: Machine, nodes: int) -> str:
    # One line: sshd takes only the first SetEnv. MaxStartups: all starters of a job that a scheduler starts log in to
    # the head at once, and sshd's own 10:30:100 drops some of them. MaxSessions: all jobs share one connection from the
    # head, and all commands of one user another to it; sshd's own limit is 10. The job user's own files decide nothing,
    # since every job writes there; the image's administrator keeps them. A job that connects and says nothing must not
    # keep other nodes out, nor, by what sshd blames on the address, the other users of its own node: sshd ends at a
    # keyword that it does not know. LoginGraceTime: hundreds of nodes log in at once to a head with few cores.
    per_source = (f"PerSourceMaxStartups {logins.share(nodes)}\n" if machine.openssh >= (8, 5) else "") + (
        "PerSourcePenalties no\n" if machine.openssh >= (9, 8) else ""
    )
    settings = " ".join(f'"{name}={value}"' for name, value in variables.items())
    return f"""TrustedUserCAKeys {SSH}/authority.pub
HostKey {trust.host_key(machine.keys)}
HostCertificate {SSH}/host-cert.pub
RevokedKeys {SSH}/revoked
AuthorizedKeysFile .ssh/authorized_keys {account.AUTHORIZED}/%u
PermitUserRC no
AcceptEnv PHALANX_*
SetEnv {settings}
MaxStartups 1000:30:2000
{per_source}LoginGraceTime 60
MaxSessions 1000
Match User {machine.job_user}
    AuthorizedKeysFile {account.AUTHORIZED}/%u
"""


def blocks(roster: Roster, node: Node, machine: Machine) -> dict[str, str]:
    """Return path → our block in files that others write to as well. A pure function."""
    return {
        "/etc/hosts": _lines([_host_line(n) for n in roster.members]),
        "/etc/environment": _lines([f'{k}="{v}"' for k, v in environment(roster, node, machine).items()]),
    }


def _known_hosts(text: str, roster: Roster, papers: Papers) -> str:
    """Return the lines of others, and our line with the authority that certifies this cluster's hosts."""
    begin = "@cert-authority deeplearning-*,"
    others = [line for line in text.splitlines() if not line.startswith(begin)]
    ours = files.line("@cert-authority", ",".join(_reachable(roster)), papers.authority)
    return "".join([*(f"{line}\n" for line in others), ours])


def _off_loopback(hosts: str, node: Node) -> str:
    """Return the text with this node's address where cloud-init has given its own name a loopback address.

    Its order would not help, because getaddrinfo puts loopback addresses first.
    """
    loopback = r"^(?:127\.\S+|::1)(?=[ \t](?:.*[ \t])?%s(?:[ \t]|$))(?!.*localhost)"
    return re.sub(loopback % re.escape(node.hostname), node.address, hosts, flags=re.M)


def _host_line(node: Node) -> str:
    return " ".join([node.address, node.name, *([MASTER] if node.head else []), node.hostname])


def apply(roster: Roster, instance_id: str, machine: Machine, papers: Papers, root: str = "") -> None:
    """Write the contract of this generation. Idempotent."""
    node = next(n for n in roster.nodes if n.instance_id == instance_id)
    for path, text in blocks(roster, node, machine).items():
        others = _off_loopback(files.read(root + path), node)
        files.write(root + path, files.with_block(others, text), is_synced=True)
    account.deny_timers(machine.job_user, root)
    known = f"{root}/etc/ssh/ssh_known_hosts"
    files.write(known, _known_hosts(files.read(known), roster, papers), is_synced=True)
    include("/etc/ssh/ssh_config", root)
    include("/etc/ssh/sshd_config", root)
    changed = []
    try:
        for path, text in texts(roster, node, machine, papers).items():
            if files.write(root + path, text):
                changed.append(path)
    finally:
        # Also where a disk is full in the midst of it: the next attempt does not change these again.
        if f"{SSH}/host-cert.pub" in changed or "/etc/ssh/sshd_config.d/60-phalanx.conf" in changed:
            trust.reload_sshd(root + "/proc")


def include(path: str, root: str = "") -> None:
    """Include the directory of drop-ins at the top of OpenSSH's main file, since the first value counts."""
    text = files.read(root + path)
    line = f"Include {path}.d/*.conf\n"
    if not any(words[:2] == line.split() for words in map(str.split, text.splitlines())):
        files.write(root + path, line + text, is_synced=True)


def _lines(lines: list[str]) -> str:
    return "".join(map(files.line, lines))


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
