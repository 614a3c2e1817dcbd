"""The services of a cluster in memory, and the agents of its nodes, with real keys and files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rosters import a_node

from phalanx.node import contract, head, trust, worker
from phalanx.node.services import Reading
from phalanx.node.settings import ON_AWS

ROLE = "AROA0123456789ABCDEFG"
# A host key and a user key of each node, by its number.
Keys = dict[int, tuple[str, str]]


def received(message: dict | str) -> dict:
    """Build a message as received from SQS; its `sender` need not be the node that it is about."""
    if isinstance(message, str):
        return {"Body": message, "Attributes": {"SenderId": f"{ROLE}:i-2"}}
    sender = message.pop("sender", f"{ROLE}:{message.get('instance_id')}")
    return {"Body": json.dumps(message), "Attributes": {"SenderId": sender}}


class Memory:
    """The services of one cluster: a table, a queue and a group in memory."""

    def __init__(self) -> None:
        self.epoch = ""
        self.items: dict[str, dict] = {}
        self.sent: list[dict] = []
        self.deleted: list[dict] = []
        self.requested: list[int] = []
        self.terminated: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reading = Reading((), ())
        self.known: dict[str, str] = {f"i-{n}": f"10.0.1.{10 + n}" for n in range(1, 5)}
        self.signals: list[tuple[str, str]] = []
        self.logged: list[str] = []
        self.settled: list[tuple] = []
        self.asked: list[list[str]] = []
        self.gone: set[str] = set()

    def get(self, item: str, consistent: bool = True) -> dict:
        return dict(self.items.get(item, {}))

    def get_together(self, *items: str) -> list[dict]:
        return [self.get(item) for item in items]

    def put(self, item: str, **attributes) -> None:
        self.items[item] = {**attributes, "epoch": self.epoch}

    def receive(self, wait_s: int) -> list[dict]:
        messages, self.sent = self.sent[:10], self.sent[10:]
        return [{**received(m), "ReceiptHandle": "r"} for m in messages]

    def delete(self, messages: list[dict]) -> None:
        self.deleted += messages

    def read(self) -> Reading:
        return self.reading

    def addresses(self, instance_ids: list[str]) -> dict[str, str]:
        return {i: self.known[i] for i in instance_ids if i in self.known}

    def ended(self, instance_ids: list[str]) -> set[str]:
        self.asked.append(instance_ids)
        return self.gone & set(instance_ids)

    def request(self, nodes: int) -> None:
        self.requested.append(nodes)

    def terminate(self, instance_id: str, replaced: bool) -> None:
        assert self.gate.wait(60)
        self.terminated.append(instance_id)


def an_agent(memory: Memory, keys: Keys, root, number: int, nodes: int = 4, minimum: int = 2):
    """Make the agent of node `number`, with its files below `root`."""
    home = root / str(number)
    (home / "etc/ssh").mkdir(parents=True, exist_ok=True)
    (home / "proc").mkdir(exist_ok=True)
    me = a_node(number, name="", host_key=keys[number][0], user_key=keys[number][1])
    settings = SimpleNamespace(
        cluster="demo",
        nodes=nodes,
        min=minimum,
        node_timeout_s=600,
        job_user="phalanx",
        wait_handle="url",
        worker_role=ROLE,
        networks="10.0.0.0/16",
        shared="/efs",
        patience=ON_AWS,
    )
    return SimpleNamespace(
        nodes=nodes,
        head_address="",
        settings=settings,
        root=str(home),
        table=memory,
        queue=memory,
        fleet=memory,
        log=SimpleNamespace(say=memory.logged.append),
        describe=lambda: me,
        machine=lambda: contract.Machine("us-east-1", "/efs", "phalanx"),
        job_uid=lambda: 0,
        answered=[],
        report=lambda kind, **content: memory.sent.append({"kind": kind, "instance_id": me.instance_id, **content}),
    )


def a_memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Make the services, and have heads report to them whatever they would do outside of this process."""
    made = Memory()
    monkeypatch.setattr(head.outcome, "signal", lambda url, status, text, *_: made.signals.append((status, text)))
    monkeypatch.setattr(head.proof, "log_in", lambda nodes: {})
    monkeypatch.setattr(head.proof, "settle_jobs", made.settled.append)
    return made


def keys_of_four(directory: Path) -> Keys:
    """Make the keys of four nodes."""
    return {
        n: (trust.make_key(f"{directory}/h{n}", "h"), trust.make_key(f"{directory}/u{n}", "u")) for n in range(1, 5)
    }


def says_hello(agent) -> None:
    worker.hello(agent, agent.describe())


def turn(made: head.Head) -> None:
    """Run one round of the head's loop."""
    made._checked_at = 0.0
    made.work()
    made.listen()
    made.work()
