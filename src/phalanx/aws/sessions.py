"""botocore's sessions, which share its tables: each would parse the endpoints and the services' models again."""

from __future__ import annotations

import functools

from botocore.loaders import Loader, create_loader
from botocore.session import Session


def make(region: str = "", keys: tuple[str, str] | None = None) -> Session:
    """Return a session with the user's configuration; `keys` are other credentials than those that botocore finds."""
    session = Session()
    if region:
        session.set_config_variable("region", region)
    if keys:
        session.set_credentials(*keys)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _loader(path: str | None) -> Loader:
    return create_loader(path)
