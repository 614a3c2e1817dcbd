"""Whose a connection over this machine's loopback is: any account of the machine can connect to the API's port."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading

Address = tuple[str, int]

_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_ANY_COOKIE = b"\xff" * 8
# Of struct inet_diag_msg (linux/inet_diag.h): the state, and the uid.
_ANSWER = struct.Struct("=xB62xI")
_HEADER_BYTES, _ANSWER_BYTES = 16, 8192
_ESTABLISHED = 1
_TIMEOUT_S = 1.0


class Accounts:
    """Tells this process's own account and root from others, in the network and user namespace in which it was made.

    Raises OSError where the kernel doesn't tell.
    """

    def __init__(self) -> None:
        self._own = (0, os.getuid())
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._kernel.settimeout(_TIMEOUT_S)
        self._asking = threading.Lock()
        self._number = 0
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as client,
        ):
            if not self.is_ours(client.getsockname(), server.getsockname()):
                raise OSError(errno.EOPNOTSUPP, "the kernel does not tell whose a connection is")

    def is_ours(self, client: Address, server: Address) -> bool:
        """Whether an open connection was made by this account or by root. One that is gone already is not."""
        try:
            state, uid = self._seen(client, server)
        except OSError:
            return False
        # The kernel shows a connection whose process has closed it as root's.
        return state == _ESTABLISHED and uid in self._own

    def _seen(self, client: Address, server: Address) -> tuple[int, int]:
        """Return a connection's state and uid, as of the client's end. Raises OSError."""
        ends = struct.pack(
            "!HH4s12x4s12x", client[1], server[1], *(socket.inet_aton(one[0]) for one in (client, server))
        )
        body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + bytes(4) + _ANY_COOKIE
        with self._asking:
            self._number += 1
            head = struct.pack("=IHHII", _HEADER_BYTES + len(body), _BY_FAMILY, _REQUEST, self._number, 0)
            self._kernel.send(head + body)
            while True:
                answer = self._kernel.recv(_ANSWER_BYTES)
                _, kind, _, number, _ = struct.unpack_from("=IHHII", answer)
                if number == self._number:  # not one that came too late for its question
                    break
        if kind == _ERROR:
            raise OSError(-struct.unpack_from("=i", answer, _HEADER_BYTES)[0], "SOCK_DIAG")
        return _ANSWER.unpack_from(answer, _HEADER_BYTES)


def of_this_machine() -> Accounts | None:
    """Return what tells accounts apart; None where the kernel can't."""
    try:
        return Accounts()
    except OSError:
        return None
