"""What launchers take beside -n and -N: one flag of `phalanx run` each, a text until the launcher reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, NamedTuple

if TYPE_CHECKING:
    from phalanx.runner.process import JobDescription


class Option(NamedTuple):
    """`--NAME METAVAR`, as --help shows it."""

    metavar: str
    summary: str


# A launcher says in its own OPTIONS which of these it takes.
OPTIONS: Dict[str, Option] = {
    "servers": Option("S", "dmlc: parameter servers (default: one per node that has workers)."),
    "ps": Option("P", "tensorflow: parameter servers (default: none; with --tf-style flags one per node)."),
    "tf-style": Option("STYLE", "tensorflow: tell tasks what they are by TF_CONFIG ('config') or TF1's 'flags'."),
    "deepspeed-flags": Option("FLAGS", "deepspeed: more flags for deepspeed itself, such as '--no_local_rank'."),
}


def count(job: JobDescription, name: str, default: int) -> int:
    """An option that counts something: 1 or more. Raises RefusedError."""
    text = job.options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        from phalanx.runner.process import RefusedError  # the command line needs the names alone

        raise RefusedError(f"--{name} is '{text}'\nIt counts processes: 1 or more.")
    return int(text)
