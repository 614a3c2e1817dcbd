"""botocore's sessions, which share its tables: each would parse the endpoints and the services' models again."""

from __future__ import annotations

import functools
from typing import Any

from botocore import plugin
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConfigValueStore, ConstantProvider
from botocore.loaders import Loader, create_loader
from botocore.session import Session


def make(region: str) -> Session:
    """Return a session with the user's configuration."""
    session = Session()
    session.set_config_variable("region", region)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


def apart(*keys: str) -> Session:
    """Return a session that depends on none of the user's settings of AWS or of proxies.

    `keys` are its access key, its secret key and a session token, if it has one.
    """
    session = _Apart()
    if keys:
        session.set_credentials(*keys)
    return session


class _Apart(Session):
    """A session that reads neither the shell's variables nor the files in ~/.aws."""

    def __init__(self) -> None:
        super().__init__()
        defaults = {name: row[2] for name, row in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()}
        store = ConfigValueStore({name: ConstantProvider(value) for name, value in defaults.items()})
        self.register_component("config_store", store)
        self.register_component("data_loader", _own_loader())

    @property
    def full_config(self) -> dict[str, Any]:
        """The contents of no file."""
        return {"profiles": {}}

    def create_client(self, *arguments: Any, config: Config, **more: Any) -> Any:
        """Create a client as any session does. It sends its requests directly, as `proxies` and `verify` say."""
        no_plugins = plugin.set_plugin_context(plugin.PluginContext(plugins="DISABLED"))
        try:
            return super().create_client(*arguments, config=config.merge(Config(proxies={})), verify=True, **more)
        finally:
            plugin.reset_plugin_context(no_plugins)


@functools.cache
def _loader(path: str | None) -> Loader:
    return create_loader(path)


@functools.cache
def _own_loader() -> Loader:
    """Return a loader of botocore's own models, which those in ~/.aws/models don't replace."""
    return Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)


def domain_of(region: str) -> str:
    """Return the domain of a region's services, such as amazonaws.com (docs/aws-behaviour.md 6.1)."""
    session = apart()
    partition = session.get_partition_for_region(region)
    rows = session.get_data("partitions")["partitions"]
    return next(row["outputs"]["dnsSuffix"] for row in rows if row["id"] == partition)
