"""Installs cfn-init and its like into the image, where Amazon Linux has those of aws-cfn-bootstrap."""

from __future__ import annotations

import shutil
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


def build(image: Path) -> None:
    """Write the programs, which are Python and contain the package `bootstrap`."""
    source, package = Path(__file__).with_name("bootstrap"), "localcloud/nodes/bootstrap"
    shutil.copytree(source, image / _TOOLS / package, ignore=shutil.ignore_patterns("__pycache__"))
    files = {f"{_TOOLS}/__main__.py": _MAIN, f"{_TOOLS}/units/cfn-hup.service": _HUP_UNIT}
    for name, text in {**files, **{f"{ROOT}/bin/{name}": _PROGRAM.format(name) for name in _NAMES}}.items():
        (image / name).parent.mkdir(exist_ok=True)
        (image / name).write_text(text)
        (image / name).chmod(0o755)
