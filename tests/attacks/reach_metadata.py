"""Run by a job on a node: tries every known way to the instance's credentials, and prints one JSON object.

The object maps each way's name to whether it obtained a session token of the metadata service.
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
ASK = "PUT {}/latest/api/token HTTP/1.0\r\nHost: 169.254.169.254\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n"
TO_ROOT = (
    "import os, socket; s = socket.socket(); s.settimeout(5); os.fchown(s.fileno(), 0, 0);"
    f" s.connect(('{ADDRESS}', 80)); s.send({ASK.format('').encode()!r}); print(s.recv(9999).decode())"
)


def ask(host, port="80", device="", how=""):
    """Print the answer to a request for a token, sent to a server, to a proxy, or through a proxy's tunnel."""
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        connection.connect(address)
        if how == "tunnel":
            connection.sendall(f"CONNECT {ADDRESS}:80 HTTP/1.0\r\n\r\n".encode())
            connection.recv(9999)
        connection.sendall(ASK.format(f"http://{ADDRESS}" if how == "proxy" else "").encode())
        print(connection.recv(9999).decode())


def shells(gateway, neighbour):
    """Return the ways that a shell has."""
    me = f"python3 {__file__} ask"
    here = f"{me} {ADDRESS}"
    return {
        "IPv4": here,
        "IPv6": f"{me} fd00:ec2::254",
        "IPv4 in IPv6": f"{me} ::ffff:{ADDRESS}",
        "by the device": f"{here} 80 eth0",
        "IPv6 by the device": f"{me} fd00:ec2::254 80 six",
        "IPv4 in IPv6 by the device": f"{me} ::ffff:{ADDRESS} 80 eth0",
        "by the loopback device": f"{here} 80 lo",
        "root of a user namespace": f"unshare -Ur {here}",
        "root of a user namespace, by the device": f"unshare -Ur {here} 80 eth0",
        "a user namespace in another": f"unshare -Ur unshare -Ur {here}",
        "a network namespace of its own": f"unshare -Urn {here}",
        "subordinate ids": f"PATH=/opt/setuid:$PATH unshare --map-auto --map-root-user -S 1 {here}",
        "sudo": f"sudo -n {here}",
        "su": f"su -c '{here}'",
        "pkexec": f"pkexec {here}",
        "a socket given to root": f'python3 -c "{TO_ROOT}"',
        "a socket given to a namespace's root": f'unshare -Ur python3 -c "{TO_ROOT}"',
        "a shell on a neighbour": f"ssh {neighbour} {here}",
        "a neighbour's sshd": f"printf '{ASK.format('')}' | ssh -W {ADDRESS}:80 {neighbour}",
        "the way out, as a web server": f"{me} {gateway}",
        "the way out, as a proxy": f"{me} {gateway} 80 '' proxy",
        "the way out, as a tunnel": f"{me} {gateway} 443 '' tunnel",
        "the resolver's address": f"{me} 169.254.169.253",
        "the API's address": f"{me} 169.254.1.1",
        "the API": f"{me} 169.254.1.1 443",
    }


def by_shell(command):
    shown = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    return shown.stdout


def sockets(hops):
    """Return the ways that a program has, as options of its socket."""
    device = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
    ways = {
        "a socket of the device": [device],
        "without routes": [(socket.SOL_SOCKET, SO_DONTROUTE, 1)],
        "without routes, by the device": [device, (socket.SOL_SOCKET, SO_DONTROUTE, 1)],
    }
    for hop in hops:
        # A loose source route: the kernel looks up the route to the first hop only (RFC 791).
        route = struct.pack("!BBB4sx", 131, 7, 4, socket.inet_aton(hop))
        ways[f"a source route by {hop}"] = [(socket.IPPROTO_IP, socket.IP_OPTIONS, route)]
    return ways


def by_socket(options):
    with socket.socket() as connection:
        connection.settimeout(5)
        for option in options:
            connection.setsockopt(*option)
        connection.connect((ADDRESS, 80))
        connection.sendall(ASK.format("").encode())
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
    ask(*sys.argv[2:]) if sys.argv[1] == "ask" else main()
