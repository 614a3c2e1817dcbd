"""What EMR installs on an instance before it is ready: Hadoop's stand-ins, by a script that its controller runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from localcloud.ec2 import placement
from localcloud.emr.records import Cluster, Member

_HERE = Path(__file__).parent
_LIBRARY = "/emr/instance-controller/lib/hadoop"
_SITE = "/etc/hadoop/conf/yarn-site.xml"
_UNIT = "/etc/systemd/system/hadoop-yarn-{}.service"
# The part of an instance's memory that EMR gives to YARN; it is so for m5 and r5 (docs/aws-behaviour.md 7.30).
_SHARE = 0.75
_JAVA = f"""#!/bin/sh
# Stands for Java: it has one class, the application master of YARN's distributed shell.
exec /usr/bin/python3 -I {_LIBRARY}/distributed_shell.py "$@"
"""
_YARN = f"""#!/bin/sh
exec /usr/bin/python3 -I {_LIBRARY}/yarn_command.py "$@"
"""
_PROFILE = "/etc/profile.d/hadoop.sh"
# For login shells and for commands that sshd runs: /usr, where EMR has such commands, is read-only here.
_IN_EVERY_SHELL = f"""if ! grep -q {_PROFILE} /etc/bash.bashrc; then
  sed -i '1i . {_PROFILE}' /etc/bash.bashrc
fi
"""
_SERVICE = """[Service]
ExecStart=/usr/bin/python3 -I {program}
Restart=on-failure
RestartSec=1
"""
_FILE = """mkdir -p {directory}
cat > {path} <<'END-OF-FILE'
{text}END-OF-FILE
chmod 755 {path}
"""
# After a reboot, process 1 has started it.
_START = """enabled=/etc/systemd/system/multi-user.target.wants/{name}
[ -e $enabled ] || {{ ln -s {unit} $enabled; setsid -f /sbin/service {unit}; }}
"""


def script(cluster: Cluster, member: Member) -> str:
    """Return a shell script that installs an instance's part of Hadoop.

    EMR installs it on every cluster, whichever applications are chosen (docs/aws-behaviour.md 7.39).
    """
    program = "resource_manager" if member.group.is_master else "node_manager"
    unit = _UNIT.format(program.replace("_", ""))
    files = {
        _SITE: _site(cluster, member),
        unit: _SERVICE.format(program=f"{_LIBRARY}/{program}.py"),
        f"{_LIBRARY}/java/bin/java": _JAVA,
        f"{_LIBRARY}/bin/yarn": _YARN,
        _PROFILE: f"PATH=$PATH:{_LIBRARY}/bin\n",
        **{f"{_LIBRARY}/{name}.py": _source(name) for name in (program, "distributed_shell", "yarn_command")},
    }
    written = [_FILE.format(directory=path.rpartition("/")[0], path=path, text=text) for path, text in files.items()]
    return "".join((*written, _IN_EVERY_SHELL, _START.format(name=unit.rpartition("/")[2], unit=unit)))


def _source(name: str) -> str:
    return _HERE.joinpath(f"{name}.py").read_text()


def _site(cluster: Cluster, member: Member) -> str:
    master = cluster.master or member
    memory_mb = str(int(placement.memory_mib(member.group.instance_type) * _SHARE))
    found = {
        "yarn.resourcemanager.hostname": master.instance.private_dns_name,
        "yarn.nodemanager.hostname": member.instance.private_dns_name,
        "yarn.nodemanager.resource.memory-mb": memory_mb,
        "yarn.nodemanager.resource.cpu-vcores": str(placement.vcpus(member.group.instance_type)),
        "yarn.scheduler.minimum-allocation-mb": "32",
        "yarn.scheduler.maximum-allocation-mb": memory_mb,
        "yarn.nodemanager.local-dirs": "/mnt/yarn",
        "yarn.nodemanager.log-dirs": "/var/log/hadoop-yarn/containers",
        "yarn.nodemanager.linux-container-executor.nonsecure-mode.limit-users": "true",
        "yarn.nodemanager.linux-container-executor.nonsecure-mode.local-user": "hadoop",
        **_configured(cluster, "yarn-site"),
    }
    return _document(found)


def _configured(cluster: Cluster, classification: str) -> Mapping[str, str]:
    """Return the properties that a cluster's request sets; CloudFormation has another name for them."""
    found: dict[str, str] = {}
    for one in cluster.wanted.get("Configurations") or []:
        if one.get("Classification") == classification:
            found.update(one.get("Properties") or one.get("ConfigurationProperties") or {})
    return found


def _document(properties: Mapping[str, str]) -> str:
    """Return a file of properties as Hadoop reads them."""
    root = ElementTree.Element("configuration")
    for name, value in properties.items():
        one = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(one, "name").text = name
        ElementTree.SubElement(one, "value").text = value
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
