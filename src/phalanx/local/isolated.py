"""Run `localcloud …` in an isolated Python (-I), as a script: `isolated.py USER_SITE ARGUMENTS…`.

The shell's PYTHONPATH does not count there, which direnv may set to directories of a cloned repository. So this script
adds where phalanx is installed: its own directory, the local cloud's in the same checkout, and USER_SITE unless it is
"". Whoever may set the shell's variables has other ways: Python reads PYTHONPATH before phalanx's own first line.
"""

from __future__ import annotations

import runpy
import site
import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[2]


def program(*arguments: str) -> list[str]:
    """Return the command that runs `localcloud …` with the Python that runs phalanx, to be started in /."""
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return [sys.executable, "-I", __file__, user_site, *arguments]


if __name__ == "__main__":
    if user_site := sys.argv.pop(1):
        site.addsitedir(user_site)
    for directory in (_SOURCE, _SOURCE.parent / "localcloud/src"):
        if directory.is_dir() and str(directory) not in sys.path:
            sys.path.insert(0, str(directory))
    runpy.run_module("localcloud", run_name="__main__", alter_sys=True)
