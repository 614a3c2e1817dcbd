"""Mount targets: addresses that accept connections to NFS's port or Lustre's; its filter decides about them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping

from localcloud.nodes.client import NodeRunner

_PAUSE_S = 0.1

NFS_PORT = 2049


class MountTargets:
    """The mount targets of all VPCs. What a node mounts is a directory: its programs for that only try a connection."""

    def __init__(self, runner: NodeRunner) -> None:
        self._runner = runner
        self._listeners: dict[tuple[str, str], socket.socket] = {}

    def follow(self, vpc_id: str, ports: Mapping[str, int]) -> None:
        """Have the VPC answer at exactly these addresses, each at its port."""
        present = {address for vpc, address in self._listeners if vpc == vpc_id}
        for address in present.difference(ports):
            self._remove(vpc_id, address)
            self._runner.remove_address(vpc_id, address)
        for address in set(ports) - present:
            self._runner.add_address(vpc_id, address)
            listener = self._listeners[vpc_id, address] = self._runner.listen(vpc_id, address, ports[address])
            threading.Thread(target=_accept, args=(listener,), name=f"files-{address}", daemon=True).start()

    def close(self, vpc_id: str) -> None:
        """Forget the mount targets of a VPC whose network is removed."""
        for vpc, address in list(self._listeners):
            if vpc == vpc_id:
                self._remove(vpc, address)

    def _remove(self, vpc_id: str, address: str) -> None:
        listener = self._listeners.pop((vpc_id, address))
        # close() alone does not wake a thread that waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            connection, _address = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            # A node that opens many connections must not end those of others.
            time.sleep(_PAUSE_S)
            continue
        connection.close()
