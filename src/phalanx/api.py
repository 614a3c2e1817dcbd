"""Clusters for Python programs: `with Cluster.up("phalanx.yaml") as cluster: cluster.run([…]).result()`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from phalanx import connection
from phalanx.cluster import cluster_record as store
from phalanx.cluster import gather, scaling
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.cluster.take_down import TakeDown
from phalanx.cluster.update import described
from phalanx.errors import ClusterError, JobError
from phalanx.jobs import environments, transfer
from phalanx.jobs.future import JobFuture
from phalanx.jobs.job import JobSpec, JobStatus, list_jobs, open_job, submit
from phalanx.launchers import LAUNCHERS
from phalanx.spec.spec_load import load, with_location

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from phalanx.cluster.bring_up import Step, Up
    from phalanx.cluster.update import Proposal
    from phalanx.jobs.job_model import JobOptions
    from phalanx.node.roster import Roster

__all__ = ["Cluster"]


class Cluster:
    """A cluster that is ready. As a context manager it deletes the cluster at the end if `up` created it."""

    def __init__(self, record: store.Cluster, made_here: bool = False) -> None:
        self._record = connection.attached(record)
        self._made_here = made_here

    @classmethod
    def up(
        cls,
        spec: str | Path = "phalanx.yaml",
        progress: Callable[[Step], object] | None = None,
        change: bool | Callable[[Proposal], bool] = False,
        *,
        new_image: bool = False,
    ) -> Cluster:
        """Create the cluster that this file describes, or find it ready; call `progress` with each step.

        A cluster that is there with other settings is changed with `change=True`, or if `change(proposal)` returns
        True for what would change, and refused otherwise. With `new_image`, a newer image than the nodes have is such a
        change.

        Raises SpecError, CloudError, ClusterError for a change without consent, or StackFailed after everything was
        rolled back.
        """
        wanted = load(Path(spec))
        connection.begin(wanted.cloud)
        bring_up = BringUp(
            connection.connect(wanted.cloud, wanted.region), wanted, _approving(change), new_image=new_image
        )
        try:
            with with_location(spec):
                for step in bring_up.steps():
                    if progress:
                        progress(step)
        finally:
            if bring_up.result is None:
                bring_up.target.cloud.site.stop_if_idle()
        assert bring_up.result is not None
        up = _resized(bring_up.result, progress)
        return cls(up.cluster, made_here=not up.already)

    @classmethod
    def open(cls, name: str | None = None) -> Cluster:
        """Open the named cluster, or the only one that this machine knows. Raises ClusterError."""
        record = store.Cluster.load(name)
        record.require_ready()
        return cls(record)

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def shared(self) -> str:
        """Where the shared directory is mounted on every node."""
        return self._record.shared

    @property
    def address(self) -> str:
        """The head's public address."""
        return self._record.head_address

    def roster(self) -> Roster:
        """Return the nodes of the cluster, and the missing ones with the reason."""
        return self._record.roster()

    def run(
        self,
        command: str | Sequence[str],
        *,
        nodes: tuple[int, int] | None = None,
        recipe: str | None = None,
        requirements: str | Path | Literal[False] | None = None,
        build_env: Mapping[str, str] | None = None,
        **options: Unpack[JobOptions],
    ) -> JobFuture:
        """Start a job in a copy of `directory`; the options are those of `phalanx run`. Raises JobError.

        A `command` that is a string is a line for the shell `sh`; a list is a program and its arguments.
        `nodes` is torchrun's (MIN, MAX). `requirements` is by default the file in the code that names its packages, on
        top of a `recipe`; False means none. `build_env` are variables for pip and compilers. All other options are
        fields of JobSpec; among them, `options` are the launcher's own, such as {"servers": "2"}. The call returns when
        the head has accepted the job, which goes on even if this program ends.
        """
        if (launcher := options.get("launcher", "mpi")) not in LAUNCHERS:
            raise JobError(
                f"there is no launcher '{launcher}'", f"The launchers are: {', '.join(LAUNCHERS)}.", code="no-launcher"
            )
        fewest, most = (None, None) if nodes is None else _fewest_and_most(nodes)
        directory = Path(options.pop("directory", "."))
        listed = Path(requirements) if requirements else requirements
        argv = ("sh", "-c", command) if isinstance(command, str) else tuple(command)
        spec = JobSpec(
            command=argv,
            directory=directory,
            nodes_min=fewest,
            nodes_max=most,
            environment=environments.choose(directory, recipe, listed, build_env, argv),
            **cast("dict[str, Any]", options),
        )
        return JobFuture(submit(self._record, spec, detach=True))

    def jobs(self, tags: Mapping[str, str] | None = None) -> list[JobStatus]:
        """Return all jobs of the shared directory, or those with these tags; the newest first."""
        return [job for job in list_jobs(self._record) if job.has(tags or {})]

    def job(self, reference: str | None = None) -> JobFuture:
        """Return a job by its id, a part of the id, or its name; None: the newest. Raises JobError."""
        return JobFuture(open_job(self._record, reference))

    def get(
        self, path: str, destination: str | Path | None = None, *, job: JobFuture | str | None = None
    ) -> transfer.Copied:
        """Copy a file or directory from the work/ of `job` (default: the newest), or from below the shared directory.

        Raises TransferError.
        """
        wanted = None
        if not path.startswith("/"):
            wanted = job.job if isinstance(job, JobFuture) else open_job(self._record, job)
        return transfer.get(self._record, path, destination, wanted)

    def put(self, source: str | Path, destination: str = "") -> transfer.Copied:
        """Copy a file or directory to the shared directory. Raises TransferError."""
        return transfer.put(self._record, Path(source), destination)

    def exec(
        self, command: str | Sequence[str], *, nodes: Sequence[str] = (), sudo: bool = False, timeout_s: float = 3600.0
    ) -> list[gather.Verdict]:
        """Run a command on these nodes (default: all) at once, a string in a shell; return one verdict per node."""
        text = command if isinstance(command, str) else shlex.join(command)
        return list(gather.gather(self._record, text, nodes=nodes, sudo=sudo, timeout_s=timeout_s))

    def down(self) -> None:
        """Delete the cluster and check that nothing is left. Raises CloudError, which names what is left.

        Data in the shared directory is kept unless the cluster's file says `keep: no`.
        """
        for _ in TakeDown(connection.connect(self._record.cloud, self._record.region), self.name).steps():
            pass
        self._made_here = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made_here:
            self.down()

    def __repr__(self) -> str:
        return f"<Cluster {self.name} at {self.address}>"


def _approving(change: bool | Callable[[Proposal], bool]) -> Callable[[Proposal], None]:
    """Return what raises ClusterError for a change that is not wanted."""

    def approve(proposal: Proposal) -> None:
        if not (change(proposal) if callable(change) else change):
            raise ClusterError(
                f"cluster {proposal.cluster} exists with other settings: {described(proposal.settings)}",
                "Call Cluster.up with change=True, or with a function that looks at what would change.",
                code="settings-differ",
            )

    return approve


def _resized(up: Up, progress: Callable[[Step], object] | None) -> Up:
    """Give a cluster the number of nodes that its changed file wants."""
    if up.resize is None:
        return up
    there = replace(up, cluster=connection.attached(up.cluster))
    return scaling.resized(there, up.resize, lambda text: progress(Note(text)) if progress else None)


def _fewest_and_most(nodes: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(nodes, (tuple, list)) or [type(number) for number in nodes] != [int, int]:
        raise JobError(
            f"nodes is {nodes!r}",
            "Give the smallest and the largest number of nodes, such as (2, 4).",
            code="node-range",
        )
    return nodes[0], nodes[1]
