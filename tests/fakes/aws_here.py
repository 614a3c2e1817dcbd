"""AWS's API of phalanx, connected to the local cloud of a test instead of an account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_fakes import REGION

from phalanx.aws.auto_scaling import AutoScaling
from phalanx.aws.aws import Aws
from phalanx.aws.aws_account import Account


class AwsHere(Aws):
    """`clients(service)` returns the boto3 clients to use."""

    def __init__(self, clients: Callable[[str], Any], region: str = REGION) -> None:
        super().__init__(region)
        self.machines, self.site = AutoScaling(self), Account(self)
        self._clients_here = clients

    def client(self, service: str) -> Any:
        return self._clients_here(service)
