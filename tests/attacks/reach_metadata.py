"""Run by a job on a node: tries every way we know to the instance's credentials, and prints one JSON object.

The object has each way's name, and whether it brought a session token of the metadata service.
"""

import json
import re
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

ADDRESS = "169.254.169.254"
SO_DONTROUTE = 5
TOKEN = re.compile(r"[\w=-]{40,}")
ASK = "PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n"
CURL = "curl -s -g -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60'"
PATH = "latest/api/token"
URL = f"http://{ADDRESS}/{PATH}"
TO_ROOT = (
    "import os, socket; s = socket.socket(); s.settimeout(5); os.fchown(s.fileno(), 0, 0);"
    f" s.connect(('{ADDRESS}', 80)); s.send({ASK.encode()!r}); print(s.recv(9999).decode())"
)


def shells(gateway, neighbour):
    """Ways that a shell has."""
    return {
        "curl, IPv4": f"{CURL} {URL}",
        "curl, IPv6": f"{CURL} http://[fd00:ec2::254]/{PATH}",
        "curl, IPv4 in IPv6": f"{CURL} http://[::ffff:{ADDRESS}]/{PATH}",
        "curl, from loopback": f"{CURL} --interface 127.0.0.1 {URL}",
        "curl, by the device": f"{CURL} --interface if!eth0 {URL}",
        "curl, IPv6 by the device": f"{CURL} --interface if!eth0 http://[fd00:ec2::254]/{PATH}",
        "curl, IPv4 in IPv6 by the device": f"{CURL} --interface if!eth0 http://[::ffff:{ADDRESS}]/{PATH}",
        "curl, by the loopback device": f"{CURL} --interface if!lo {URL}",
        "root of a user namespace, by the device": f"unshare -Ur {CURL} --interface if!eth0 {URL}",
        "root of a user namespace": f"unshare -Ur {CURL} {URL}",
        "a user namespace in another": f"unshare -Ur unshare -Ur {CURL} {URL}",
        "a network namespace of its own": f"unshare -Urn {CURL} {URL}",
        "subordinate ids": f"unshare --map-auto --map-root-user -S 1 {CURL} {URL}",
        "sudo": f"sudo -n {CURL} {URL}",
        "su": f'su -c "{CURL} {URL}"',
        "pkexec": f"pkexec {CURL} {URL}",
        "a socket given to root": f'python3 -c "{TO_ROOT}"',
        "a socket given to a namespace's root": f'unshare -Ur python3 -c "{TO_ROOT}"',
        "a shell on a neighbour": f'ssh {neighbour} "{CURL} {URL}"',
        "a neighbour's sshd": f"printf '{ASK}' | ssh -W {ADDRESS}:80 {neighbour}",
        "the way out, as a web server": f"{CURL} --connect-to ::{gateway}:80 {URL}",
        "the way out, as a proxy": f"{CURL} -x http://{gateway}:80 {URL}",
        "the way out, as a tunnel": f"{CURL} -p -x http://{gateway}:443 {URL}",
        "the resolver's address": f"{CURL} --connect-to ::169.254.169.253:80 {URL}",
        "the API's address": f"{CURL} --connect-to ::169.254.1.1:80 {URL}",
        "the API": f"{CURL} http://169.254.1.1:4566/{PATH}",
    }


def by_shell(command):
    said = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    return said.stdout


def sockets(hops):
    """Ways that a program has, as options of its socket."""
    device = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
    ways = {
        "a socket of the device": [device],
        "without routes": [(socket.SOL_SOCKET, SO_DONTROUTE, 1)],
        "without routes, by the device": [device, (socket.SOL_SOCKET, SO_DONTROUTE, 1)],
    }
    for hop in hops:
        # A loose source route: the kernel looks for the way to the first hop alone (RFC 791).
        route = struct.pack("!BBB4sx", 131, 7, 4, socket.inet_aton(hop))
        ways[f"a source route by {hop}"] = [(socket.IPPROTO_IP, socket.IP_OPTIONS, route)]
    return ways


def by_socket(options):
    with socket.socket() as connection:
        connection.settimeout(5)
        for option in options:
            connection.setsockopt(*option)
        connection.connect((ADDRESS, 80))
        connection.sendall(ASK.encode())
        return connection.recv(9999).decode()


def tried(way):
    try:
        return bool(TOKEN.search(way()))
    except (OSError, subprocess.TimeoutExpired):
        return False


def main():
    own, gateway, neighbour = sys.argv[1:]
    hops = [gateway, own, "127.0.0.1", socket.gethostbyname(neighbour)]
    ways = {name: partial(by_shell, command) for name, command in shells(gateway, neighbour).items()}
    ways |= {name: partial(by_socket, options) for name, options in sockets(hops).items()}
    with ThreadPoolExecutor(4) as pool:
        print(json.dumps(dict(zip(ways, pool.map(tried, ways.values()), strict=True))))


if __name__ == "__main__":
    main()
