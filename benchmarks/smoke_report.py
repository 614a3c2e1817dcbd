"""The report of `make smoke-aws`: a directory, and an archive of it, without what must not be shown to others."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.aws import transcript


@dataclass(frozen=True)
class Step:
    """A step that ended: `problem` is empty if it passed."""

    name: str
    took_s: float
    problem: str = ""

    def line(self) -> str:
        verdict = f"FAILED: {self.problem}" if self.problem else "passed"
        return f"  {self.name:<44}{self.took_s:>7.1f} s  {verdict}"


class Report:
    """Collects what happens: the screen shows everything, the files in `directory` only the redacted text."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps: list[Step] = []
        directory.mkdir(parents=True)

    @property
    def api_log(self) -> Path:
        """The file for the transcript of all API calls, which phalanx itself writes and redacts."""
        return self.directory / "api.jsonl"

    @property
    def problems(self) -> list[str]:
        return [f"{step.name}: {step.problem}" for step in self.steps if step.problem]

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        with (self.directory / "output.txt").open("a") as file:
            file.write(transcript.redacted(line) + "\n")

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.say(step.line())

    def add_boot_logs(self, logs: Mapping[str, str]) -> None:
        for node, text in logs.items():
            path = self.directory / "boot-logs" / f"{node.replace('/', '_')}.log"
            path.parent.mkdir(exist_ok=True)
            path.write_text(transcript.redacted(text) + "\n")

    def close(self, facts: Mapping[str, Any]) -> Path:
        """Write report.json, and return the archive of everything."""
        document = {**facts, "passed": not self.problems, "steps": [asdict(step) for step in self.steps]}
        text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
        (self.directory / "report.json").write_text(transcript.redacted(text) + "\n")
        archive = self.directory.with_name(f"{self.directory.name}.tar.gz")
        with tarfile.open(archive, "w:gz") as file:
            file.add(self.directory, self.directory.name, filter=_without_owner)
        return archive


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
