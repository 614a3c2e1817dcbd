"""cfn-lint, with AWS's schemas, finds nothing wrong in the documents."""

import subprocess
import sys

from plans import ADOPTED, EMR, PLANS, WORST

from phalanx.images.base import base
from phalanx.images.image_stack import Order, request
from phalanx.jobs.environments import recipe
from phalanx.template import synthesize
from phalanx.template.emr import adopted

CFN_LINT = "from cfnlint.runner import main; import sys; sys.exit(main())"


def test_cfn_lint_has_nothing_to_say(tmp_path):
    """Documents of all kinds, the smallest and the largest, in one process: to start cfn-lint takes longest."""
    for name, plan in {**{name: PLANS[name] for name in ("local", "private")}, "worst": WORST, "emr": EMR}.items():
        (tmp_path / f"{name}.json").write_text(synthesize(plan))
    order = Order(recipe("tensorflow"), base("ubuntu-24.04"), "2026.1122.905", "m5.large")
    (tmp_path / "image.json").write_text(request(order)[0])
    (tmp_path / "adopted.json").write_text(adopted.request(ADOPTED)[0])
    files = [str(path) for path in tmp_path.iterdir()]
    lint = subprocess.run(
        [sys.executable, "-c", CFN_LINT, "--include-checks", "I", "--", *files],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
