"""The help of every verb: short pages, and flags that mean the same everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from discode._cli import app

LINES = 50

# Their help names the files of the verb, or the options that it lists.
OWN_OUTPUT = {"--output", "--options"}


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, command
    for each in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from verbs(command.get_command(None, each), f"{name} {each}".strip())


VERBS = dict(verbs(typer.main.get_command(app)))


def flags(command: Any) -> dict[str, Any]:
    return {name: each for each in command.params for name in each.opts if name.startswith("-")}


@pytest.mark.parametrize("verb", VERBS)
def test_pages_are_short_and_complete(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = flags(VERBS[verb])
    parts = (
        [["--help"], ["--options"]] if "--options" in shown and verb != "models" else [["--help"]]
    )
    pages = [CliRunner().invoke(app, [*verb.split(), *part]).output for part in parts]
    for page in pages:
        assert len(page.splitlines()) <= LINES
        assert max(map(len, page.splitlines())) <= 80
    for name in shown:
        assert any(f" {name} " in page or f"{name}/" in page for page in pages), name


def test_a_flag_has_one_meaning() -> None:
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    for command in VERBS.values():
        for name, each in flags(command).items():
            if not OWN_OUTPUT & {*each.opts}:
                meanings[name].add(each.help)
    assert {name: texts for name, texts in meanings.items() if len(texts) > 1} == {
        "-m": {flags(VERBS["score"])["-m"].help, flags(VERBS["bench run"])["-m"].help},
        # `filter` writes nothing else.
        "--min-score": {flags(VERBS[v])["--min-score"].help for v in ("score", "filter")},
    }


# A word, the verbs that have it, and what it takes.
WORDS = {
    "--output -o": (
        "score, bench run, bench join-composite, bench plot, report, probe, choose, "
        "calibrate, decode, "
        "filter, demo, paper, mceval import, mceval people invite, mceval people reissue",
        "PATH FOLDER",
    ),
    "--images": (
        "score, prefer, arena, report, explain, mceval annotate, mceval tasks, mceval export",
        "FOLDER",
    ),
    "--benchmark -b": (
        "bench pairs, bench run, bench verify, bench explain, probe, choose, paper", "NAME"
    ),
    "--method -m": (
        "score, compare, prefer, arena, bench explain, report, explain, probe, serve, choose, "
        "calibrate, "
        "decode",
        "NAME",
    ),
    "--metric -m": ("bench run, bench verify, paper", "NAME"),
    "--data": (
        "bench check, bench pairs, bench run, bench verify, bench explain, report, probe, choose, "
        "paper",
        "FOLDER",
    ),
    "--limit": ("bench run, bench explain, probe, choose, paper", "N"),
    "--store": (
        "score, prefer, arena, bench run, bench explain, report, explain, probe, serve, choose, "
        "paper",
        "FILE",
    ),
    "--json": ("score, compare, prefer, arena, explain, prompts, decode", ""),
    "--format -f": (
        "compare, arena, bench explain, bench verify, bench table, bench published, probe, "
        "probe compare, choose, calibrate, paper",
        "NAME",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_words_take_the_same_in_every_verb(words: str) -> None:
    spelled, (expected, taken) = words.split(), WORDS[words]
    found = {
        verb: each.metavar or ""
        for verb, command in VERBS.items()
        for each in command.params
        if set(each.opts) == {*spelled}
    }
    assert set(found) == set(expected.split(", "))
    assert set(found.values()) == set(taken.split(" "))
