"""Installs mount-s3 into the images, as one file that needs nothing else."""

from __future__ import annotations

import shutil
import tempfile
import zipapp
from pathlib import Path

from localcloud.nodes.machine import API_URL

_MODULES = ("__init__", "failures", "mountpoint", "signing", "web")
_MAIN = f"""\
import sys
from localcloud.nodes.bootstrap.mountpoint import main
sys.exit(main(sys.argv[1:], {API_URL!r}))
"""


def build(path: Path) -> None:
    """Write the program."""
    source = Path(__file__).with_name("bootstrap")
    with tempfile.TemporaryDirectory() as name:
        package = Path(name, "localcloud/nodes/bootstrap")
        package.mkdir(parents=True)
        for module in _MODULES:
            shutil.copy(source / f"{module}.py", package)
        Path(name, "__main__.py").write_text(_MAIN)
        path.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(name, path, "/usr/bin/python3 -I")
    path.chmod(0o755)
