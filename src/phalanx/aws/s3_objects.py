"""Objects of S3 that phalanx writes itself: what nodes of EMR start with, and documents too large for a request.

Whoever may write to the bucket can replace a document before CloudFormation reads it, so that what it has read is
compared (docs/aws-behaviour.md 1.26).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from phalanx.aws.model import InBucket, PrivateBucket
from phalanx.errors import CloudError, PhalanxError, StackFailed

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_SCHEME = "s3://"
_OTHER_BUCKET = "Name another bucket, or find out who may write to this one: `aws s3api get-bucket-policy --bucket {}`."


def put(api: Aws, url: str, text: str, bucket: PrivateBucket | None = None) -> None:
    """Write an object of S3; `url` is such as s3://bucket/key."""
    more = {**bucket.encryption, **_owned(bucket.owner)} if bucket else {}
    api.call("s3", "put_object", **_named(url), **more, Body=text.encode())


def delete(api: Aws, url: str, owner: str = "") -> None:
    """Delete an object of S3; no error when it is gone."""
    api.call("s3", "delete_object", **_named(url), **_owned(owner))


def as_template(api: Aws, template: str | InBucket) -> dict[str, str]:
    """Return how a request to CloudFormation has a template: the document itself, or where it is in S3.

    The URL is path-style, at the region's own endpoint (docs/aws-behaviour.md 1.26).
    """
    if isinstance(template, str):
        return {"TemplateBody": template}
    from phalanx.aws import sessions  # here: it loads botocore

    endpoint = api.endpoint_url() or f"https://s3.{api.region}.{sessions.domain_of(api.region)}"
    return {"TemplateURL": f"{endpoint}/{template.url.removeprefix(_SCHEME)}"}


def _owned(owner: str) -> dict[str, str]:
    return {"ExpectedBucketOwner": owner} if owner else {}


def _named(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    return {"Bucket": bucket, "Key": key}


def require_change_set(api: Aws, named: dict[str, str], template: str | InBucket) -> None:
    """Raise StackFailed if the change set has another template than the document."""
    if isinstance(template, InBucket) and not _is_read(api, named, template.document):
        raise StackFailed(f"{_replaced(template)}. Nothing was changed", _hint(template), code="document-replaced")


def required_stack(api: Aws, stack_id: str, template: str | InBucket) -> str:
    """Return the id of a new stack. Delete it and raise StackFailed unless it has the document's template."""
    if isinstance(template, str):
        return stack_id
    try:
        if _is_read(api, {"StackName": stack_id}, template.document):
            return stack_id
        reason, hint = _replaced(template), _hint(template)
    except CloudError as error:
        reason, hint = f"what CloudFormation has read of {template.url} can't be compared: {error.message}", error.hint
    except BaseException:
        _deleted(api, stack_id)
        raise
    raise StackFailed(f"{reason}. {_deleted(api, stack_id)}", hint, code="document-replaced")


def _is_read(api: Aws, named: dict[str, str], document: str) -> bool:
    found = api.call("cloudformation", "get_template", **named, TemplateStage="Original")["TemplateBody"]
    try:
        return _canonical(found) == _canonical(document)
    except ValueError:
        return False


def _canonical(body: Any) -> str:
    """Return JSON, which botocore parses if it can, in one form: in Python, 1 and true are equal."""
    return json.dumps(json.loads(body) if isinstance(body, str) else body, sort_keys=True)


def _deleted(api: Aws, stack_id: str) -> str:
    """Delete the stack, and say so."""
    try:
        api.exists("cloudformation", "delete_stack", StackName=stack_id)
    except PhalanxError as error:
        command = f"aws cloudformation delete-stack --stack-name {stack_id}"
        return f"The stack could not be deleted ({error.message}): run `{command}` at once"
    return f"Stack {stack_id} is being deleted; its events say what it made"


def _replaced(template: InBucket) -> str:
    return f"somebody who may write to {_bucket_of(template)} replaced the document before CloudFormation read it"


def _hint(template: InBucket) -> str:
    return _OTHER_BUCKET.format(_bucket_of(template))


def _bucket_of(template: InBucket) -> str:
    return template.url.removeprefix("s3://").partition("/")[0]
