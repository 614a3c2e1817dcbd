"""Change the number of nodes: write the requested number into the roster table, from which the head takes it.

How many there may be at most is the MaxSize of the workers' group. No node can change it: it goes with the user's
rights.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.aws import stacks, tables
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.diagnosis import require_running
from phalanx.cluster.spending import limits_now
from phalanx.cluster.stack import are_proven, read_lacking, require_roster
from phalanx.counts import counted
from phalanx.errors import ClusterError
from phalanx.jobs.job import JOBS, list_jobs
from phalanx.node import validate
from phalanx.node.roster import COMING, Node, Roster, worker_number
from phalanx.spec.spec import ClusterSpec
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.cluster.bring_up import Up

_DEADLINE_S = 15 * 60.0
_MAKE_ROOM = "it takes part again once it has room (`phalanx why` shows how to make room)"


class Scaling:
    """A change of a cluster's size. `roster` is the newest that was read."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        cluster.require_ready()
        require_running(cluster)
        self.cluster, self.nodes = cluster, nodes
        self.cloud = cluster.aws()
        self._adopted = cluster.core_group()
        self.roster = self._read()

    def leaving(self) -> list[Node]:
        """Return the members that leave when the cluster shrinks: the highest numbers, never the head."""
        return [node for node in self.roster.nodes if worker_number(node.name) > self.nodes]

    def jobs_in_the_way(self) -> list[str]:
        """Return the ids of running jobs that started with a node that would leave."""
        leaving = {node.instance_id for node in self.leaving()}
        running = [job.id for job in list_jobs(self.cluster) if not job.state.final] if leaving else []
        return [job for job in running if leaving & {node.instance_id for node in self._roster_of(job)}]

    def refuse_to_take_nodes(self, jobs: Sequence[str]) -> None:
        """Raise ClusterError if these jobs would lose nodes."""
        if jobs:
            names = ", ".join(node.name for node in self.leaving())
            raise ClusterError(
                f"{' and '.join(jobs)} would lose {names}",
                "Wait until the job ends, stop it with `phalanx stop`, or run `phalanx scale` with --force.",
                code="jobs-lose-nodes",
            )

    def steps(self) -> Iterator[str]:
        """Change the number of nodes, wait until they are members, and record it; yield what happens."""
        yield from self._hold_budget()
        leaving, members = self.leaving(), self.roster.members
        self.request()
        if self._adopted:
            yield from self._adopted.resize(self.nodes, leaving, members)
        yield from self.follow(_DEADLINE_S)
        replace(self.cluster, nodes=len(self.roster.nodes), control=None).save()

    def _hold_budget(self) -> Iterator[str]:
        """Bring the end of the lease forward if the budget does not pay for more nodes until then. Raises SpecError."""
        end_s = self.end_of_budget() if self.cluster.spec.get("budget") and self.nodes > self.roster.requested else None
        if end_s is not None:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end_s))
            yield f"the budget of {self.cluster.spec['budget']} pays {counted(self.nodes, 'node')} until {when}"

    def request(self) -> None:
        """Allow this many, then write the wish, which the head reads at its next look (10 s at most), and wake it."""
        if self.nodes > self.roster.requested:
            self._allow()
        tables.put(self.cloud, self.cluster.table, "wish", nodes={"N": str(self.nodes)})
        state = stacks.describe(self.cloud, self.cluster.stack_id)
        if state is not None and "HeadQueue" in state.outputs:
            self.cloud.call("sqs", "send_message", QueueUrl=state.outputs["HeadQueue"], MessageBody='{"kind": "wish"}')

    def end_of_budget(self) -> float | None:
        """Stop the nodes when the budget is spent at the new size; return when, None if the lease ends sooner.

        Raises SpecError if it is spent.
        """
        spec = ClusterSpec(**self.cluster.spec)
        state, running = (
            stacks.describe(self.cloud, self.cluster.stack_id),
            self.cloud.machines.running(self.cluster.name),
        )
        if state is None or running is None:
            return None
        limits = limits_now(self.cloud, state, replace(spec, lease_s=0), 0, self.nodes)
        end_s = time.time() + limits.lease_s
        if not limits.by_budget or (running.end_s is not None and running.end_s <= end_s):
            return None
        self.cloud.machines.end_at(self.cluster.name, end_s)
        return end_s

    def follow(self, deadline_s: float) -> Iterator[str]:
        """Yield what happens until all nodes are there and accept logins. Raises ClusterError at the deadline."""
        end = time.monotonic() + deadline_s
        with waiting(f"cluster {self.cluster.name} to have {counted(self.nodes, 'node')}"):
            yield from self._news(end)
            # Before the head has asked for fewer, a lower maximum would end instances of Auto Scaling's choice.
            while self._running() > self.nodes:
                if time.monotonic() > end:
                    return
                time.sleep(self.cloud.poll_interval_s)
        self._allow()

    def _news(self, end: float) -> Iterator[str]:
        said: list[str] = []
        while not (self.settled and are_proven(self.cloud, self.cluster.table, self.roster)):
            self._require_wish()
            roster, full = self.roster, read_lacking(self.cloud, self.cluster.table).room
            news = [f"{len(roster.nodes)} of {counted(roster.requested, 'node')}"]
            obstacles = [f"the disk of {node} is full: {_MAKE_ROOM}" for node in full]
            if time.monotonic() > end:
                late = f"cluster {self.cluster.name} did not reach {counted(self.nodes, 'node')} in time"
                raise ClusterError(
                    "; ".join([late, *obstacles]),
                    "`phalanx status` shows the progress; the head continues.",
                    code="not-scaled",
                )
            yield from (text for text in news + obstacles if text not in said)
            said = news + obstacles
            time.sleep(self.cloud.poll_interval_s)
            self.roster = self._read()

    def _require_wish(self) -> None:
        """Raise ClusterError if another command has requested another number since."""
        wish = (tables.item(self.cloud, self.cluster.table, "wish") or {}).get("nodes", str(self.nodes))
        if wish != str(self.nodes):
            raise ClusterError(
                f"another command has requested another number of nodes of cluster {self.cluster.name}",
                "`phalanx status` shows how many there are; the head follows the newest request.",
                code="rival-command",
            )

    def _allow(self) -> None:
        self.cloud.machines.allow_nodes(self.cluster.name, self.nodes)

    def _running(self) -> int:
        """Return how many nodes the cloud is to run, the head included. No maximum of an adopted cluster follows it."""
        if self._adopted:
            return 0
        running = self.cloud.machines.running(self.cluster.name)
        return running.nodes if running else 0

    @property
    def settled(self) -> bool:
        """Whether the head has taken the request, and each node is a member or is missing with a reason."""
        return self.roster.requested == self.nodes and all(m.reason != COMING for m in self.roster.missing)

    def _read(self) -> Roster:
        return require_roster(self.cloud, self.cluster.table, self.cluster.name)

    def _roster_of(self, job: str) -> Sequence[Node]:
        path = f"{self.cluster.shared}/{JOBS}/{job}/roster.json"
        done = self.cluster.remote().run(f"cat {shlex.quote(path)}", timeout_s=20, check=False)
        try:
            return validate.roster(done.stdout.decode(), validate.NETWORKS).nodes
        except ValueError:  # the job may have written anything
            return self.roster.nodes


def resized(up: Up, nodes: int, show: Callable[[str], object]) -> Up:
    """Give a cluster that `up` found another number of nodes, and record it; show what happens.

    Raises ClusterError if a job would lose nodes.
    """
    scaling = Scaling(up.cluster, nodes)
    scaling.refuse_to_take_nodes(scaling.jobs_in_the_way())
    for text in scaling.steps():
        show(text)
    settings = {**up.cluster.spec, "nodes": nodes}
    cluster = replace(up.cluster, spec=settings, nodes=len(scaling.roster.nodes), control=None).save()
    return replace(up, cluster=cluster, roster=scaling.roster)
