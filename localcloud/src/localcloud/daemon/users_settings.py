"""The user's settings of AWS: those of a client, and the local cloud is the server."""

from __future__ import annotations

import os

_PREFIXES = ("AWS_", "BOTO", "MOTO_", "TEST_PROXY_MODE", "TEST_SERVER_MODE")
# Other variables of moto. All change what the server answers.
_OF_MOTO = frozenset(
    {
        *("INITIAL_NO_AUTH_ACTION_COUNT", "TESTS_SKIP_REQUIRES_DOCKER", "DEFAULT_CONTAINER_REGISTRY"),
        *(
            "S3_IGNORE_SUBDOMAIN_BUCKETNAME",
            "S3_UPLOAD_PART_MIN_SIZE",
            "SF_EXECUTION_HISTORY_TYPE",
            "VALIDATE_LAMBDA_S3",
        ),
    }
)


def forget() -> None:
    """Drop them from this process: botocore and moto, which the server consists of, would read them.

    Proxies, pip's settings and certificates stay, because nodes reach the outside as this machine does.
    """
    for name in [name for name in os.environ if name.startswith(_PREFIXES) or name in _OF_MOTO]:
        del os.environ[name]
    os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
