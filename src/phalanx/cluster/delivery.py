"""How a template reaches CloudFormation: in the request or, if it is too large, through an S3 bucket."""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.plan.plan import Plan
from phalanx.template import LIMIT_BYTES
from phalanx.template.userdata import script_size


def bucket_for(plan: Plan, template: str) -> str | None:
    """Return the bucket that the template must be uploaded to, or None if it fits into the request.

    Raises SpecError if it is too large and the spec names no bucket.
    """
    size = len(template.encode())
    if size <= LIMIT_BYTES:
        return None
    if plan.spec.bucket:
        return plan.spec.bucket
    raise SpecError(
        f"boot: the template is {size:,} bytes, {script_size(plan.spec.boot):,} of them the packed boot script, and a "
        f"request to CloudFormation may contain {LIMIT_BYTES:,}",
        "Set `bucket:` to a private S3 bucket of yours, through which `up` sends the template; or upload the output of "
        "`phalanx template` in CloudFormation's console, which accepts 1 MB.",
    )


def described(template: str, bucket: str) -> str:
    """Return what `plan` and `up` print about a template that is sent through a bucket."""
    return f"{len(template.encode()):,} bytes, sent through your bucket {bucket} and deleted from it afterwards"
