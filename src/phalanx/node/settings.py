"""What the launch template told this node."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """`config.json` as the user data wrote it; all values come as texts."""

    cluster: str
    stack_id: str
    region: str
    role: str
    group: str
    workers_group: str
    queue_url: str
    table: str
    log_group: str
    nodes: int
    min: int
    node_timeout_s: int
    shared: str
    file_system: str
    slots: int
    job_user: str
    ssh_public_key: str
    wait_handle: str
    boot: str
    digest: str

    @staticmethod
    def load(path: str) -> Settings:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        values: dict[str, Any] = {
            f.name: int(given[f.name]) if f.type in ("int", int) else given[f.name] for f in fields(Settings)
        }
        return Settings(**values)

    @property
    def head(self) -> bool:
        return self.role == "head"
