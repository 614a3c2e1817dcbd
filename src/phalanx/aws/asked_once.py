"""A cloud's API that makes each call once: look-ups for several types in a row ask for much of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import tee
from typing import Any, cast

from phalanx.aws.aws import Aws
from phalanx.errors import CloudError, CloudUnreachable


class AskedOnce(Aws):
    """Answers a read-only call from memory if it was made before; a refusal is no answer.

    A service that does not answer is not asked again: everybody would wait for it as often as there are types.
    """

    def __init__(self, api: Aws) -> None:
        super().__init__(api.region, api.name)
        self._api = api
        self.machines = cast("Any", type(api.machines))(self)
        self._answers: dict[str, Any] = {}
        self._silent: dict[str, CloudUnreachable] = {}

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._once("call", self._api.call, service, operation, **arguments)

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        return self._once("exists", self._api.exists, service, operation, **arguments)

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the entries; no more pages are requested than somebody reads."""
        asked = repr(("pages", service, operation, key, arguments))
        if asked not in self._answers:
            (self._answers[asked],) = tee(self._api.pages(service, operation, key, **arguments), 1)
        try:
            yield from copy(self._answers[asked])
        except CloudError:
            del self._answers[asked]
            raise

    def _once(self, way: str, ask: Callable[..., Any], service: str, operation: str, **arguments: Any) -> Any:
        if service in self._silent:
            raise self._silent[service]
        asked = repr((way, service, operation, arguments))
        try:
            if asked not in self._answers:
                self._answers[asked] = ask(service, operation, **arguments)
        except CloudUnreachable as error:
            self._silent[service] = error
            raise
        return self._answers[asked]
