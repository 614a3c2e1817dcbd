"""boto3's sessions, which share botocore's tables: each would parse the endpoints and the services' models again."""

from __future__ import annotations

import functools
from typing import Any

import botocore.session
from boto3.session import Session
from botocore.loaders import Loader, create_loader


def make(region: str, **keys: Any) -> Session:
    """Return a session with the user's configuration; `keys` are credentials other than those that boto3 finds."""
    return Session(botocore_session=core(), region_name=region, **keys)


def core() -> botocore.session.Session:
    """Return botocore's part of a session."""
    session = botocore.session.Session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _loader(path: str | None) -> Loader:
    return create_loader(path)
