"""Translate botocore's exceptions into errors that say what failed and what to do."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

from phalanx.errors import CloudError, CloudUnreachable

_ACTION = re.compile(r"not authorized to perform:? (?P<action>[\w-]+:\w+)")
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_BAD_KEY = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "SignatureDoesNotMatch"})
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture", "InvalidSignatureException"})
# A signature is valid for five minutes; some services take fifteen.
_ACCEPTED_S = 300
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AccessDeniedForDependency"})
_THROTTLED = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"})
# CloudFormation's words (docs/aws-behaviour.md 1.33).
_NO_ROLE = "is invalid or cannot be assumed"
_LOG_IN = "Run `aws configure`, or `aws sso login` and set AWS_PROFILE."

GONE = re.compile(
    r"NotFound|PlacementGroup\.Unknown|does not exist|DoesNotExist|NonExistent|NoSuch[A-Z]|not found|non-existing", re.I
)
"""How the services report that something does not exist: a code such as ResourceNotFoundException, or only text."""


def code(error: BaseException | None) -> str:
    """Return AWS's error code; "" for an error that is not an answer of AWS."""
    return _answer(error).get("Error", {}).get("Code", "")


def message(error: BaseException | None) -> str:
    """Return AWS's own message."""
    return _answer(error).get("Error", {}).get("Message", "") if _answer(error) else str(error)


def _answer(error: BaseException | None) -> dict[str, Any]:
    """Return what AWS answered, as botocore's ClientError has it; {} for any other error."""
    found = getattr(error, "response", None)
    return found if isinstance(found, dict) else {}


def is_gone(error: BaseException | None) -> bool:
    """Whether the error means that the resource does not exist."""
    return bool(GONE.search(code(error)) or (code(error) == "ValidationError" and GONE.search(message(error))))


def is_denied(error: BaseException | None) -> bool:
    """Whether AWS knows the caller, and does not allow the call."""
    return code(error) in _DENIED


def translate(error: Exception, action: str, where: str) -> CloudError:
    """Return the CloudError for a failed call of an `action` such as "cloudformation:CreateStack" at `where`."""
    from botocore import exceptions as boto  # here: what only asks for a code does not wait for botocore

    if isinstance(error, boto.ClientError):
        refused = _refused(error, action)
        refused.was_refused = 400 <= error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500
        return refused
    if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
        return CloudUnreachable(
            "no AWS credentials were found",
            f"{_LOG_IN} Or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            code="no-credentials",
        )
    if isinstance(error, (boto.ProfileNotFound, boto.NoRegionError)):
        return CloudUnreachable(str(error), "`aws configure list-profiles` lists the profiles.", code="aws-profile")
    if isinstance(error, (boto.SSOTokenLoadError, boto.UnauthorizedSSOTokenError, boto.TokenRetrievalError)):
        return CloudUnreachable(
            "the AWS single sign-on session has ended", "Run `aws sso login`.", code="login-expired"
        )
    if isinstance(error, (boto.HTTPClientError, boto.ConnectionError)):
        return CloudUnreachable(
            f"{where} does not answer ({action}): {error}",
            "Check the network connection and the region's name.",
            code="cloud-unreachable",
        )
    return CloudError(f"{action} failed: {error}", code="call-failed")


def _clock_off_s(error: Exception) -> float:
    """Return by how much this machine's clock is ahead of AWS's, whose answer has the time; 0 for what AWS accepts."""
    answered = _answer(error).get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        off_s = time.time() - parsedate_to_datetime(answered).timestamp()
    except (TypeError, ValueError):
        return 0.0
    return off_s if abs(off_s) > _ACCEPTED_S else 0.0


def _refused(error: Exception, action: str) -> CloudError:
    kind, text = code(error), message(error)
    if kind in _EXPIRED | _BAD_KEY | _SKEWED and (off_s := _clock_off_s(error)):
        where = "ahead of" if off_s > 0 else "behind"
        return CloudError(
            f"this machine's clock is {abs(off_s) / 60:.0f} minutes {where} AWS's, which refuses requests that are"
            f" signed with such a time ({action}: {kind})",
            "Set the clock: `sudo timedatectl set-ntp true`.",
            code="wrong-clock",
        )
    if kind in _EXPIRED:
        return CloudError(
            f"the AWS credentials have expired ({action})",
            "Run `aws sso login`, or fetch new ones.",
            code="login-expired",
        )
    if kind in _BAD_KEY:
        return CloudError(
            f"AWS does not know these credentials ({action}: {kind})", _LOG_IN, code="unknown-credentials"
        )
    if kind in _DENIED:
        named = _ACTION.search(text)
        allowed = named["action"] if named else action
        return CloudError(
            f"these AWS credentials may not call {allowed}: {text}",
            f"Request a policy that allows {allowed}.",
            code="not-authorized",
        )
    if kind in _THROTTLED:
        return CloudError(
            f"AWS throttled {action}, even after retries: {text}", "Try again in a minute.", code="throttled"
        )
    if _NO_ROLE in text:
        return CloudError(
            text,
            "Correct `cloudformation_role`, or make the role again: `phalanx policy --service-role` prints its parts.",
            code="role-unusable",
        )
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", "")
    said = f": {text}" if text else ""
    return CloudError(f"{action} was refused ({kind or f'HTTP {status}'}){said}", code="cloud-refused")
