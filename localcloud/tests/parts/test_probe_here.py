"""The probe of the machine that the tests run on."""

from __future__ import annotations

import json
import time

import pytest

from localcloud.daemon import probe


def test_the_real_machine_is_probed_quickly_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    status = probe.main()
    assert time.monotonic() - started < 30
    reported = json.loads(capsys.readouterr().out)
    assert set(reported) == {"ok", "mode", "missing"}
    assert status == (0 if reported["ok"] else 1)
