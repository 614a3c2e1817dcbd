"""How 1,000 nodes become a cluster: the agent's own code on a simulated clock, with DynamoDB's and SQS's limits.

Head and workers are those of phalanx.node; their services, clock, datagrams and certificates are simulated. Each
worker boots within 120 s and says hello; 2 % never do, 1 % of the messages come twice, 10 % of the calls to the table
are throttled, and every read counts against its partition key. A certificate costs what ssh-keygen costs here, on a
head with two CPUs. Beside it the protocol of AWS's template of 2018: polls of one queue every 30 s.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import random
import resource
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.measure import Figure
from benchmarks.simulated_aws import CALL_S, PARTITION_UNITS_PER_S, Aws, Caller, Clock
from phalanx.node import head as head_module
from phalanx.node import outcome, trust
from phalanx.node import worker as worker_module
from phalanx.node.beats import EVERY_S
from phalanx.node.head import Head
from phalanx.node.roster import Node, worker_name
from phalanx.node.services import Reading
from phalanx.node.settings import ON_AWS
from phalanx.node.worker import Worker

NODES = 1000
BOOT_WITHIN_S = 120.0
NODE_TIMEOUT_S = 300.0
NEVER = 0.02
_DATAGRAM_S = 0.001
_PUTS_AT_ONCE = 32
_HEAD_CPUS = 2
_POLL_2018_S = 30.0
_LATEST_S = 3600.0
_NETWORK = "10.0.0.0/16"
_ROLE = "AROA0123456789ABCDEFG"
# A worker's calls at boot, beside the membership's: its second stage, its log stream, and the stream's first lines.
_BOOT_CALLS = 3


class Beats:
    """A worker's beats: `changed` is called when the head announces another generation."""

    def __init__(self, cluster: Cluster, address: str, changed: Callable[[], None]) -> None:
        self.head, self.unanswered, self.generation, self.announced = "", 0, 0, 0
        self.heard = self.unknown = False
        self._cluster, self._address, self._changed = cluster, address, changed

    def aim(self, head: str) -> None:
        if head and not self.head:
            self.head = head
            self.beat()

    def beat(self) -> None:
        clock, ear = self._cluster.clock, self._cluster.ear
        ear.heard[self._address] = clock.now_s
        self.heard, self.unknown = True, self._address not in ear.known
        if not self.unknown:
            self.receive(ear.generation)
        clock.at(clock.now_s + EVERY_S, self.beat)

    def receive(self, generation: int) -> None:
        self.announced = generation
        if generation != self.generation:
            self._changed()


class Member:
    """A simulated machine around the worker's own code."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster, self.node, self.caller = cluster, node, Caller()
        self.acked_s = 0.0
        self._turn = 0
        self._announced = False
        agent = SimpleNamespace(
            describe=lambda: node,
            table=SimpleNamespace(
                get=lambda key, consistent=True: cluster.aws.read([key], consistent, self.caller)[0],
                get_together=lambda *keys: cluster.aws.read(keys, False, self.caller),
            ),
            report=self._report,
            machine=lambda: None,
            root="",
            head_address=cluster.head.address,
            settings=SimpleNamespace(networks=_NETWORK, patience=ON_AWS),
            nodes=cluster.nodes,
            log=SimpleNamespace(say=lambda _: None),
        )
        self.beats = Beats(cluster, node.address, self._on_change)
        self.worker = Worker(agent, self.beats)  # type: ignore[arg-type]
        self._act(0)

    def _report(self, kind: str, **content: Any) -> None:
        self.caller.called()
        self.cluster.aws.send({"kind": kind, "instance_id": self.node.instance_id, **content}, self.caller.delay_s)
        if kind == "ack":
            self.acked_s = self.cluster.clock.now_s + self.caller.delay_s
        else:
            self.cluster.hellos_s.append(self.cluster.clock.now_s + self.caller.delay_s)

    def _act(self, turn: int) -> None:
        """Take a turn of the worker's loop, unless a later one has replaced it."""
        if turn != self._turn:
            return
        self._announced = False
        pause_s = self.worker.turn()
        self._schedule(self.caller.delay_s + pause_s)
        self.caller.delay_s = 0.0

    def _on_change(self) -> None:
        if not self._announced:
            self._announced = True
            self._schedule(self.worker.spread_s())

    def _schedule(self, pause_s: float) -> None:
        self._turn += 1
        turn = self._turn
        self.cluster.clock.at(self.cluster.clock.now_s + pause_s, lambda: self._act(turn))


class Cluster:
    """One creation, from the head's start to the last acknowledgement."""

    def __init__(self, certificate_s: float, nodes: int = NODES) -> None:
        self.nodes = nodes
        self.clock, self.chance = Clock(), random.Random(1)
        self.aws = Aws(self.clock, self.chance)
        self.ear = SimpleNamespace(heard={}, full=set(), hung=set(), known=set(), generation=0, announce=self._announce)
        self.hellos_s: list[float] = []
        self.members: list[Member] = []
        self._certificate_s = certificate_s
        self.published_s = 0.0

    def run(self) -> None:
        nodes = [_node(number) for number in range(1, self.nodes + 1)]
        self.head = nodes[0]
        self.aws.instances = tuple(node.instance_id for node in nodes[1:])
        for _ in nodes[1:]:
            self.aws.send({"Type": "Notification"}, self.chance.uniform(0, BOOT_WITHIN_S))
        for node in self.chance.sample(nodes[1:], round((self.nodes - 1) * (1 - NEVER))):
            self.clock.at(self.chance.uniform(0, BOOT_WITHIN_S), lambda node=node: self._boot(node))
        with self._simulated():
            head = Head(self._agent_of(nodes[0]))  # type: ignore[arg-type]
            head.ear, head.state.beats, self.ear.known = self.ear, self.ear.heard, head._known  # type: ignore[assignment]
            head.restore()
            while not self.aws.signals and self.clock.now_s < _LATEST_S:
                head.work()
                head.listen()

    def _boot(self, node: Node) -> None:
        self.members.append(Member(self, node))

    def _announce(self, generation: int) -> None:
        self.ear.generation = generation
        if generation and not self.published_s:
            self.published_s = self.clock.now_s
        for member in self.members:
            self.clock.at(self.clock.now_s + _DATAGRAM_S, lambda member=member: member.beats.receive(generation))

    def _agent_of(self, node: Node) -> SimpleNamespace:
        aws = self.aws
        settings = SimpleNamespace(
            patience=ON_AWS,
            cluster="demo", nodes=self.nodes, min=self.nodes // 2, node_timeout_s=NODE_TIMEOUT_S,
            worker_role=_ROLE, job_user="phalanx", wait_handle="", networks=_NETWORK,
        )  # fmt: skip
        table = SimpleNamespace(get=lambda key: aws.items.get(key, {}), put=self._put, epoch="")
        queue = SimpleNamespace(receive=self._receive, delete=lambda _: self._spend(CALL_S))
        fleet = SimpleNamespace(
            read=lambda: Reading(aws.instances, ()),
            addresses=lambda ids: {one: _ADDRESSES[one] for one in ids},
            ended=lambda _: set(),
            request=lambda _: None,
            terminate=lambda *_, **__: None,
        )
        return SimpleNamespace(
            settings=settings, root=tempfile.gettempdir() + "/none", describe=lambda: node, table=table, queue=queue,
            fleet=fleet, log=SimpleNamespace(say=lambda _: None), answered=[], machine=lambda: None, job_uid=lambda: 0,
        )  # fmt: skip

    def _spend(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now_s + seconds)

    def _put(self, key: str, **attributes: Any) -> None:
        self._spend(CALL_S / (_PUTS_AT_ONCE if key.startswith("node#") else 1))
        self.aws.items[key] = attributes

    def _receive(self, wait_s: int) -> list[dict[str, Any]]:
        """Return ten messages at most; they may come out of order."""
        self.clock.run_until(self.clock.now_s + max(wait_s, CALL_S), lambda: bool(self.aws.messages))
        self._spend(CALL_S)
        taken, self.aws.messages = self.aws.messages[:10], self.aws.messages[10:]
        sender = "{}:{}".format
        return [
            {"Body": json.dumps(one), "Attributes": {"SenderId": sender(_ROLE, one.get("instance_id"))}}
            for one in taken
        ]

    def _sign(self, nodes: tuple[Node, ...], _user: str) -> dict[str, tuple[str, str]]:
        self._spend(len(nodes) * self._certificate_s / _HEAD_CPUS)
        certificate = "ssh-ed25519-cert-v01@openssh.com " + "A" * 1200
        return {node.instance_id: (certificate, certificate) for node in nodes}

    @contextlib.contextmanager
    def _simulated(self) -> Iterator[None]:
        """Replace what the agent's modules use of this machine."""
        one_by_one = SimpleNamespace(
            in_parallel=lambda jobs, _width: [job() for job in jobs],
            Authority=lambda *_: SimpleNamespace(sign=self._sign, public_key="ssh-ed25519 AAAAA"),
        )
        signal = SimpleNamespace(
            **vars(outcome) | {"signal": lambda *arguments: self.aws.signals.append(str(arguments))}
        )
        with contextlib.ExitStack() as stack:
            for module, name, stand_in in (
                (head_module, "time", self.clock),
                (worker_module, "time", self.clock),
                (worker_module, "random", self.chance),
                (head_module, "trust", one_by_one),
                (head_module, "outcome", signal),
                (head_module.proof, "log_in", lambda *_: {}),
                (head_module.contract, "apply", lambda *_: None),
                (head_module.disk, "is_full", lambda _: False),
            ):
                stack.enter_context(mock.patch.object(module, name, stand_in))
            yield


def _node(number: int) -> Node:
    chance = random.Random(number)
    keys = [base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + chance.randbytes(32)).decode() for _ in range(2)]
    instance_id, address = f"i-{chance.getrandbits(68):017x}", f"10.0.{number // 250}.{number % 250 + 4}"
    _ADDRESSES[instance_id] = address
    return Node(
        worker_name(number), instance_id, address, "ip-" + address.replace(".", "-"), "us-east-1a", "p4d.24xlarge",
        8, 8, number == 1, f"ssh-ed25519 {keys[0]}", f"ssh-ed25519 {keys[1]}",
    )  # fmt: skip


_ADDRESSES: dict[str, str] = {}


def certificate_s(nodes: int = 20) -> float:
    """Measure the CPU time that a node's two certificates cost here."""
    with tempfile.TemporaryDirectory() as place:
        key = trust.make_key(f"{place}/key", "n")
        authority = trust.Authority(f"{place}/authority/key", "demo", "10.0.0.0/16")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        made = [_node(n)._replace(host_key=key, user_key=key) for n in range(1, nodes + 1)]
        authority.sign(made, "phalanx")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / nodes


def in_2018(hellos_s: list[float], due_s: float) -> tuple[list[float], float]:
    """Return when each node of the protocol of 2018 learns of the others, and the calls of a node on average.

    The head looks every 30 s whether all are there, and then sends each a message; each polls the queue every 30 s.
    """
    chance = random.Random(1)
    sent_s = due_s + chance.uniform(0, _POLL_2018_S)
    ends, calls = [], 0
    for began_s in hellos_s:
        polls = math.ceil((sent_s - began_s) / _POLL_2018_S)
        ends.append(began_s + polls * _POLL_2018_S)
        calls += polls + 2  # its message is received at the last poll, and deleted; and the log
    return sorted(ends), calls / len(hellos_s)


def figures() -> list[Figure]:
    """Simulate one creation; raise SystemExit unless every node that said hello has acknowledged."""
    cluster = Cluster(certificate_s())
    cluster.run()
    acked = sorted(member.acked_s for member in cluster.members)
    if not cluster.aws.signals or not acked[0]:
        raise SystemExit(f"not ready at {cluster.clock.now_s:.0f} s: {cluster.aws.signals}")
    due_s = max(*cluster.hellos_s, NODE_TIMEOUT_S)
    calls = [member.caller.calls for member in cluster.members]
    by_second: defaultdict[int, float] = defaultdict(float)
    for (_key, second), units in cluster.aws.units.items():
        by_second[second] += units
    ends_2018, calls_2018 = in_2018(cluster.hellos_s[: len(cluster.members)], due_s)
    return [
        Figure(
            f"{NODES} nodes: AWS calls of a node until ready, on average",
            (sum(calls) / len(calls) + _BOOT_CALLS,),
            "",
            8,
        ),
        Figure("  the same, of the node with the most", (max(calls) + _BOOT_CALLS,), ""),
        Figure("  the same in 2018, without its boot", (calls_2018,), ""),
        Figure("from the last hello or node_timeout to the last acknowledgement", (acked[-1] - due_s,), "s", 10),
        Figure("  of this, until the roster is written", (cluster.published_s - due_s,), "s"),
        Figure("  the same in 2018", (ends_2018[-1] - due_s,), "s"),
        Figure(
            "read units of a partition key in the busiest second",
            (max(cluster.aws.units.values()),),
            "",
            PARTITION_UNITS_PER_S,
        ),
        Figure("  of the whole table", (max(by_second.values()),), "", 12_000),
    ]
