"""Shares, shards and chunks: every row in exactly one of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode.bulk._chunks import ChunkPlan, Shard, Share, split
from discode.errors import InputError

SIZES = st.integers(1, 7)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), SIZES, st.integers(1, 6), SIZES)
def test_every_row_is_in_exactly_one_share(
    files: list[int], size: int, count: int, rows: int
) -> None:
    seen: list[tuple[int, int]] = []
    for index in range(count):
        share = Share(index, count)
        for k, length in enumerate(files):
            if not share.reads(k, len(files)):
                continue
            plan = ChunkPlan(size, lambda b, k=k, s=share: s.owns(Shard(k, b), len(files)), rows)  # type: ignore[misc]
            for place, chunk in split(range(length), k, plan):
                assert chunk[0] == place.start
                assert place.shard == Shard(k, place.start // size)
                seen += [(k, row) for row in chunk]
    assert sorted(seen) == [(k, row) for k, length in enumerate(files) for row in range(length)]
    assert len(set(seen)) == len(seen)


@given(st.integers(0, 60), SIZES, SIZES, st.integers(1, 30))
def test_chunks_end_where_shards_and_files_end(n: int, size: int, rows: int, weight: int) -> None:
    plan = ChunkPlan(size, max_rows=rows, max_bytes=weight)
    at = 0
    for place, chunk in split(range(n), 3, plan, lambda item: 5):
        assert place.start == at
        at += len(chunk)
        assert place.ends_file == (at == n)
        assert place.ends_shard == (at % size == 0 or at == n)
        assert len(chunk) <= min(rows, weight // 5 + 1, size)
    assert at == n


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_names_tell_shards(file: int, number: int) -> None:
    shard = Shard(file, number)
    assert Shard.of(f"{shard.name}.jsonl") == shard
    assert Shard.of(f".{shard.name}.tar.abc.part") == shard
    assert Shard.of("run.json") is None


@pytest.mark.parametrize("text", ["8/8", "-1/8", "1", "0/0", "a/b", "1/2/3", "", "1.5/2"])
def test_shares_that_are_not_allowed(text: str) -> None:
    with pytest.raises(InputError, match="I/N"):
        Share.parse(text)


def test_a_shard_has_rows() -> None:
    with pytest.raises(InputError, match="1 or more"):
        ChunkPlan(0)
