"""How a template reaches CloudFormation: inside the request or, where it is too large for that, through a bucket."""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.plan.plan import Plan
from phalanx.template import LIMIT_BYTES
from phalanx.template.userdata import script_size


def bucket_for(plan: Plan, template: str) -> str | None:
    """The user's bucket that this template has to go through; None: it fits into the request.

    Raises SpecError where it is too large for a request and the spec names no bucket.
    """
    size = len(template.encode())
    if size <= LIMIT_BYTES:
        return None
    if plan.spec.bucket:
        return plan.spec.bucket
    raise SpecError(
        f"boot: the template is {size:,} bytes, {script_size(plan.spec.boot):,} of them the packed boot script, and a "
        f"request to CloudFormation takes {LIMIT_BYTES:,}",
        "Name a private S3 bucket of yours as `bucket:`, and `up` sends the template through it; or upload what "
        "`phalanx template` prints in CloudFormation's console, which takes 1 MB.",
    )


def described(template: str, bucket: str) -> str:
    """What `plan` and `up` say about a template that goes through a bucket."""
    return f"{len(template.encode()):,} bytes, through your bucket {bucket}, and deleted from it afterwards"
