"""The errors that phalanx raises on purpose, each with what failed, what to do next, and an exit code.

PhalanxError            1   the request was valid and failed
├── SpecError           2   a mistake in phalanx.yaml or in the command line
├── CloudError          3   the cloud refused or did not answer
│   ├── CloudUnreachable    no credentials, or no connection
│   └── StackFailed     4   the stack did not come up, and was rolled back
├── LocalCloudError     5   this machine can't run the local cloud
├── ClusterError        6   no such cluster, or it can't be reached
├── JobError            7   the job can't be started or followed
└── NewerFormat         8   a newer phalanx made this
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class PhalanxError(Exception):
    """The base of all errors: `message` says what failed, `hint` what to do next (may be empty)."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class SpecError(PhalanxError):
    """One or more mistakes in what the user wrote; `message` lists all of them, one a line."""

    exit_code = 2
    mistakes: tuple[SpecError, ...] = ()
    """The single ones, if there are several."""


class Mistakes:
    """Collects the mistakes that independent checks find, to report all of them at once."""

    def __init__(self) -> None:
        self._found: list[SpecError] = []

    def check(self, look: Callable[..., _T], *arguments: Any) -> _T | None:
        """Return what a check returns; None if it finds a mistake."""
        try:
            return look(*arguments)
        except SpecError as mistake:
            for one in mistake.mistakes or (mistake,):
                self.add(one)
            return None

    def add(self, mistake: SpecError) -> None:
        """Add a mistake that is not known yet."""
        if str(mistake) not in map(str, self._found):
            self._found.append(mistake)

    def report(self) -> None:
        """Raise SpecError with all mistakes; where there are several, each has its hint below it."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            every = SpecError("\n".join("\n  ".join(filter(None, (one.message, one.hint))) for one in self._found))
            every.mistakes = tuple(self._found)
            raise every


class CloudError(PhalanxError):
    """The cloud's API refused the request, or did not answer in time."""

    exit_code = 3
    was_refused = False
    """The API answered that it did not do what was asked. Otherwise it may have done it."""


class CloudUnreachable(CloudError):  # noqa: N818 (names the state)
    """The cloud can't be asked anything: there are no credentials, or there is no connection."""


class StackFailed(CloudError):  # noqa: N818 (names what happened)
    """The stack did not become ready, and was rolled back."""

    exit_code = 4


class NoCapacity(StackFailed):
    """AWS lacks the machines. The stack was rolled back, and nothing of it is left."""


class LocalCloudError(PhalanxError):
    """This machine lacks something that the local cloud needs; `hint` has the command that installs or permits it."""

    exit_code = 5


class NotRunning(LocalCloudError):  # noqa: N818 - a state, not a fault
    """The local cloud is not running, so none of its clusters exists any more."""


class ClusterError(PhalanxError):
    """No such cluster is known, or its head can't be reached."""

    exit_code = 6


class ClusterGone(ClusterError):  # noqa: N818 - reads as what happened
    """The cluster was deleted."""


class JobError(PhalanxError):
    """A job can't be started, found or followed. (A job that ran and failed ends with its own exit code.)"""

    exit_code = 7


class SharedSilent(JobError):  # noqa: N818 (names the state)
    """The shared directory, where jobs are, does not answer."""


class NewerFormat(PhalanxError):  # noqa: N818 (names the state)
    """A newer phalanx wrote a cluster's record or roster, which this one neither reads nor changes."""

    exit_code = 8
