"""The errors that phalanx raises on purpose, each with what failed, what to do next, a code and an exit status.

PhalanxError            1   the request was valid and failed
├── SpecError           2   a mistake in phalanx.yaml or in the command line
├── CloudError          3   the cloud refused or did not answer
│   ├── CloudUnreachable    no credentials, or no connection
│   └── StackFailed     4   the stack did not come up, and was rolled back
├── LocalCloudError     5   this machine can't run the local cloud
├── ClusterError        6   the cluster can't be reached or changed
├── JobError            7   the job can't be started or followed
└── NewerFormat         8   a newer phalanx made this

The code names the situation for scripts: docs/errors.md lists all of them. Each has one exit status, whatever part of
phalanx raises it: that of STATUSES, or else that of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx.counts import first_of

_T = TypeVar("_T")
_LONGEST = 1 << 16

# What was typed or written, and names something that does not exist or can't be, is a mistake wherever it is found.
_MISTAKES = """
    ambiguous-job bad-array bad-checkpoint bad-link bad-name bad-step bad-tag bad-url bad-words bucket-elsewhere
    cannot-read conflicting-options ignore-rules job-removed requirements-file
    no-bucket no-cluster no-command no-curves no-data-entry no-data-set no-directory no-emr-cluster no-file
    no-attempt no-file-system no-image no-job no-launcher no-link-target no-node no-process no-public-address no-recipe
    no-security-group no-stack node-range not-s3-url other-architecture other-partition out-of-range outside-shared
    relative-path unknown-choice unknown-option which-cluster usage
"""
STATUSES: Mapping[str, int] = {
    **dict.fromkeys(("cannot-write", "damaged-record", "disk-full"), 1),
    **dict.fromkeys(_MISTAKES.split(), 2),
    **dict.fromkeys(("bucket-denied", "forged"), 3),
    "image-failed": 4,
    **dict.fromkeys(
        (
            *("cluster-not-ready", "connection-lost", "invalid-answer", "name-taken", "no-answer", "no-nodes"),
            *("no-roster", "used-by-others"),
        ),
        6,
    ),
    "too-few-gpus": 7,
    "newer-format": 8,
}
"""The exit status of each code that several classes have, or that is not of its class."""


class PhalanxError(Exception):
    """The base of all errors: `message` says what failed, `hint` what to do next (may be empty).

    `code` names the situation and stays when the words change. Without one it is that of the class.
    """

    exit_code = 1
    code = "failed"

    def __init__(self, message: str, hint: str = "", *, code: str = "") -> None:
        if len(message) > _LONGEST:  # of an answer, a name or a log without an end
            message = f"{message[:_LONGEST]}… ({len(message) - _LONGEST:,} more characters)"
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            self.code = code
        self.exit_code = STATUSES.get(self.code, type(self).exit_code)

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have constructors of their own.
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class SpecError(PhalanxError):
    """One or more mistakes in what the user wrote; `message` lists the first of them, one a line."""

    exit_code = 2
    code = "spec"
    mistakes: tuple[SpecError, ...] = ()
    """The single ones, if there are several."""

    @classmethod
    def of(cls, mistakes: Sequence[SpecError], texts: Iterable[str]) -> SpecError:
        """Return one error for these mistakes, with the first of the texts; its code is theirs if they share one."""
        codes = {one.code for one in mistakes}
        every = cls(first_of(texts, "\n"), code=codes.pop() if len(codes) == 1 else "several-mistakes")
        every.mistakes = tuple(mistakes)
        return every

    @classmethod
    def alike(cls, messages: Sequence[str], hint: str, *, code: str) -> SpecError:
        """Return one error for mistakes of one kind, a line for each; the hint for all of them follows the last."""
        *others, last = messages
        every = cls.of([*(cls(one, code=code) for one in others), cls(last, hint, code=code)], messages)
        every.hint = hint
        return every


def in_lines(*mistakes: SpecError) -> SpecError:
    """Return one error with a line for each mistake, its hint included."""
    texts = (f"{one.message}; {one.hint}" if one.hint else one.message for one in mistakes)
    return SpecError.of(mistakes, texts)


class Mistakes:
    """Collects the mistakes that independent checks find, to report all of them at once."""

    def __init__(self) -> None:
        self._found: dict[str, SpecError] = {}

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
        self._found.setdefault(str(mistake), mistake)

    def report(self) -> None:
        """Raise SpecError with all mistakes; where there are several, each has its hint below it."""
        found = list(self._found.values())
        if len(found) == 1:
            raise found[0]
        if found:
            texts = ("\n  ".join(filter(None, (one.message, one.hint))) for one in found)
            raise SpecError.of(found, texts)


class CloudError(PhalanxError):
    """The cloud's API refused the request, or did not answer in time."""

    exit_code = 3
    code = "cloud"
    was_refused = False
    """The API answered that it did not do what was asked. Otherwise it may have done it."""


class CloudUnreachable(CloudError):  # noqa: N818 (names the state)
    """The cloud can't be asked anything: there are no credentials, or there is no connection."""

    code = "cloud-unreachable"


class StackFailed(CloudError):  # noqa: N818 (names what happened)
    """The stack did not become ready, and was rolled back."""

    exit_code = 4
    code = "stack-failed"


class NoCapacity(StackFailed):
    """AWS lacks the machines. The stack was rolled back, and nothing of it is left."""

    code = "no-capacity"


class LocalCloudError(PhalanxError):
    """This machine lacks something that the local cloud needs; `hint` has the command that installs or permits it."""

    exit_code = 5
    code = "local-cloud"


class NotRunning(LocalCloudError):  # noqa: N818 - a state, not a fault
    """The local cloud is not running, so none of its clusters exists any more."""

    code = "local-cloud-off"


class ClusterError(PhalanxError):
    """The cluster can't be reached or changed."""

    exit_code = 6
    code = "cluster"


class ClusterGone(ClusterError):  # noqa: N818 - reads as what happened
    """The cluster was deleted."""

    code = "cluster-gone"


class JobError(PhalanxError):
    """A job can't be started, found or followed. (A job that ran and failed ends with its own exit code.)"""

    exit_code = 7
    code = "job"


class SharedSilent(JobError):  # noqa: N818 (names the state)
    """The shared directory, where jobs are, does not answer."""

    code = "shared-silent"


class NewerFormat(PhalanxError):  # noqa: N818 (names the state)
    """A newer phalanx wrote a cluster's record or roster, which this one neither reads nor changes."""

    exit_code = 8
    code = "newer-format"
