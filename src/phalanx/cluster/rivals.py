"""Another command that deletes or creates the cluster at the same time: report that, and not the errors that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phalanx.aws import stacks
from phalanx.errors import CloudError, ClusterError, NotRunning, PhalanxError, StackFailed

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_SUCH_AS = "such as `phalanx down` in another terminal"
_AGAIN = "`phalanx up` creates it again."


@contextmanager
def reported(cloud: Aws, name: str, was_there: Callable[[], bool]) -> Iterator[None]:
    """Raise ClusterError in place of an error that the deletion of the cluster explains."""
    try:
        yield
    except StackFailed:
        raise
    except (CloudError, ClusterError, NotRunning) as error:
        try:
            require_undisturbed(cloud, name, was_there())
        except ClusterError as other:
            raise other from error
        raise


def require_undisturbed(cloud: Aws, name: str, was_there: bool) -> None:
    """Raise ClusterError if the stack is being deleted, is gone though it `was_there`, or has lost its cloud."""
    try:
        found = stacks.describe(cloud, name)
    except NotRunning:
        stopped = f"another command has stopped the local cloud, {_SUCH_AS}, and cluster {name} with it"
        raise ClusterError(stopped, _AGAIN, code="rival-command") from None
    except PhalanxError:
        return
    if found is None and was_there:
        raise deleted(name)
    if found is not None and found.status == "DELETE_IN_PROGRESS":
        raise ClusterError(
            f"another command is deleting cluster {name}, {_SUCH_AS}",
            f"When it has ended, {_AGAIN}",
            code="rival-command",
        )


def require_no_successor(cloud: Aws, name: str, stack_id: str) -> None:
    """Raise ClusterError if the name has another stack now: what is found by its name may be of that one."""
    found = stacks.describe(cloud, name)
    if found is not None and found.stack_id != stack_id:
        raise ClusterError(
            f"cluster {name} was deleted, and another command is creating it again, such as `phalanx up`",
            "`phalanx down` deletes the new one, too.",
            code="rival-command",
        )


def deleted(name: str) -> ClusterError:
    return ClusterError(f"another command has deleted cluster {name}, {_SUCH_AS}", _AGAIN, code="rival-command")
