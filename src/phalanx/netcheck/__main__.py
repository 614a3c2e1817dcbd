"""`python3 -m phalanx.netcheck` on every node: measures all links and sums over all ranks, and prints a JSON object.

Rank 0 says which ranks measure when: in each round every node is in one pair at most, so that no measurement meets
another at a node. Its lines that begin with RESULT are the object.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from phalanx.netcheck import engines, links

RESULT = "phalanx-net "
# Characters of the result in one line of output.
_LINE = 4000
_MEET_WITHIN_S = 60.0
# A command's answer takes at most the timeouts of a link, or the sums on a slow one.
_ANSWER_WITHIN_S = 300.0
_LONGEST_LINE, _SHOWN = 1 << 16, 100


class Line:
    """A connection between rank 0 and a rank: a JSON object in each line. An invalid one ends the measurement."""

    def __init__(self, connection: socket.socket) -> None:
        self.address = connection.getpeername()[0]
        self._connection, self._received = connection, b""

    def send(self, document: Dict[str, Any]) -> None:
        """Send an object. Raises OSError."""
        self._connection.settimeout(_ANSWER_WITHIN_S)
        self._connection.sendall(json.dumps(document).encode() + b"\n")

    def receive(self, *names: str) -> Dict[str, Any]:
        """Return an object's fields of these names. Raises SystemExit, which names the node."""
        try:
            line = self._line()
            found = json.loads(line)
            # Of a number that is too large, JSON makes infinity, which is none.
            json.dumps(found, allow_nan=False)
            return {name: found[name] for name in names if name in found}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise SystemExit(f"the node at {self.address} gives no valid answer: {str(error)[:_SHOWN]}") from None

    def _line(self) -> bytes:
        deadline_s = time.monotonic() + _ANSWER_WITHIN_S
        while b"\n" not in self._received:
            self._connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = self._connection.recv(1 << 16)
            self._received += data
            if not data:
                raise OSError("it has ended")
            if len(self._received) > _LONGEST_LINE:
                raise ValueError("a line without an end")
        line, _, self._received = self._received.partition(b"\n")
        return line


class Place(NamedTuple):
    """A rank's place among the others, and where rank 0 listens for them: by the socket on rank 0 itself."""

    rank: int
    size: int
    address: str
    port: int
    listener: Optional[socket.socket]


def main() -> None:
    """Serve rank 0 on every rank, and on rank 0 measure."""
    mpi = engines.Mpi() if engines.started_by_mpi() else None
    place = _place_by_mpi(mpi) if mpi else _place()
    serving = threading.Thread(target=_serve, args=(place, mpi), daemon=True)
    serving.start()
    if place.listener is not None:
        text = json.dumps(_measured(place))
        for begin in range(0, len(text), _LINE):
            print(RESULT + text[begin : begin + _LINE], flush=True)
    serving.join(_ANSWER_WITHIN_S)


def _place() -> Place:
    """Return the place that the launcher `exec` gives to this process."""
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    address = socket.gethostbyname(os.environ["MASTER_ADDR"])
    return Place(rank, size, address, port, socket.create_server(("", port), backlog=size) if rank == 0 else None)


def _place_by_mpi(mpi: engines.Mpi) -> Place:
    world = mpi.world
    listener = socket.create_server(("", 0), backlog=world.size) if world.rank == 0 else None
    own = (socket.gethostbyname(socket.gethostname()), listener.getsockname()[1]) if listener else None
    address, port = world.bcast(own)
    return Place(world.rank, world.size, address, port, listener)


def _serve(place: Place, mpi: Optional[engines.Mpi]) -> None:
    """Do what rank 0 asks for."""
    line = Line(_reach(place.address, place.port))
    line.send({"rank": place.rank, "port": links.listen(), "efa": engines.has_efa()})
    engine: Any = None
    while True:
        command = line.receive("do", "address", "port")
        if command["do"] == "link":
            line.send(_link(command["address"], command["port"]))
        elif command["do"] == "sum":
            engine, answer = _sum(place, mpi, command["port"])
            line.send(answer)
        else:
            if engine is not None:
                engine.close()
            return


def _reach(address: str, port: int) -> socket.socket:
    """Connect to rank 0, which may still be starting."""
    deadline_s = time.monotonic() + _MEET_WITHIN_S
    while True:
        try:
            return socket.create_connection((address, port), _MEET_WITHIN_S)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def _link(address: str, port: int) -> Dict[str, Any]:
    try:
        return {"round_trip_s": links.round_trip_s(address, port), "bit_s": links.rate_bit_s(address, port)}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def _sum(place: Place, mpi: Optional[engines.Mpi], port: int) -> Tuple[Any, Dict[str, Any]]:
    """Return the engine, and its name, network and times; None and the reason if there is no engine."""
    try:
        engine = mpi or engines.Torch(place.rank, place.size, place.address, port)
        times = engines.times_s(engine)
        return engine, {"engine": engine.name, "transport": engine.transport(), "times": times}
    except ImportError as error:
        return None, {"error": f"no module named {error.name}"}
    except RuntimeError as error:
        return None, {"error": str(error).split("\n")[0]}


def _measured(place: Place) -> Dict[str, Any]:
    lines, nodes = _meet(place)
    found: List[Dict[str, Any]] = []
    for pairs in rounds(place.size):
        for way in (pairs, [(receiver, sender) for sender, receiver in pairs]):
            for sender, receiver in way:
                target = nodes[receiver]
                lines[sender].send({"do": "link", "address": target["address"], "port": target["port"]})
            for one, other in way:
                found.append({"from": one, "to": other, **lines[one].receive("round_trip_s", "bit_s", "error")})
    if any("error" in link for link in found):
        # An engine would wait for its own connection over that link.
        sums: List[Dict[str, Any]] = [{"error": "not all nodes reach each other"} for _ in lines]
    else:
        sums = _all(lines, {"do": "sum", "port": engines.free_port()})
    for line in lines:
        line.send({"do": "end"})
    return {"nodes": nodes, "links": found, "sums": sums}


def _meet(place: Place) -> Tuple[List[Line], List[Dict[str, Any]]]:
    """Wait for all ranks; return their lines, and what each said with the address at which others reach it."""
    assert place.listener is not None, "only rank 0 meets the others"
    place.listener.settimeout(_MEET_WITHIN_S)
    met = []
    for _ in range(place.size):
        line = Line(place.listener.accept()[0])
        said = line.receive("rank", "port", "efa")
        taken = [other["rank"] for other, _ in met]
        if said.get("rank") not in [rank for rank in range(place.size) if rank not in taken]:
            raise SystemExit(f"the node at {line.address} gives no valid answer: it has no rank of its own")
        if said.get("port") not in range(1, 1 << 16):
            raise SystemExit(f"the node at {line.address} gives no valid answer: it has no port")
        met.append((said, line))
    met.sort(key=lambda one: one[0]["rank"])
    nodes = [{**said, "address": line.address if said["rank"] else place.address} for said, line in met]
    return [line for _, line in met], nodes


def _all(lines: List[Line], command: Dict[str, Any]) -> List[Dict[str, Any]]:
    for line in lines:
        line.send(command)
    return [line.receive("engine", "transport", "times", "error") for line in lines]


def rounds(size: int) -> List[List[Tuple[int, int]]]:
    """Return rounds of pairs in which every two ranks meet once, and each rank is in one pair of a round at most."""
    players: List[Optional[int]] = [*range(size), *([None] if size % 2 else [])]
    found: List[List[Tuple[int, int]]] = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]))  # noqa: B905 - Python 3.9 has no `strict`
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return found


if __name__ == "__main__":
    main()
