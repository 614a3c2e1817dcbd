"""`ssh_from: auto`: the address that AWS tells, checked, and what is said when it tells none."""

from __future__ import annotations

import io
import urllib.request

import pytest

from phalanx.clouds import own_address
from phalanx.errors import SpecError


def answering(monkeypatch, answer: bytes | OSError) -> list[object]:
    """Let every request be answered so; return the handlers of the openers that were made."""
    handlers: list[object] = []

    class Opener:
        def open(self, url, timeout):
            assert url == own_address.URL
            if isinstance(answer, OSError):
                raise answer
            return io.BytesIO(answer)

    def build(*given):
        handlers.extend(given)
        return Opener()

    monkeypatch.setattr(urllib.request, "build_opener", build)
    return handlers


def test_the_address_is_asked_for_without_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    handlers = answering(monkeypatch, b"203.0.113.7\n")
    assert own_address.find() == "203.0.113.7"
    assert [getattr(handler, "proxies", None) for handler in handlers] == [{}]


@pytest.mark.parametrize("answer", [b"<html>log in to the hotel", b"2001:db8::7", b"", OSError("no route to host")])
def test_anything_else_is_no_address(monkeypatch, answer):
    answering(monkeypatch, answer)
    with pytest.raises(SpecError, match=r"ssh_from: https://checkip\.amazonaws\.com/ does not say this machine's"):
        own_address.find()
