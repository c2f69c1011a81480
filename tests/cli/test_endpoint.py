"""A served model on the command line: scores, benchmarks, caps, --dry-run, and going on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._cli.lists import TEST_CAPTION
from discode._judge import load
from discode.bench._runlog import RunLog
from tests.helpers import mini_benchmarks as mini
from tests.helpers.chat_servers import Body, Server, caption, rater, serving
from tests.helpers.command_line import CAT, refused, run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving() as server:
        yield server


def test_scores(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "scores.jsonl"
    command = ("score", CAT, "a cat", "a dog", "--model", "endpoint:tiny", "--base-url", server.url)
    done = run(*command, "-M", "key_variable=MY_KEY", "--output", out)
    assert done.returncode == 0, done
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["caption"] for row in rows] == ["a cat", "a dog"]
    assert all(0 <= row["score"] <= 1 for row in rows)
    assert server.keys == {"Bearer sk-secret"}
    assert "sk-secret" not in done.stderr + done.stdout + out.read_text()
    asked = len(server.asked)
    done = run(*command, "--output", out, "--dry-run")
    assert done.returncode == 0, done
    assert "0 requests" in done.stdout
    assert "2 of 2 pairs are in" in done.stdout
    done = run(*command[:2], "a bird", *command[4:], "--dry-run", "-M", "prices=2.5,10")
    assert "1 request to 127.0.0.1" in done.stdout
    assert "after one to /tokenize and one without an image" in done.stdout
    assert "1 image, 0.1 MB" in done.stdout
    assert "cost: about 0.0" in done.stdout
    assert "nothing was sent" in done.stdout
    done = run(*command[:2], "A bird. It sings.", *command[4:], "--dry-run", "--by", "sentence")
    assert "2 requests to 127.0.0.1" in done.stdout
    assert len(server.asked) == asked


def test_several_servers_and_both_stems(server: Server, tmp_path: Path) -> None:
    """A dry run counts two requests per pair; both servers' scores are those of one."""
    command = ("score", CAT, "a cat", "a dog", "--model", "endpoint:tiny")
    options = ("-M", "read=forced", "--method", "smoothing:stem=joint")
    with (
        serving(continues=True, answers=rater) as one,
        serving(continues=True, answers=rater) as two,
    ):
        alone = run(*command, *options, "-M", f"base_url={one.url}")
        both = run(*command, *options, "-M", f"base_url={one.url},{two.url}")
        assert alone.returncode == both.returncode == 0, both
        assert alone.stdout == both.stdout
        assert "nan" not in both.stdout.lower()
        dry = run(*command, *options, "--base-url", f"{one.url},{two.url}", "--dry-run").stdout
    assert f"4 requests to {one.url[7:-3]}, {two.url[7:-3]}" in dry
    refused(run(*command, *options, "--base-url", server.url), server.url)


def test_a_run_says_what_it_cost_and_how_many_may_fail(server: Server, tmp_path: Path) -> None:
    """Also without a terminal: requests, retries by status, tokens, money, speed."""

    def before(body: Body, times: int) -> Any:
        number = int(caption(body)[8:] or -1)
        if number in (1, 2, 3) and times == 1:
            return (500 if number == 3 else 429), {}, {"error": {"message": "later"}}
        return (400, {}, {"error": {"message": "no"}}) if number == 4 else None

    server.before = before
    table = tmp_path / "pairs.csv"
    table.write_text("image,caption\n" + "".join(f"{CAT},caption {n}\n" for n in range(20)))
    judge = ("--model", "endpoint:tiny", "--base-url", server.url, "-M", "pause=0.01")
    command = ("score", "-i", table, *judge, "-M", "prices=2.5,10")
    done = run(*command, "-o", tmp_path / "a/", "--max-failed", "5%")
    assert done.returncode == 0, done
    line = done.stderr.splitlines()[-1]
    for part in ("20 pairs", "pairs/s", f"{sum(server.paths.values())} requests", "2 x 429",
                 "1 x 500", "tokens read", "cost "):  # fmt: skip
        assert part in line, line
    again = ("score", "-i", table, *judge, "--store", tmp_path / "a/_readings.db")
    for given, code in ((), 1), (("--max-failed", "0"), 1), (("--max-failed", "4.9%"), 1):
        assert run(*again, "-o", tmp_path / "b.csv", *given).returncode == code
    assert run(*again, "-o", tmp_path / "b.csv", "--max-failed", "1").returncode == 0
    for odd in ("-1", "101%", "many", "0.5", "nan%"):
        refused(run(*again, "-o", tmp_path / "b.csv", "--max-failed", odd), "--max-failed", odd)


def at_most_five(body: Body, times: int) -> Any:
    few = body["top_logprobs"] <= 5
    return None if few else (400, {}, {"error": {"message": "at most 5 top_logprobs"}})


def test_truncated_rows_and_caps(server: Server, tmp_path: Path) -> None:
    server.before = at_most_five
    out = tmp_path / "scores.csv"
    command = ("score", CAT, "a cat", "a dog", "a bird", "--model", "endpoint:tiny")
    done = run(*command, "--base-url", server.url, "-M", "max_requests=5", "--output", out)
    assert done.returncode == 1
    assert "not asked: max_requests=5 is reached" in done.stderr
    assert "2 truncated" in done.stderr
    assert "truncated rows may be wrong by up to 0." in done.stderr
    assert ",bound," in out.read_text().splitlines()[0]


@pytest.mark.parametrize("verb", ["captions", "table", "bench"])
def test_a_cap_below_the_first_trial(verb: str, server: Server, tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text(f"image,caption\n{CAT},a cat\n")
    command: tuple[object, ...] = {
        "captions": ("score", CAT, "a cat"),
        "table": ("score", "-i", table, "-o", tmp_path / "out", "--shard-size", 2),
        "bench": (
            "bench",
            "run",
            "-b",
            "flickr8k-cf",
            "--data",
            mini.several(tmp_path),
            "-m",
            "raw",
        ),
    }[verb]
    judge = ("--model", "endpoint:tiny", "-M", f"base_url={server.url}", "-M", "max_requests=1")
    done = run(*command, *judge)  # /tokenize takes it
    assert done.returncode == 1, done
    assert "max_requests=1 is reached" in done.stderr


def test_a_cap_leaves_shards_unfinished(server: Server, tmp_path: Path) -> None:
    table, out = tmp_path / "pairs.csv", tmp_path / "out"
    table.write_text("image,caption\n" + "".join(f"{CAT},caption {n}\n" for n in range(6)))
    judge = ("--model", "endpoint:tiny", "--base-url", server.url)
    command = ("score", "-i", table, "-o", out, *judge, "--shard-size", 2)
    done = run(*command, "-M", "max_requests=6")  # /tokenize, the trial, four pairs
    assert done.returncode == 1
    assert "stopped: max_requests=6 is reached; finished shards are in" in done.stderr
    assert len(done.stderr.splitlines()) < 4
    files = sorted(out.glob("*.jsonl"))
    assert sum(len(file.read_text().splitlines()) for file in files) == 4
    assert "NaN" not in "".join(file.read_text() for file in files)
    done = run(*command)
    assert done.returncode == 0, done
    assert "6 items" in done.stderr
    assert max(server.succeeded[f"caption {n}"] for n in range(6)) == 1
    ray = (*command, "--engine", "ray")
    refused(run(*ray, "-M", "max_requests=6"), "max_requests", "--workers 1")
    refused(run(*ray, "--workers", 2, "-M", "rate=6"), "rate", "--workers 1")


def test_a_folder_run_is_estimated_and_keeps_its_bounds(server: Server, tmp_path: Path) -> None:
    server.before = at_most_five
    table, out = tmp_path / "pairs.csv", tmp_path / "out"
    table.write_text(f"image,caption\n{CAT},a cat\n{CAT}\n{CAT},a dog\n")
    judge = ("--model", "endpoint:tiny", "--base-url", server.url)
    command = ("score", "-i", table, "-o", out, *judge)
    done = run(*command, "--dry-run")
    assert done.returncode == 0, done
    assert "2 requests to 127.0.0.1" in done.stdout
    assert "1 pair cannot be sent" in done.stdout
    assert not server.asked
    assert not out.exists()
    share = run(*command, "--dry-run", "--shard", "1/2", "--shard-size", 2)
    assert "1 request to 127.0.0.1" in share.stdout
    done = run(*command)
    assert done.returncode == 1, done
    assert "truncated rows may be wrong by up to 0." in done.stderr
    rows = [json.loads(line) for line in (out / "part-00000-00000.jsonl").read_text().splitlines()]
    assert [row["bound"] is None for row in rows] == [False, True, False]
    assert "2 of 3 pairs are in" in run(*command, "--dry-run").stdout


def test_a_dry_run_finds_images_where_the_run_began(server: Server, tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "pairs.csv", tmp_path / "elsewhere"
    table.write_text("image,caption\n" + "".join(f"cat.jpg,caption {n}\n" for n in range(4)))
    elsewhere.mkdir()
    (tmp_path / "cat.jpg").write_bytes(Path(CAT).read_bytes())
    judge = ("--model", "endpoint:tiny", "--base-url", server.url)
    command = ("score", "-i", table, "-o", tmp_path / "out", *judge, "--shard-size", 2)
    assert run(*command, "--shard", "0/2", cwd=tmp_path).returncode == 0
    done = run(*command, "--shard", "1/2", "--dry-run", cwd=elsewhere)
    assert "2 requests to 127.0.0.1" in done.stdout
    assert "cannot be sent" not in done.stdout


def test_refusals(server: Server) -> None:
    judge = ("score", CAT, "a cat")
    refused(run(*judge, "--dry-run"), "--dry-run requires a served model")
    choice = {"choices": [{"message": {"content": "0.7"}}]}
    server.before = lambda body, times: (200, {}, choice)
    where = ("--model", "endpoint:tiny", "--base-url", server.url)
    refused(run(*judge, *where, "-M", "samples=0"), "returns no log-probabilities")


@pytest.mark.parametrize("place", ["127.0.0.1:99999", "127.0.0.1:-5", "127.0.0.1:0", ":80", ""])
def test_addresses_that_cannot_be(place: str) -> None:
    where = ("--model", "endpoint:tiny", "--base-url", f"http://{place}/v1")
    refused(run("score", CAT, "a cat", *where), "base_url", "65535")


def test_thinking_samples_and_fields(server: Server, tmp_path: Path) -> None:
    """A model that always thinks is refused before a run; a body and samples reach the server."""
    judge = ("score", CAT, "a cat", "--model", "endpoint:tiny", "--base-url", server.url)
    server.thinks = lambda body: True
    refused(run(*judge), "always thinks", "enable_thinking", "thinking=on")
    done = run(*judge, "-M", "thinking=on")
    assert done.returncode == 0, done
    server.thinks = lambda body: False
    server.asked.clear()
    dry = run(*judge, "-M", "samples=20", "-M", "prices=2.5,10", "--dry-run").stdout
    assert "1 request to" in dry
    assert "120 to write" in dry
    fields = ("-M", "samples=20", "-M", 'body={"top_k": 50}')
    done = run(*judge, *fields, "--store", tmp_path / "r.db", "-o", tmp_path / "s.jsonl")
    assert done.returncode == 0, done
    assert (server.asked[-1]["n"], server.asked[-1]["top_k"]) == (20, 50)
    assert "sampled rows may" in done.stderr
    assert "truncated" not in done.stderr
    signature = json.loads((tmp_path / "s.jsonl").read_text())
    assert "tiny-2026+sampled+body-" in json.dumps(signature)
    for odd in ('body={"api_key": "sk-1234"}', "body=x", 'body={"model": "y"}', "samples=-1"):
        failed = run(*judge, "-M", odd)
        refused(failed, odd[:4])
        assert "sk-1234" not in failed.stderr


def test_dry_run_caps_and_going_on(server: Server, tmp_path: Path) -> None:
    data, runs = mini.several(tmp_path / "data"), tmp_path / "runs"
    command = (
        "bench", "run", "-b", "flickr8k-expert", "-b", "flickr8k-cf", "--data", data,
        "-m", "raw", "-m", "fleur", "-m", "discode", "-o", f"{runs}/", "--model",
        "endpoint:tiny", "--base-url", server.url, "-M", "prices=2.5,10",
    )  # fmt: skip

    done = run(*command, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "5 requests to 127.0.0.1" in done.stdout  # two pairs are in both benchmarks
    assert "3 images" in done.stdout
    assert "cost: about 0.0" in done.stdout
    assert not server.paths
    assert not runs.exists()

    done = run(*command, "-M", "max_requests=6")  # /tokenize, the trial, four pairs
    assert done.returncode == 1, done.stderr
    assert "stopped at flickr8k-cf: max_requests=6 is reached; readings are kept in" in done.stderr
    assert "readings.db" in done.stderr
    assert done.stdout.splitlines()[0].split() == ["Flickr8k-Expert"]
    assert not (runs / "flickr8k-cf.json").exists()
    assert "1 request to 127.0.0.1" in run(*command, "--dry-run").stdout

    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert set(server.succeeded.values()) == {1, 2}  # 2: the trial of either run
    assert sum(server.succeeded.values()) == 5 + 2
    for name in ("flickr8k-expert", "flickr8k-cf"):
        results = RunLog.load(runs / f"{name}.json").results
        assert list(results) == ["raw", "fleur", "discode"]
        assert all(np.isfinite(result.value).all() for result in results.values())
        assert dict(results["raw"].signature)["model"].startswith("tiny@127.0.0.1")
    assert "\n  paper" not in done.stdout


def test_a_dry_run_counts_only_what_is_sent(server: Server, tmp_path: Path) -> None:
    judge = ("--model", "endpoint:tiny", "--base-url", server.url)
    done = run("score", CAT, "a cat", " ", *judge, "--dry-run")
    assert "1 request to 127.0.0.1" in done.stdout
    assert "1 pair cannot be sent" in done.stdout
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    folder = ("score", "-i", empty, "-o", tmp_path / "out", *judge)
    for command in (("score", "-i", empty, *judge), folder):
        refused(run(*command, "--dry-run"), "no pairs")
    assert run(*folder, "--shard", "1/2", "--dry-run").returncode == 0
    assert not server.asked


def test_dry_runs_that_are_refused(tmp_path: Path) -> None:
    data = mini.several(tmp_path)
    command: tuple[Any, ...] = ("bench", "run", "-b", "composite", "--data", data, "--dry-run")
    refused(run(*command, "-m", "raw"), "--dry-run requires a served model")
    served = ("--model", "endpoint:tiny", "--base-url", "http://127.0.0.1:9/v1")
    refused(run(*command, "-m", "cider", *served), "metrics")
    done = run(*command, "-m", "cider", "-m", "raw", *served)
    assert done.returncode == 0, done.stderr
    assert "3 pairs cannot be sent and would be NaN" in done.stdout


def no_images(body: Body, times: int) -> Any:
    plain = isinstance(body["messages"][0]["content"], str)
    return None if plain else (400, {}, {"error": {"message": "no images here"}})


def test_check_of_an_endpoint() -> None:
    """What a server can do, and one test answer."""
    check = ("models", "--check", "endpoint:tiny")
    with serving(continues=True, answers=rater, tokens=True, keeps=9, image_tokens=576) as server:
        done = run(*check, "-M", f"base_url={server.url}")
        assert done.returncode == 0, done
        found = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines()[:7])
        assert found["model"].startswith("tiny-2026 at 127.0.0.1")
        assert found["log-probabilities"].startswith("20")
        for name in ("token ids", "begun answers", "images"):
            assert found[name].startswith("yes"), found
        assert "576" in found["images"]
        assert "kept" in found["images"]
        assert found["thinking"].strip() == "no"
        assert "several" in found["samples"]
        assert "test answer: cat.jpg" in done.stdout
        own = load("endpoint:tiny", base_url=server.url).score(CAT, TEST_CAPTION)
        assert f"discode → {float(own):.3f}" in done.stdout
    by_template = {"thinks": lambda body: "chat_template_kwargs" not in body}
    with serving(**by_template, logprobs=False, choices=1) as server:
        done = run(*check, "-M", f"base_url={server.url}")
        assert done.returncode == 0, done
        found = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines()[:7])
        assert "no-thinking" in found["thinking"]
        assert "one answer per request" in found["samples"]
        assert found["log-probabilities"].strip() == "no"
    with serving(before=no_images) as server:
        done = run(*check, "--base-url", server.url)
        assert done.returncode == 1
        found = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines()[:7])
        for name in ("token ids", "begun answers", "images"):
            assert found[name].startswith("no"), found
        assert "no images here" in done.stderr
    refused(run(*check, "--base-url", server.url), "reached")  # it is gone
    refused(run(*check), "base_url")
    refused(run("models", "--check", "embedded"), "embedded", "endpoint:NAME")
    refused(run("models", "--base-url", server.url), "--check")
