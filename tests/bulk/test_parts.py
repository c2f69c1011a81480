"""A chunk in parts, as Ray's workers judge it, and a cluster's address; neither needs a cluster."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode._judge import Judge
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.bulk._chunks import ChunkPlace, PairChunk
from discode.bulk._judging import ScoredChunk, judge_chunk
from discode.bulk._ray import _joined, _pack, _probe, _unpack, _Worker
from discode.bulk._writers import file_columns
from discode.readings import Readings
from tests.helpers.command_line import run
from tests.helpers.instant import Instant, rows
from tests.helpers.ports import closed_port

pytest.importorskip("pyarrow", reason="Ray's tables are Arrow's")


class Batches(Instant):
    """Notes the batches that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[str, str], ...]] = []

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        self.seen.append(tuple((str(pair.image), pair.caption) for pair in pairs))
        return super().answer(pairs, prompt, scale, hidden=hidden)


def chunk_of(images: Sequence[str]) -> PairChunk:
    """A chunk with a caption for each image; "?" is a broken row, "!" one that fails."""
    captions = [f"caption {n} {'x!' * (image == '!')}" for n, image in enumerate(images)]
    pairs = [
        Pair(image, caption, (), f"r{n}", f"row {n} is broken" * (image == "?"))
        for n, (image, caption) in enumerate(zip(images, captions, strict=True))
    ]
    samples = [{"n": n} for n in range(len(images))]
    return PairChunk(ChunkPlace(), "set", pairs, list(images), captions, samples)


def judged(judge: Judge, chunk: PairChunk, count: int, min_score: float | None) -> ScoredChunk:
    """Judge a chunk in parts, which come back in another order, one of them twice."""
    worker = _Worker(lambda: judge, None, min_score)
    parts: list[Any] = [_unpack(worker(_pack((chunk, n, count)))) for n in range(count)]
    (whole,) = _joined([*parts[1:], parts[-1], parts[0]] if count > 1 else parts, min_score)
    return whole


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("abcdef?!"), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([None, 0.0, 0.4]),
)
def test_parts_are_judged_as_the_whole_is(
    images: list[str], batch_size: int, count: int, min_score: float | None
) -> None:
    chunk, alone, shared = chunk_of(images), Batches(), Batches()
    one = discode.load(alone, batch_size=batch_size)
    want = judge_chunk({"discode": one}, chunk, min_score=min_score)
    got = judged(discode.load(shared, batch_size=batch_size), chunk, count, min_score)
    assert sorted(shared.seen) == sorted(alone.seen)  # batch by batch, and in their order
    assert json.dumps(file_columns(got.rows)) == json.dumps(file_columns(want.rows))
    assert (got.place, got.signatures, got.passed) == (want.place, want.signatures, want.passed)
    assert got.samples == want.samples


def test_bounds_of_some_parts_are_kept() -> None:
    values = np.array([0.1, 0.2])
    scores = discode.decode(np.log(np.full((2, 10), 0.1)))
    parts = [discode.Scores(values, scores.signature, bound=b) for b in (None, values / 10)]
    joined = discode.Scores.join(parts)
    assert joined.value.tolist() == [0.1, 0.2, 0.1, 0.2]
    assert joined.bound is not None
    np.testing.assert_array_equal(joined.bound, [np.nan, np.nan, 0.01, 0.02])


@contextmanager
def web_port() -> Iterator[int]:
    """The port of a web server: something answers there, but no Ray."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_an_address_is_tried_before_ray_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("auto", "local", ""):
        _probe(address)
    with closed_port() as closed, web_port() as web:
        for place in (f"127.0.0.1:{closed}", f"127.0.0.1:{web}", "127.0.0.1:port", ":1"):
            for address in (place, f"ray://{place}"):
                with pytest.raises(ConnectionError):
                    _probe(address)
        with pytest.raises(ConnectionError, match="ray://"):
            _probe(f"http://127.0.0.1:{web}")  # such as that of Ray's dashboard
        monkeypatch.setenv("RAY_USE_TLS", "1")
        _probe(f"127.0.0.1:{web}")  # who is there cannot be told without certificates
    monkeypatch.delenv("RAY_USE_TLS")
    monkeypatch.setattr("discode.bulk._ray.CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConnectionError):
        _probe(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.slow
@pytest.mark.parametrize("wrong_port", [closed_port, web_port])
def test_a_wrong_address_is_told_at_once(wrong_port: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray is tested with discode-eval[ray]")
    source = tmp_path / "set.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(3)))
    with wrong_port() as port:
        options = ("--engine", "ray", "--address", f"127.0.0.1:{port}")
        done = run("score", "-i", source, "-o", tmp_path / "out", *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(port) in done.stderr
