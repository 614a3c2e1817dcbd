"""scripts/proofs, by which `make check` says which long proofs are older than what they prove."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_proof_is_out_of_date_once_its_sources_have_changed():
    proofs = runpy.run_path(str(ROOT / "scripts/proofs"))
    now = proofs["digest"]("images")
    assert proofs["outdated"]("images", f"date  2026-11-24\nsources   {now}\n") == ""
    changed = proofs["outdated"]("images", f"commit {'0' * 40}\nsources {now[::-1]}\n")
    assert "which is not in this repository" in changed
    assert all((ROOT / path).exists() for paths in proofs["SOURCES"].values() for path in paths)
    assert {("full-os", "ubuntu-24.04"), ("images", "torch")} <= {found[:2] for found in proofs["newest"]()}
