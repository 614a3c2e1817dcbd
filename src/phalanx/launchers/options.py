"""The launchers' options besides -n and -N: each is a flag of `phalanx run`, passed as text to the launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, NamedTuple

from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from phalanx.runner.process import PreparedJob


class Option(NamedTuple):
    """One option as --help shows it: `--NAME METAVAR`."""

    metavar: str
    summary: str


# A launcher names those that it takes in its own OPTIONS.
OPTIONS: Dict[str, Option] = {
    "servers": Option("S", "Parameter servers. Without it: one per node that has workers."),
    "ps": Option("P", "Parameter servers. Without it: none; with --tf-style flags one per node."),
    "tf-style": Option("STYLE", "Describe tasks by TF_CONFIG ('config') or TF1's 'flags'."),
    "deepspeed-flags": Option("FLAGS", "Additional flags for deepspeed itself, such as '--no_local_rank'."),
}


def count(job: PreparedJob, name: str, default: int) -> int:
    """Parse an option that is a number of processes, 1 or more. Raises RefusedError."""
    text = job.options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise RefusedError(f"--{name} is '{text}'\nIt is a number of processes, 1 or more.", code="out-of-range")
    return int(text)
