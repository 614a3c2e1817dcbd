"""The warnings about nodes without limits."""

from __future__ import annotations

from localcloud.nodes.limits import not_limited


def test_running_nodes_as_root_warns_what_root_on_them_may_do() -> None:
    assert not any("kernel" in line for line in not_limited("range", is_kernels_root=False))
    assert any("kernel" in line for line in not_limited("range", is_kernels_root=True))
    assert any("root of this machine" in line for line in not_limited("root", is_kernels_root=True))
