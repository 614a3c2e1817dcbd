"""Keep jobs from the instance metadata service, whose credentials are only for the agent.

The kernel looks up a socket's route by the uid of its creator, also in user namespaces, which map uids. Rules block the
job user and all higher uids, including subordinate ids. Lower uids are the system's and the image's administrator, who
can become root anyway.
"""

from __future__ import annotations

import os
import socket
import time

from phalanx.node import account, files
from phalanx.node.command import CommandError, run
from phalanx.node.disk import HOME
from phalanx.node.settings import Settings

_SCRIPT = f"{HOME}/firewall"
_METADATA = ((socket.AF_INET, "169.254.169.254"), (socket.AF_INET6, "fd00:ec2::254"))
# A rule that prohibits is not enough: for a socket that is bound to a device, IPv4 treats a failed route lookup as
# "on this link" (docs/aws-behaviour.md 2.24). A route of type broadcast is found, and TCP refuses it. Each device
# needs its own, which may be added before the device is up. The protocol is for systemd-networkd (2.25). The last uid
# is 4294967294 on a machine, and another in a user namespace, where rules accept no higher uids.
_TEXT = """\
while read -r first _ count; do last=$((first + count - 1)); done < /proc/self/uid_map
ip -6 rule add pref 1 uidrange {0}-$last to fd00:ec2::254 prohibit protocol kernel
{{
  for device in /sys/class/net/*/; do
    device=${{device%/}}
    echo route append broadcast 169.254.169.254 dev ${{device##*/}} scope host table 7312 protocol kernel
  done
  echo rule add pref 2 uidrange {0}-$last to 169.254.169.254 prohibit protocol kernel
  echo rule add pref 1 uidrange {0}-$last to 169.254.169.254 lookup 7312 protocol kernel
}} | ip -force -batch -
"""
# Before cron, sshd and anything else that could start a job: ordinary units start after this target.
_UNIT = f"""[Unit]
Description=keep jobs from the instance's credentials
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target

[Service]
Type=oneshot
ExecStart=/bin/sh {_SCRIPT}

[Install]
WantedBy=sysinit.target
"""
# A device is brought up only after udev has handled it.
_UDEV = f'SUBSYSTEM=="net", ACTION=="add", RUN+="/bin/sh {_SCRIPT}"\n'
_LOOK_EVERY_S = 5


def install(job_user: str, root: str = "") -> None:
    """Block the way, now and at each boot. Raises CommandError unless it is verified to be blocked.

    Does nothing where every user, including the agent, is uid 0.
    """
    uid = account.uid_of(job_user, root)
    if uid:
        files.write(root + _SCRIPT, _TEXT.format(uid))
        files.enable("phalanx-firewall", _UNIT, "sysinit", root)
        files.write(f"{root}/etc/udev/rules.d/60-phalanx.rules", _UDEV)
        _shut(uid)


def watch(settings: Settings) -> None:
    """Block the way again whenever something has opened it. Never returns."""
    uid = account.uid_of(settings.job_user)
    while True:
        try:
            if uid and is_open(uid):
                _shut(uid)
        except (CommandError, OSError) as error:
            print(error, flush=True)
        time.sleep(_LOOK_EVERY_S)


def _shut(uid: int) -> None:
    why = CommandError(f"the way of uid {uid} to the instance's credentials", 0, "the rules do not shut it")
    try:
        run(["sh", _SCRIPT], 30)
    except CommandError as error:
        why = error  # the rules that it failed to add may exist already
    if is_open(uid):
        raise why


def is_open(uid: int) -> bool:
    """Whether the kernel has a route for this user by any device. Without IPv6 there is none to that address."""
    devices = ["", *(name for _, name in socket.if_nameindex())]
    return any(_leads(uid, *to, device) for to in _METADATA for device in devices)


def _leads(uid: int, family: int, address: str, device: str) -> bool:
    try:
        # Connecting a datagram socket only looks up the route: nothing is sent, and the kernel refuses.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            os.fchown(probe.fileno(), uid, uid)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            probe.connect((address, 80))
    except OSError:
        return False
    return True
