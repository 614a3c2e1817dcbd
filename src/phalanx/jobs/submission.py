"""What is sent to the head after a job's record, once the head is ready for it: code and secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import IO

from phalanx.code import bundle, cache, code_tree
from phalanx.code.bundle import Opening, SendProgress
from phalanx.code.code_tree import CodeTree
from phalanx.code.commit import Commit
from phalanx.code.upload import Upload
from phalanx.counts import first_of
from phalanx.guest_file import shown
from phalanx.jobs import own_imports
from phalanx.jobs.head_command import HeadCommand, JobPlan
from phalanx.jobs.job_model import JobSpec
from phalanx.runner.files.array import tasks_in
from phalanx.runner.names import KEPT_THERE, MANIFEST, STDIN, WORK

# Below this, sending one tar takes less time than asking what the head has.
SMALL_BYTES = 1 << 20
_MOST_NAMED = 3
_MOST_KEPT = 100
_MEASURED_WITHIN_S = 0.2


class Submission:
    """What is sent: a line of JSON with the sizes, the code, then the job's secrets.

    Of a large tree only a list is sent, and then the contents that the head requests.
    """

    def __init__(self, spec: JobSpec, progress: Callable[[SendProgress], None]) -> None:
        self._spec, self._progress = spec, progress
        self._commit = Commit(spec.directory)
        self._tree = tree = code_tree.scan(spec.directory)
        self._kept = {**tree.left_out_of(spec.command), **own_imports.left_out(tree, spec.command)}
        for text in filter(None, (_of_what_stays(tree, self._kept), _of_links(tree))):
            progress(SendProgress(0, 0, tree.bytes, text))
        self._in_parts = tree.bytes >= SMALL_BYTES
        # A large tree is read later: that may take minutes, and what it is should be known at once.
        self._archive = b"" if self._in_parts else self._packed({}, tree)

    def _packed(self, manifest: Mapping[str, bytes], tree: CodeTree | None) -> bytes:
        others = {} if self._spec.stdin is None else {STDIN: self._spec.stdin}
        names = list(self._kept.items())[:_MOST_KEPT]
        kept = {name: _sentence(by_rule, self._tree.left_out[by_rule]) for name, by_rule in names}
        if kept:
            others[KEPT_THERE] = json.dumps(kept).encode()
        # The last program is LAST_SENT: the head accepts no job without it, so none whose tar was cut short.
        documents = {**manifest, **others, **bundle.programs()}
        return bundle.tar(documents, tree, WORK, self._progress)

    def opening(self, job_id: str, plan: JobPlan) -> Opening:
        """Return what is about to be sent, for a job that the head has planned."""
        files = sum(entry.is_file for entry in self._tree.entries)
        left_out = tuple(self._tree.measured(_MEASURED_WITHIN_S)) if self._tree.left_out else ()
        tasks = len(tasks_in(self._spec.array).indices) if self._spec.array else 0
        return Opening(job_id, *plan, files, self._tree.bytes, self._in_parts, left_out, tasks)

    def write(self, out: IO[bytes], connection: HeadCommand) -> None:
        upload = Upload(self._tree, cache.cache_directory()) if self._in_parts else None
        archive = self._packed({MANIFEST: upload.manifest}, None) if upload else self._archive
        private = json.dumps(dict(self._spec.secrets)).encode() if self._spec.secrets else b""
        sizes = {"tar": len(archive), "secrets": len(private), "in_parts": self._in_parts}
        line = json.dumps({**sizes, "commit": self._commit.text()}).encode() + b"\n"
        out.writelines((line, archive, private))
        if upload:
            out.flush()
            upload.send(out, connection.answer("send"), self._progress)
            out.flush()
            connection.answer("made")


def _of_what_stays(tree: CodeTree, kept: Mapping[str, str]) -> str:
    """Return a warning of what the command names or imports and an ignore file keeps here."""
    if not kept:
        return ""
    names = list(dict.fromkeys(kept.values()))
    files = dict.fromkeys(tree.left_out[name] for name in names)
    stay = "stays" if len(kept) == 1 else "stay"
    line, file = _line_that_sends(names[0], tree.left_out[names[0]])
    whose = f"{first_of(kept, most=_MOST_NAMED)} {stay} here, as {first_of(files, most=_MOST_NAMED)} says"
    return f"{whose}; a line such as `{line}` in {file} sends it"


def _sentence(name: str, ignored_by: str) -> str:
    """Return what a job says that misses what an ignore file keeps here."""
    line, file = _line_that_sends(name, ignored_by)
    keeps = f"{ignored_by} keeps {shown(name)} on the machine that sent the job"
    return f"{keeps}; a line such as `{shown(line)}` in {file} sends it"


def _of_links(tree: CodeTree) -> str:
    """Return a warning of links that are sent as links, and lead to what only this machine has."""
    links = [f"{name} -> {target}" for name, target in tree.links_out().items()]
    if not links:
        return ""
    return (
        f"{first_of(links, most=_MOST_NAMED)}: a link that leads out of the code is sent as a link, and what it "
        "leads to is not; copy that with `phalanx put`, or put it in place of the link"
    )


def _line_that_sends(name: str, ignored_by: str) -> tuple[str, str]:
    """Return a line and the file for it, which takes precedence over the one that excludes a name."""
    below = os.path.dirname(ignored_by)  # noqa: PTH120 - a name in the tree
    if not below or ignored_by.startswith("../"):
        return f"!{name}", ".phalanxignore"
    return f"!{name[len(below) + 1 :]}", f"{below}/.phalanxignore"
