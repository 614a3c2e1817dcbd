"""cfn-lint, with AWS's schemas, finds nothing wrong in the document."""

import subprocess
import sys

from plans import PLANS

from phalanx.template import synthesize

CFN_LINT = "from cfnlint.runner import main; import sys; sys.exit(main())"


def test_cfn_lint_has_nothing_to_say(tmp_path):
    """The smallest and the largest document, in one process: cfn-lint takes longer than the rest of this file."""
    for name in ("local", "worst"):
        (tmp_path / f"{name}.json").write_text(synthesize(PLANS[name]))
    files = [str(path) for path in tmp_path.iterdir()]
    lint = subprocess.run(
        [sys.executable, "-c", CFN_LINT, "--include-checks", "I", "--", *files],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
