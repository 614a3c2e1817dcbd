"""Samples of load: what is refused, how they are kept, summed up and said."""

from __future__ import annotations

import os
import struct
from types import SimpleNamespace

import pytest
from error_codes import raises_code

from phalanx.cli.top import row
from phalanx.jobs import loads
from phalanx.node.validate import Invalid
from phalanx.runner import load as samples
from phalanx.runner.files import ring
from phalanx.runner.head.load_book import Loads
from phalanx.runner.load import Load
from phalanx.runner.starter import meter

GIB = 1 << 30
USUAL = Load(cores=1.5, memory=2 * GIB, processes=3, node_cores=2, node_cores_total=4, node_memory=3 * GIB)
USUAL = USUAL._replace(node_memory_total=15 * GIB)
GPUS = USUAL._replace(gpus=8, gpu_busy=12, gpu_hottest=70)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2.0, 1e30])
def test_a_load_that_no_node_has_is_refused_and_dropped(tmp_path, value):
    data = struct.pack(f"<{len(Load._fields)}f", value, *[0.0] * (len(Load._fields) - 1))
    with pytest.raises(Invalid):
        samples.unpack(data)
    book = Loads(str(tmp_path))
    for payload in (data, b"", data + b"x"):
        book.take("worker1", payload)
    assert book.summary() == []


@pytest.mark.parametrize("value", ["1", None, True, [1.0], 1e19])
def test_a_load_in_an_answer_is_checked_too(value):
    good = {"job": "261127-0000", "nodes": [{"node": "w1", "age_s": 1.0, "peak_memory": 5.0, "load": list(USUAL)}]}
    good["ranks"] = []
    assert loads._job(good)["nodes"][0]["load"] == USUAL
    bad = {**good, "nodes": [{**good["nodes"][0], "load": [value, *USUAL[1:]]}]}  # type: ignore[dict-item, index]
    with raises_code("invalid-answer"):
        loads._job(bad)


def test_a_ring_has_seconds_of_an_hour_and_minutes_of_days_and_fits_two_mebibytes(tmp_path):
    path = tmp_path / "load" / "worker1.ring"
    writer = ring.RingWriter(str(path))
    begin = 1_800_000_000
    for at_s in range(begin, begin + 2 * 3600, 2):
        writer.add(at_s, USUAL._replace(processes=at_s - begin))
    writer.write(writer.added(is_last=True))
    fine, coarse = ring.read(str(path))
    assert [len(fine), fine[-1][0] - fine[0][0], fine[-1][0]] == [1800, 3598, begin + 7198]
    assert [at_s for at_s, _ in coarse] == list(range(begin, begin + 7200, 60))
    assert coarse[1][1].processes == 89
    assert path.stat().st_size <= ring._LARGEST_BYTES <= 2 << 20


def test_a_ring_of_another_version_is_refused_and_damaged_slots_are_left_out(tmp_path):
    path = tmp_path / "worker1.ring"
    writer = ring.RingWriter(str(path))
    writer.add(1_800_000_000, USUAL)
    writer.add(1_800_000_002, USUAL)
    writer.write(writer.added())
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<I", 1_800_000_002)) + 4
    data[at : at + 4] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
    assert [at_s for at_s, _ in ring.read(str(path))[0]] == [1_800_000_000]
    path.write_bytes(data[:70])
    assert ring.read(str(path)) == ([], [])
    path.write_bytes(data.replace(b"phalanx-load-3", b"phalanx-load-9"))
    with pytest.raises(Invalid, match="layout"):
        ring.read(str(path))


def test_a_ring_is_written_into_no_link_and_waits_for_no_pipe(tmp_path):

    (tmp_path / "target").write_text("kept")
    (tmp_path / "a.ring").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "b.ring")
    for name in "ab":
        writer = ring.RingWriter(str(tmp_path / f"{name}.ring"))
        writer.add(1_800_000_000, USUAL)
        writer.write(writer.added(is_last=True))
    assert (tmp_path / "target").read_text() == "kept"


def test_a_summary_names_the_most_memory_and_gpus_that_wait(tmp_path):
    book = Loads(str(tmp_path))
    for _ in range(60):
        book.take("worker1", samples.pack(GPUS))
        book.take("worker2", samples.pack(GPUS._replace(node_memory=14.8 * GIB, memory=14 * GIB)))
    memory, gpus = book.summary()
    assert memory == "memory: at most 14.8 of 15.0 GiB in use on worker2, 14.0 GiB by the job's processes"
    assert gpus.startswith("GPUs: 12 % busy: ")
    assert book.memory_of("worker2") == "14.8 of 15.0 GiB were in use there" and book.memory_of("worker9") == ""


def test_a_sum_counts_a_node_with_two_jobs_once():
    of = [loads.NodeLoad(job, node, 1, 1, GPUS) for job, node in (("a", "w1"), ("b", "w1"), ("a", "w2"))]
    total = loads.total(of)
    assert (total.cores, total.node_cores_total, total.gpus, total.gpu_busy) == (4.5, 8, 16, 12)
    assert loads.in_words(total) == "4.0 of 8 cores, 6.0 of 30.0 GiB, 16 GPUs 12 % busy, 70 °C"
    assert row(of[0])["MEMORY"] == "2.0/15.0 GiB"


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        (b"0, 97, 40536, 81920, 61, 392.11, 0, 0x0000000000000004", [0, 97, 40536, 81920, 61, 392.11, 0, 4]),
        (b"3, [N/A], [N/A], [N/A], 40, [Not Supported], [N/A], 0x0000000000000060", [3, 0, 0, 0, 40, 0, 0, 0x60]),
        (b"No devices were found", []),
        (b"x, 1, 1, 1, 1, 1, 1, 0x0", []),
        (b"\xff" * 40, []),
        (b"", []),
    ],
)
def test_lines_of_nvidia_smi(line, figures):
    assert meter._parsed(line) == figures


MOUNTS = """device /dev/root mounted on / with fstype ext4
device 127.0.0.1:/ mounted on /efs with fstype nfs4 statvers=1.1
\tage:\t11
\tbytes:\t10 20 0 0 4096 8192 1 2\x20
\tper-op statistics
\t        READ: 4 4 0 1000 4096 1 12 20 0
device 10.0.0.5:/fsx mounted on /fsx with fstype nfs statvers=1.1
\tbytes:\t0 0 0 0 4 8 1 2
device lustre mounted on /scratch with fstype lustre
\tbytes:\t0 0 0 0 4 8 1 2
"""


def test_what_proc_says_of_a_node(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "stat").write_text("cpu  100 1 20 900 50 3 4 5 60 7\ncpu0 1\n")
    head = "Inter-| Receive\n face |bytes\n"
    (tmp_path / "net/dev").write_text(f"{head}    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0:1000 1 0 0 0 0 0 0 2000 1 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\nHugePages_Total: 0\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountstats").write_text(MOUNTS)
    found = meter._totals(str(tmp_path))
    moved = {"received": 1000, "sent": 2000, "read": 0, "written": 0, "shared_read": 4100, "shared_written": 8200}
    assert found == {"node_cores": 133.0, **moved}
    assert meter._sizes(str(tmp_path))["node_memory"] == 600 << 10


def test_cpu_time_is_that_between_two_looks(monkeypatch):
    """One that is found late has spent its time earlier, one that hangs has none, and a pid may be used again."""
    looks = [{2: "100", 3: "100"}, {2: "150", 3: "10", 4: "9000"}, {2: "200", 3: "10"}, {2: "250", 3: "10", 4: "9001"}]
    ours = meter.Meter(None, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(ours, "_job_ticks", lambda _now: {pid: int(count) for pid, count in looks.pop(0).items()})
    times = iter([10.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: next(times)))
    tick = os.sysconf("SC_CLK_TCK")
    found = [ours.measure() for _ in range(4)]
    assert [one and round(one.cores * tick) for one in found] == [None, 50, 50, 50]


def test_a_process_that_hangs_has_no_cpu_time(monkeypatch):
    table = {2: {"parent": "1", "ticks": "7"}, 3: {"parent": "2"}}
    monkeypatch.setattr(meter, "processes", lambda: table)
    assert meter.Meter(None, 1)._job_ticks(0.0) == {2: 7}  # type: ignore[arg-type]


def test_a_figure_that_no_gpu_can_have_is_none():
    """Of a whole line that lies, no figure ends the starter: `inf` is no number of reasons."""
    line = b"0, inf, nan, 1e400, -5, [N/A], 0x0000000000000004, inf"
    assert meter._parsed(line) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]
