"""The head's loop: request the workers, receive their messages, publish the roster, prove it, and signal."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Callable, Optional

from phalanx.node import beats, contract, disk, files, mount, outcome, proof, trust, validate
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError
from phalanx.node.command import CommandError
from phalanx.node.decision import SILENT_S, Action, Fail, Group, Policy, Prove, Publish, State, Succeed, decide
from phalanx.node.disk import HOME
from phalanx.node.limits import Limits
from phalanx.node.roster import Node, Roster, worker_name
from phalanx.node.services import ROSTERS, Reading
from phalanx.node.workers_group import nodes_of

_CHECK_FIRST_S = 1.0
_CHECK_MOST_S = 10.0
# A silent node is noticed between two of these waits.
_LISTEN_S = 3
_PUTS_AT_ONCE = 32
# Values of one filter of DescribeInstances (docs/aws-behaviour.md 2.26).
_ASKED_AT_ONCE = 200
# Nodes with a trouble, in an item that all nodes poll.
_NAMED_AT_MOST = 20


class Deposed(SystemExit):
    """Another machine has become the head."""


class Head:
    """The cluster's membership, managed by the head."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        settings = agent.settings
        self.policy = Policy(
            settings.cluster, settings.nodes, settings.min, settings.node_timeout_s, settings.patience.launch_s
        )
        self.authority = trust.Authority(
            f"{agent.root}{HOME}/authority/key", settings.cluster, settings.networks, f"{agent.root}/run/phalanx"
        )
        self.state = State(agent.describe(), time.monotonic())
        self.ear: Optional[beats.Ear] = None
        self.limits = Limits(agent, lambda: self.ear.used_at if self.ear else 0.0)
        self.shared: Optional[mount.Watch] = None
        # What the table shows: the newest warning, and the names of the nodes whose disks are full, and whose shared
        # directory does not answer.
        self._shown = ("", "", "")
        # What this node itself must still write of the newest roster, once its disk has room.
        self._unwritten: Optional[contract.Papers] = None
        self._checked_at = 0.0
        self._check_s = _CHECK_FIRST_S
        self._now: Callable[[], float] = time.monotonic
        self._has_old_jobs = False
        # The nodes that said hello and that Auto Scaling and EC2 do not list yet; how many messages were not believed.
        self._newcomers: dict[str, Node] = {}
        self._known: set[str] = set()  # addresses whose hellos have arrived
        self._refused = 0
        # Changes of the group that are due: instances to terminate, each with whether it is replaced, and how
        # many nodes to request.
        self._ending: deque[tuple[str, bool]] = deque()
        self._request: Optional[int] = None

    def serve(self) -> None:
        """Manage the membership. Never returns."""
        self.ear = beats.ear(self.state.me.address)
        self.shared = mount.watch(self.agent.settings.shared)
        self.state.beats, self.ear.known, self._now = self.ear.heard, self._known, self.ear.now
        self.restore()
        self.agent.step, self.agent.settled = "members", self.state.signalled
        self.limits.begin()
        while True:
            self.work()
            self.listen()
            self.state.all_leave = self.limits.all_leave
            if self._to_show() != self._shown:
                self._put_generation()

    def restore(self) -> None:
        """Continue where an earlier head ended; a first head requests the workers."""
        table, me = self.agent.table, self.state.me.instance_id
        known = table.get("generation")
        if known.get("head", me) != me and files.read(self.agent.root + contract.ROSTER):
            raise Deposed(known["head"])
        # If two heads start at once, the one with the greater name wins: the other's writes are refused.
        epoch = known.get("epoch", "0 ")
        table.epoch = epoch if epoch.endswith(me) else f"{int(epoch.split()[0]) + 1:06} {me}"
        item = table.get("roster")
        self._read_wish()
        if item:
            self.state.roster = self._read(item["roster"])
            self.state.signalled = bool(known.get("ready"))
            self._known.update(n.address for n in self.state.roster.members)
            self._has_old_jobs = True
        else:
            raise_workers(self.agent)
        self._put_generation()

    def _read(self, packed: bytes) -> Roster:
        """Return the roster of an earlier head. Raises SystemExit for that of a newer phalanx, which stays as it is."""
        try:
            return validate.roster(packed, self.agent.settings.networks)
        except validate.Newer as error:
            self.agent.log.say(str(error))
            raise SystemExit(f"phalanx: {error}") from error

    def work(self) -> None:
        """Carry out decisions until there is nothing more to do."""
        if self._unwritten and not disk.is_full(self.agent.root):
            self._apply(self._unwritten)
        while (action := decide(self.state, self.policy, self._now())) is not None:
            self.perform(action)

    def perform(self, action: Action) -> None:
        if isinstance(action, Publish):
            self.publish(action)
        elif isinstance(action, Prove):
            self.prove(action.nodes)
        elif isinstance(action, Succeed):
            self.signal("SUCCESS", outcome.summary(self.state.roster))
        elif isinstance(action, Fail):
            self.signal("FAILURE", action.reason)

    def listen(self) -> None:
        """Wait for messages, but not beyond the next reading of the group, or the moment when a node may be silent."""
        due = min(self._checked_at + self._check_s, self._next_silence())
        messages = self.agent.queue.receive(min(_LISTEN_S, max(0, round(due - time.monotonic() + 0.5))))
        try:
            for message in messages:
                self.hear(message["Body"], message["Attributes"]["SenderId"])
            if time.monotonic() >= self._checked_at + self._check_s:
                self.read_group()
            elif messages:
                self.admit()
                self.work()
        finally:
            # In any case, so that it does not come again and again.
            if messages:
                self.agent.queue.delete(messages)

    def _next_silence(self) -> float:
        """Return when the first of the nodes that beat is silent, unless it beats again."""
        now, heard = time.monotonic(), self.state.beats
        nodes = self.state.roster.nodes if self.state.roster else ()
        silences = [heard[node.address] + SILENT_S for node in nodes if node.address in heard]
        return min((at for at in silences if at > now), default=now + _LISTEN_S)

    def hear(self, body: str, sender_id: str) -> None:
        """Handle a message that SQS received from `sender_id`. An invalid one is counted and changes nothing."""
        try:
            message = validate.parse(body)
            kind = message.get("kind")
            if kind == "wish" or message.get("Type") == "Notification":
                # The fleet has changed or will. This is only a hint to read the group, whoever sends it.
                self._check_s = _CHECK_FIRST_S
                return
            sender = validate.instance_id(message["instance_id"])
            if sender_id != f"{self.agent.settings.worker_role}:{sender}":
                raise ValueError(f"{sender_id:.99} speaks for {sender}")
            if kind == "hello":
                self._hear_hello(validate.node({**message, "name": worker_name(1), "head": False}))
            elif kind == "leaving":
                self.state.leaving[sender] = validate.reason(message["reason"])
            elif kind == "ack":
                self.state.acks[sender] = max(validate.count(message["generation"]), self.state.acks.get(sender, 0))
            else:
                self.state.failed[sender] = validate.reason(outcome.boot_failure(message))
        except Exception as error:
            self._refuse(repr(error))

    def _refuse(self, why: str) -> None:
        """Count an invalid message; a flood of them is logged in few lines."""
        self._refused += 1
        if not self._refused & (self._refused - 1):
            self.agent.log.say(f"{self._refused} messages were not believed, the last: {why}")

    def _hear_hello(self, node: Node) -> None:
        """Record a hello. A node keeps the keys and the address of its first hello."""
        node_id, state = node.instance_id, self.state
        known = state.hellos.get(node_id) or self._newcomers.get(node_id)
        members = state.roster.members if state.roster else ()
        known = known or next((n for n in members if n.instance_id == node_id), None)
        if known and (known.address, known.host_key, known.user_key) != (node.address, node.host_key, node.user_key):
            raise ValueError(f"{node_id} had another address, or other keys")
        self._known.add(node.address)
        if node_id in state.hellos:
            self._welcome(node)
            return
        self._newcomers[node_id] = node
        if not state.group or node_id not in state.group.instances:
            self._checked_at = 0.0

    def admit(self) -> None:
        """Accept new nodes that Auto Scaling lists, at the address that EC2 has for them."""
        listed = self.state.group.instances if self.state.group else {}
        asked = [i for i in self._newcomers if i in listed][:_ASKED_AT_ONCE]
        found = self.agent.fleet.addresses(asked) if asked else {}
        for instance_id, address in found.items():
            node = self._newcomers.pop(instance_id)
            if node.address == address:
                self._welcome(node)
            else:
                self._refuse(f"{instance_id} is at {address} and says {node.address}")

    def _welcome(self, node: Node) -> None:
        node_id = node.instance_id
        if node_id not in self.state.hellos:
            self.agent.log.say(f"hello from {node_id} at {node.address}")
            self.agent.answered.append((node_id, node.address))
        self.state.hellos[node_id] = node
        self.state.heard[node_id] = time.monotonic()

    def read_group(self) -> None:
        """Read the workers' group; less often the longer nothing is expected of it."""
        self._checked_at = now = time.monotonic()
        self._check_s = min(_CHECK_MOST_S, self._check_s * 1.3)
        try:
            self._read_wish()
            self._take(self.agent.fleet.read(), now)
            self._ask_for_silent()
            self.admit()
        except (AwsError, ValueError) as error:
            self.agent.log.say(f"the workers' group can't be read: {error}")
            return
        self._change_group()
        self.work()

    def _take(self, reading: Reading, now: float) -> None:
        """Record the group as it was read."""
        before = self.state.group or Group(now, {})
        refusals = tuple({refusal.cause: refusal.message for refusal in reading.refusals}.values())
        for message in refusals[: len(refusals) - len(before.refusals)]:
            self.agent.log.say(f"Auto Scaling: {message}")
        since = before.refused_since if before.refusals else now
        seen = {i: before.instances.get(i, now) for i in reading.instances}
        self.state.group = Group(now, seen, refusals, since)

    def _ask_for_silent(self) -> None:
        """Ask EC2 whether silent nodes have ended: Auto Scaling knows it later."""
        silent = self.state.roster.silent if self.state.roster else ()
        if silent:
            self.state.ended |= self.agent.fleet.ended([n.instance_id for n in silent][:_ASKED_AT_ONCE])

    def _read_wish(self) -> None:
        """Read the number of nodes that the user has requested (`phalanx scale`)."""
        wish = self.agent.table.get("wish")
        self.policy = replace(
            self.policy, nodes=validate.count(wish.get("nodes", self.policy.nodes), validate.NODES_MOST)
        )

    def publish(self, action: Publish) -> None:
        """Sign certificates; write each node's item, the roster, then the generation; apply it on this node too."""
        roster = action.roster
        papers = self._sign(roster)
        table, number = self.agent.table, roster.generation
        trust.in_parallel(
            [lambda n=n: self._put_node(n, number, papers[n.instance_id]) for n in roster.nodes], _PUTS_AT_ONCE
        )
        table.put("authority", public_key=self.authority.public_key)
        for copy in ROSTERS:
            table.put(copy, generation=number, roster=roster.packed())
        self.state.roster, self.state.published_at = roster, time.monotonic()
        self._put_generation()
        absent = f"{len(roster.silent)} silent, {len(roster.missing)} missing"
        self.agent.log.say(f"generation {number}: {len(roster.nodes)} nodes, {absent}")
        self._apply(papers[self.state.me.instance_id])
        self._give_up(action)

    def _apply(self, papers: contract.Papers) -> None:
        """Apply the newest roster on this node. In a ready cluster, a full disk keeps the one before until it has room.

        Before that, it is an error: nothing would say why the cluster does not become ready.
        """
        roster, me = self.state.roster, self.state.me.instance_id
        assert roster is not None
        try:
            contract.apply(roster, me, self.agent.machine(), papers, self.agent.root)
        except OSError as error:
            if not (files.is_full(error) and self.state.signalled):
                raise
            if not self._unwritten:
                self.agent.log.say(f"generation {roster.generation} is not written here yet: {error}")
            self._unwritten = papers
            return
        self._unwritten, self.state.acks[me] = None, roster.generation

    def _sign(self, roster: Roster) -> dict[str, contract.Papers]:
        signed = self.authority.sign(roster.nodes, self.agent.settings.job_user)
        return {i: contract.Papers(self.authority.public_key, *pair) for i, pair in signed.items()}

    def _put_node(self, node: Node, generation: int, papers: contract.Papers) -> None:
        self.agent.table.put(
            f"node#{node.instance_id}",
            generation=generation,
            authority=papers.authority,
            host_certificate=papers.host_certificate,
            user_certificate=papers.user_certificate,
        )

    def _put_generation(self) -> None:
        roster, head = self.state.roster, self.state.me
        number, self._shown = roster.generation if roster else 0, self._to_show()
        proven = [node for node in (roster.nodes if roster else ()) if node.instance_id in self.state.proven]
        self.agent.table.put(
            "generation",
            number=number,
            head=head.instance_id,
            head_address=head.address,
            ready=self.state.signalled,
            proven=len(proven),
            refused=self._refused,
            notice=self._shown[0],
            full=self._shown[1],
            hung=self._shown[2],
        )
        with suppress(OSError):  # for runners here; this disk may be full
            files.write(self.agent.root + contract.HUNG, self._shown[2])
        if self.ear:
            self.ear.announce(number)

    def _to_show(self) -> tuple[str, str, str]:
        full, hung = (set(self.ear.full), set(self.ear.hung)) if self.ear else (set(), set())
        if disk.is_full(self.agent.root):
            full.add(self.state.me.address)
        if self.shared and self.shared.is_silent:
            hung.add(self.state.me.address)
        return self.limits.notice, self._names(full), self._names(hung)

    def _names(self, addresses: set[str]) -> str:
        members = self.state.roster.members if self.state.roster else ()
        return " ".join([node.name for node in members if node.address in addresses][:_NAMED_AT_MOST])

    def _give_up(self, action: Publish) -> None:
        """Have instances that are not nodes terminated, and another number of nodes requested."""
        for instance_id in (*action.drop, *action.lost):
            self._ending.append((instance_id, instance_id in action.lost))
            self.state.dropped.add(instance_id)
        if action.request is not None:
            self._request = action.request
        self._change_group()

    def _change_group(self) -> None:
        """Make the changes that are due. One that fails is made after the next reading, and stops no other for good."""
        nodes = nodes_of(len(self.state.group.instances) if self.state.group else 0)
        while self._ending:
            if not self._done(lambda: self._terminate(*self._ending[0])):
                self._ending.rotate(-1)
                break
            self._ending.popleft()
        # Auto Scaling must not choose which instance ends: one that is to end may still be there.
        request = self._request
        if request is not None and (not self._ending or nodes <= request):
            self._request = None if self._done(lambda: self.agent.fleet.request(request)) else request

    def _terminate(self, instance_id: str, replaced: bool) -> None:
        """Terminate an instance, unless EC2 has ended it.

        One that has ended is in no group, so the right to terminate it, which follows the group, may be denied for
        good; and denied calls are tried again for a minute.
        """
        fleet = self.agent.fleet
        if instance_id not in fleet.ended([instance_id]):
            fleet.terminate(instance_id, replaced=replaced)

    def _done(self, change: Callable[[], None]) -> bool:
        try:
            change()
        except AwsError as error:
            self.agent.log.say(f"{error}; trying again")
            return False
        return True

    def prove(self, nodes: tuple[Node, ...]) -> None:
        """Log in to these nodes; a node that refuses is no longer a member."""
        refused = proof.log_in(nodes)
        self.state.failed.update(refused)
        self.state.proven.update(n.instance_id for n in nodes if n.instance_id not in refused)
        self._put_generation()
        if self._has_old_jobs:
            self._has_old_jobs = bool(refused)
            threading.Thread(target=self._settle_jobs, daemon=True).start()

    def _settle_jobs(self) -> None:
        """Settle jobs, once all nodes accept logins from a new head.

        Jobs can write to the shared directory, so no program there is trusted by itself. The submitter of a job left
        this command in the table, with a runner's hash in it.
        """
        try:
            command = self.agent.table.get("settle").get("command", "true")
            proof.settle_jobs(command)
        except (AwsError, CommandError) as error:
            self.agent.log.say(f"the jobs of the head before can't be settled: {error}")

    def signal(self, status: str, text: str) -> None:
        """Signal the outcome to CloudFormation, once in the cluster's life."""
        self.agent.log.say(f"{status}: {text}")
        outcome.signal(self.agent.settings.wait_handle, status, text, self.agent.settings.patience)
        self.state.signalled = self.agent.settled = True
        self._put_generation()


def raise_workers(agent: Agent) -> None:
    """Request all workers from Auto Scaling. Idempotent."""
    if agent.settings.nodes > 1:
        agent.fleet.request(agent.settings.nodes)
