"""Nodes: Linux namespaces that behave like EC2 instances, and the handle that boots, kills and reaches them."""

from localcloud.nodes.client import NodeRunner
from localcloud.nodes.machine import (
    API_ADDRESS,
    API_PORT,
    API_URL,
    IMDS_ADDRESS,
    IMDS_PORT,
    Machine,
    NodeError,
    NodeState,
)
from localcloud.nodes.start import start_supervisor

__all__ = [
    "API_ADDRESS",
    "API_PORT",
    "API_URL",
    "IMDS_ADDRESS",
    "IMDS_PORT",
    "Machine",
    "NodeError",
    "NodeRunner",
    "NodeState",
    "start_supervisor",
]
