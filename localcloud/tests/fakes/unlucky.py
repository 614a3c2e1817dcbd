"""A socket on a machine that has briefly run out of file descriptors."""

from __future__ import annotations

import errno
import socket


class Unlucky:
    """A listening socket whose first accept() fails."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket = listener
        self.failed = False

    def accept(self) -> object:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._socket.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._socket, name)
