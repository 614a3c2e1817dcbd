"""Every rank finds its own part of the shards: no sample is lost or read twice, whatever the number of ranks."""

from __future__ import annotations

import json
from itertools import chain, pairwise

import pytest
from error_codes import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.packing.containers import _pieces
from phalanx.shards import ShardError, load, parts, split

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def samples_of(counts: list[int], rank: int, ranks: int) -> list[tuple[int, int]]:
    return [(shard, n) for shard, first, last in split(counts, rank, ranks) for n in range(first, last)]


@settings(deadline=None)
@given(COUNTS, st.integers(1, 200))
def test_every_sample_is_read_once_and_ranks_differ_by_one_at_most(counts, ranks):
    read = [samples_of(counts, rank, ranks) for rank in range(ranks)]
    assert list(chain(*read)) == [(shard, n) for shard, count in enumerate(counts) for n in range(count)]
    sizes = {len(one) for one in read}
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(COUNTS, st.integers(1, 30), st.integers(1, 8))
def test_the_workers_of_a_rank_read_what_the_rank_alone_would_read(counts, ranks, workers):
    for rank in range(ranks):
        of_workers = [samples_of(counts, rank * workers + worker, ranks * workers) for worker in range(workers)]
        assert list(chain(*of_workers)) == samples_of(counts, rank, ranks)


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(rank, ranks):
    with pytest.raises(ValueError, match=f"rank {rank} is not one of {ranks} ranks"):
        split([3], rank, ranks)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"shards": [1]}', '{"shards": [{"samples": 1, "files": []}]}', '{"shards": []}']
)
def test_a_damaged_list_of_shards_is_named(tmp_path, text):
    (tmp_path / "shards.json").write_text(text)
    with raises_code("bad-shards", "shards.json", kind=ShardError):
        load(tmp_path)


def test_a_list_leads_to_no_file_elsewhere(tmp_path):
    one = {"samples": 1, "files": [{"name": "../shard-00000.tar", "bytes": 1, "sha256": ""}]}
    (tmp_path / "shards.json").write_text(json.dumps({"shards": [one]}))
    with raises_code("bad-shards", "name is not", kind=ShardError):
        load(tmp_path)
    with raises_code("bad-shards", "shards.json", kind=ShardError):
        parts(tmp_path / "elsewhere", 0, 1)


@given(st.lists(st.sampled_from([b"\x0a\x23\xd7\xce", b"\x0a", b"abcd", b"\x23\xd7\xce"]), max_size=12).map(b"".join))
def test_a_record_never_contains_the_number_that_begins_records(record):
    magic = b"\x0a\x23\xd7\xce"
    pieces = list(_pieces(record))
    assert magic.join(piece for _, piece in pieces) == record
    kinds = [kind for kind, _ in pieces]
    assert kinds == ([0] if len(kinds) == 1 else [1, *[2] * (len(kinds) - 2), 3])
    for _, piece in pieces:
        assert all(piece[at : at + 4] != magic for at in range(0, len(piece), 4))
    assert all(len(piece) % 4 == 0 for (_, piece), _ in pairwise(pieces))
