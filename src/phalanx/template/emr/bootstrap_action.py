"""The bootstrap action that starts the agent on a node of EMR: an object in S3, whose arguments are the settings.

EMR has no user data for nodes. The object is what user data would be, without the settings; so it is the same for all
clusters of one version of phalanx.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from typing import Any

from troposphere import AWSHelperFn, Join, Split, Sub

from phalanx import __version__
from phalanx.plan.plan import Plan
from phalanx.template import userdata

# Settings with blanks that only CloudFormation knows.
_WITH_BLANKS = ("ssh_public_key",)
# Settings of a head alone.
_OF_HEAD = ("wait_handle", "worker_role", "address")

_SCRIPT = """\
#!/bin/bash
# The bootstrap action of phalanx {version}: it starts the agent, as root, on a node of an EMR cluster.
# Its arguments are the agent's settings, each as NAME=VALUE; a template of phalanx has them.
set -euo pipefail
info=/mnt/var/lib/info
start=$(mktemp)
cat > "$start" <<'AGENT'
{agent}
AGENT
cluster=$(grep -o '"jobFlowId" *: *"[^"]*"' $info/job-flow.json | head -n 1 | cut -d '"' -f 4)
role=(role=worker {worker})
if grep -q '"isMaster" *: *true' $info/instance.json; then role=(role=head); fi
printf '#%s\\n' "${{@//%20/ }}" "emr=$cluster" "${{role[@]}}" >> "$start"
if command -v dnf > /dev/null && ! [ -x /sbin/mount.nfs4 ]; then sudo dnf -q -y install nfs-utils; fi
# What the SDKs read, and sudo removes.
sudo env ${{AWS_ENDPOINT_URL:+"AWS_ENDPOINT_URL=$AWS_ENDPOINT_URL"}} /usr/bin/python3 -IS "$start"
"""


def script() -> str:
    """Return the text of the object."""
    worker = " ".join(f"{name}=" for name in _OF_HEAD)
    return _SCRIPT.format(version=__version__, agent=userdata.first_stage(), worker=worker)


def with_arguments(arguments: Sequence[str]) -> str:
    """Return the text with its arguments within it, to be read by a shell, with the variables of a login."""
    set_them = f"set -- {shlex.join(arguments)}"
    tidy = "trap 'rm -f \"${start-}\"' EXIT"
    return f"set -a\n. /etc/environment\nset +a\n{tidy}\n{set_them}\n{script()}"


def url(plan: Plan) -> str:
    """Return where the object is: below the place of the logs, under a name that changes with its text."""
    assert plan.spec.emr is not None
    name = hashlib.sha256(script().encode()).hexdigest()[:12]
    return f"{plan.spec.emr['logs'].rstrip('/')}/phalanx/agent-{name}.sh"


def uploads(plan: Plan) -> dict[str, str]:
    return {url(plan): script()}


def arguments(config: dict[str, Any]) -> list[Any]:
    """Return the settings as arguments; CloudFormation refuses equal ones, and no two have one name.

    Blanks travel as %20: EMR may cut an argument there (docs/aws-behaviour.md 7.25).
    """
    return [_argument(key, value) for key, value in config.items()]


def _argument(key: str, value: Any) -> Any:
    variables: dict[str, Any] = {}
    if key in _WITH_BLANKS:
        value = Join("%20", Split(" ", value))
    text = f"{key}={userdata.inline(key, value, variables)}"
    return Sub(text, **variables) if isinstance(value, AWSHelperFn) else text.replace(" ", "%20")
