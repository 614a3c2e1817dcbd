"""Installs programs of Amazon Linux into the images: cfn-init and its like, of aws-cfn-bootstrap, and mount-s3."""

from __future__ import annotations

import shutil
import tempfile
import zipapp
from pathlib import Path

from localcloud.nodes.machine import API_URL

# Below the node's root, and below the image's directory.
ROOT = "opt/aws"
_NAMES = ("cfn-init", "cfn-signal", "cfn-get-metadata", "cfn-hup")
_TOOLS = f"{ROOT}/apitools/cfn-init"
_MAIN = f"""\
import sys
from localcloud.nodes.bootstrap.programs import main
sys.exit(main(sys.argv[1:], {API_URL!r}))
"""
_PROGRAM = f"""\
#!/bin/sh
exec /usr/bin/python3 -I /{_TOOLS} {{}} "$@"
"""
_HUP_UNIT = f"[Service]\nExecStart=/{ROOT}/bin/cfn-hup\nRestart=on-failure\nRestartSec=60\n"
_MODULES = ("__init__", "failures", "mountpoint", "signing", "web")
_MOUNTPOINT_MAIN = f"""\
import sys
from localcloud.nodes.bootstrap.mountpoint import main
sys.exit(main(sys.argv[1:], {API_URL!r}))
"""


def build(image: Path) -> None:
    """Write the programs, which are Python and contain the package `bootstrap`."""
    source, package = Path(__file__).with_name("bootstrap"), "localcloud/nodes/bootstrap"
    shutil.copytree(source, image / _TOOLS / package, ignore=shutil.ignore_patterns("__pycache__"))
    files = {f"{_TOOLS}/__main__.py": _MAIN, f"{_TOOLS}/units/cfn-hup.service": _HUP_UNIT}
    for name, text in {**files, **{f"{ROOT}/bin/{name}": _PROGRAM.format(name) for name in _NAMES}}.items():
        (image / name).parent.mkdir(exist_ok=True)
        (image / name).write_text(text)
        (image / name).chmod(0o755)


def build_mountpoint(path: Path) -> None:
    """Write the program."""
    source = Path(__file__).with_name("bootstrap")
    with tempfile.TemporaryDirectory() as name:
        package = Path(name, "localcloud/nodes/bootstrap")
        package.mkdir(parents=True)
        for module in _MODULES:
            shutil.copy(source / f"{module}.py", package)
        Path(name, "__main__.py").write_text(_MOUNTPOINT_MAIN)
        path.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(name, path, "/usr/bin/python3 -I")
    path.chmod(0o755)
