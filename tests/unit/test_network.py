"""The variables for NCCL and libfabric on a node with an Elastic Fabric Adapter, read from a copy of /sys and /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.runner.starter import fabric as network

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask
ens34\t00000000\t0100000A\t0003\t0\t0\t200\t00000000
ens32\t00000000\t0100000A\t0003\t0\t0\t100\t00000000
ens32\t0000000A\t00000000\t0001\t0\t0\t100\t0000FFFF
"""


def a_node(
    root: Path, driver: str = "efa", type: str = "p4d.24xlarge", routes: str = ROUTES, nodes: bool = True
) -> str:
    device = root / "sys/class/infiniband/rdmap16s27/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    for path, text in (("sys/class/dmi/id/product_name", type + "\n"), ("proc/net/route", routes)):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(text)
    if nodes:
        (root / "dev/infiniband").mkdir(parents=True)
    return str(root)


def test_a_node_with_adapters_says_so_and_which_interface_leads_out(tmp_path):
    assert network.variables(a_node(tmp_path)) == {
        "FI_PROVIDER": "efa",
        "FI_EFA_FORK_SAFE": "1",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "NCCL_SOCKET_IFNAME": "=ens32",
    }


@pytest.mark.parametrize("type", ["g5.8xlarge", "c5n.18xlarge", "p3dn.24xlarge", ""])
def test_rdma_is_asked_of_adapters_that_have_it_alone(tmp_path, type):
    assert "FI_EFA_USE_DEVICE_RDMA" not in network.variables(a_node(tmp_path, type=type))


@pytest.mark.parametrize("other", [{"driver": "mlx5_core"}, {"nodes": False}])
def test_nothing_is_set_where_no_adapter_can_be_used(tmp_path, other):
    assert network.variables(a_node(tmp_path, **other)) == {}


def test_a_node_without_a_default_route_leaves_the_interface_to_nccl(tmp_path):
    assert "NCCL_SOCKET_IFNAME" not in network.variables(a_node(tmp_path, routes="Iface\n"))


def test_a_machine_without_such_devices_has_none(tmp_path):
    assert network.variables(str(tmp_path)) == {}


def test_torch_s_flight_recorder_writes_into_the_job_s_directory():
    assert network.flight_recorder("/efs/jobs/1")["TORCH_FR_DUMP_TEMP_FILE"] == "/efs/jobs/1/flight-rank-"
