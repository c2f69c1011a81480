"""Which of the paper's numbers stands beside a run's: benchmark, metric and model are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discode._prompts import CAPTION_LAST
from discode._signature import Signature
from discode.backends._local.catalog import CATALOG
from discode.bench import RunLog, published_cell, published_cells
from discode.benchmarks import Ratings
from tests.helpers.published_runs import LLAVA, judged, run_of

EXPERT, CF = "flickr8k-expert", "flickr8k-cf"
QWEN = "Qwen/Qwen2-VL-7B-Instruct"
VICUNA = "llava-hf/llava-v1.6-vicuna-13b-hf"
ROUGE, CIDER = Signature.of(metric="rouge-l"), Signature.of(metric="cider")
FILE = Signature.of(metric="scorefile", file="scores.csv")


def clip(metric: str, model: str = "openai/clip-vit-base-patch32", **more: str) -> Signature:
    return Signature.of(metric=metric, model=model, **more)


def bert(model: str = "roberta-large", idf: str = "none") -> Signature:
    return Signature.of(metric="bertscore", model=model, layer=17, idf=idf, measure="f1")


def check(log: RunLog, measure: str, value: float | None) -> None:
    (label,) = log.results
    cell = published_cell(log, label, measure)
    assert (cell and cell.value) == value


@pytest.mark.parametrize(
    ("benchmark", "signature", "more", "measure", "value"),
    [
        # The paper's method and its judges; a served model, and references that are not shown.
        (EXPERT, judged("paper"), {}, "tau_b", 55.7),
        (EXPERT, judged("paper", f"{LLAVA}@localhost:8000", dtype="none"), {}, "tau_c", 56.1),
        ("pascal50s", judged("paper"), {}, "HC", 62.9),
        ("mceval", judged("paper"), {}, "quickdraw", 78.5),
        ("composite", judged("raw"), {}, "tau_c", 63.1),
        ("composite", judged("fleur"), {}, "tau_c", 65.7),
        (EXPERT, judged("fleur", VICUNA), {}, "tau_b", 51.8),
        (EXPERT, judged("paper", references="all"), {}, "tau_b", 56.1),
        (EXPERT, judged("paper", references="some"), {}, "tau_c", 56.5),
        # Rows with a setting.
        (EXPERT, judged("no-cross-entropy"), {}, "tau_c", 54.6),
        (EXPERT, judged("no-divergence"), {}, "tau_c", 49.9),
        (EXPERT, judged("no-adaptive-alpha"), {}, "tau_c", 55.6),
        (EXPERT, judged("kl"), {}, "tau_b", 55.2),
        (EXPERT, judged("paper:sigma2=1.0"), {}, "tau_c", 55.9),
        (EXPERT, judged("paper:sigma2=0.01"), {}, "tau_b", 55.7),
        (EXPERT, judged("paper", scale="five"), {}, "tau_b", 54.0),
        (EXPERT, judged("paper", scale="five"), {}, "tau_c", 54.4),
        (EXPERT, judged("paper", scale="ten"), {}, "tau_c", 55.4),
        (EXPERT, judged("paper", scale="letters"), {}, "tau_b", 54.1),
        # Metrics that ask no judge, and scores from files, which have their model in the label.
        ("mceval", ROUGE, {}, "mean", 55.6),
        ("composite", ROUGE, {"size": (3992, 11_976)}, "tau_c", 32.4),
        ("composite", CIDER, {"ties": "half"}, "tau_c", 37.7),  # ratings have none
        ("pascal50s", CIDER, {"draws": "2"}, "mean", 80.1),
        (EXPERT, clip("clip-s"), {}, "tau_c", 51.2),
        (EXPERT, clip("clip-s", "clip-vit-base-patch32"), {}, "tau_c", 51.2),
        (EXPERT, clip("ref-pac-s++"), {}, "tau_c", 55.7),
        (EXPERT, clip("ref-pac-s++", "openai/clip-vit-large-patch14"), {}, "tau_c", 57.9),
        (EXPERT, bert(), {}, "tau_c", 39.2),
        ("mceval", bert(), {}, "infograph", 58.6),
        (EXPERT, FILE, {"label": "ref-pac-s++@ViT-B"}, "tau_b", 55.3),
        (EXPERT, FILE, {"label": "ref-pac-s++@ViT-L"}, "tau_c", 57.9),
        (EXPERT, FILE, {"label": "polos"}, "tau_c", 56.4),
        (CF, FILE, {"label": "fleur@LLaVA-1.5-13B"}, "tau_b", 38.6),
        # FOIL has columns by the number of references, whoever sees them.
        *(("foil", judged("paper"), {"references": n}, "mean", 98.2) for n in ("1", "4")),
        ("foil", clip("ref-pac-s"), {"references": "1"}, "mean", 93.7),
        ("foil", clip("ref-pac-s"), {"references": "4"}, "mean", 94.9),
    ],
)
def test_the_same_thing_has_the_papers_number(
    benchmark: str, signature: Signature, more: dict[str, Any], measure: str, value: float
) -> None:
    check(run_of(benchmark, signature, **more), measure, value)


@pytest.mark.parametrize(
    ("benchmark", "signature", "more"),
    [
        # Another method, prompt, model, dtype or size of images.
        (EXPERT, judged("discode"), {}),
        (EXPERT, judged("paper-unit"), {}),
        (EXPERT, judged("paper:stem=graded"), {}),
        (EXPERT, judged("paper:solver=adam,steps=30"), {}),
        (EXPERT, judged("smoothing"), {}),
        (EXPERT, judged("jensen-shannon:solver=adam"), {}),  # where Adam starts is not published
        (EXPERT, judged("paper:sigma2=0.2"), {}),
        (EXPERT, judged("paper:sigma2=0.05", scale="five"), {}),
        (EXPERT, judged("paper", scale="1-7"), {}),
        (EXPERT, judged("paper", QWEN, scale="five"), {}),
        (EXPERT, judged("raw", references="all"), {}),
        (EXPERT, judged("paper", prompt=CAPTION_LAST), {}),
        (EXPERT, judged("paper", dtype="4bit-bfloat16"), {}),
        (EXPERT, judged("paper", revision="x+448px", dtype="none"), {}),
        (EXPERT, judged("paper", "me/llava-next-72b-hf"), {}),
        (EXPERT, judged("fleur", VICUNA), {}),  # 52.1 in one table and 51.1 in another
        (EXPERT, clip("clip-s", "openai/clip-vit-large-patch14"), {}),
        (EXPERT, bert("bert-base-uncased"), {}),
        (EXPERT, bert(idf="set"), {}),
        (EXPERT, FILE, {"label": "ref-pac-s++"}),
        (EXPERT, FILE, {"label": "fleur"}),
        (EXPERT, FILE, {"label": "mine"}),
        # Another protocol, or other data.
        ("composite", CIDER, {"references": "all"}),
        (EXPERT, CIDER, {"experts": "average"}),
        (EXPERT, CIDER, {"self_references": "keep"}),
        (EXPERT, ROUGE, {"size": (12, 12)}),
        ("custom", ROUGE, {"size": (6000, 6000)}),
        (CF, FILE, {"label": "fleur@LLaVA-1.5-13B"}),  # not in that cell
    ],
)
def test_another_thing_has_none(benchmark: str, signature: Signature, more: dict[str, Any]) -> None:
    check(run_of(benchmark, signature, **more), "tau_c", None)


def test_ties_that_are_not_wrong_are_another_protocol() -> None:
    check(run_of("pascal50s", CIDER), "mean", 80.1)
    check(run_of("pascal50s", CIDER, ties="half"), "mean", None)


def test_scores_for_some_images_have_no_number() -> None:
    """Composite with Flickr8k's images alone is a quarter of it."""
    log = run_of("composite", judged("paper"))
    (result,) = log.results.values()
    for share, value in ((0.75, None), (9 / 11_985, 66.0)):
        failed = replace(result.measures["failed"], value=share)
        changed = replace(result, measures={**result.measures, "failed": failed})
        check(replace(log, results={"a": changed}), "tau_c", value)


def test_every_metric_of_the_paper_that_can_be_made_has_a_number() -> None:
    """A cell's metric, scale and model are those of some run: none is there in vain."""
    hubs = {row.paper: row.hub for row in CATALOG} | {"LLaVA-1.5-13B": "llava-1.5-13b-hf"}
    reached = 0
    for cell in published_cells(column=f"{EXPERT} tau_c"):
        if cell.scale:
            references = "all" if cell.metric.startswith("ref-") else "none"
            method = cell.metric.removeprefix("ref-")
            made = judged(method, hubs[cell.model], scale=cell.scale, references=references)
            found = published_cell(run_of(EXPERT, made), "a", "tau_c")
            contradicted = (cell.metric, cell.model) == ("fleur", "LLaVA-NeXT-13B")
            assert (found is None) == contradicted, cell
            reached += found is not None
    assert reached > 60


def test_tau_c_has_a_number_by_scipys_m_alone_where_it_matters() -> None:
    """The literature's m is scipy's; both are the same unless a metric has fewer values."""
    log = run_of("composite", judged("raw"))
    (result,) = log.results.values()
    count = len(result.value)
    people = Ratings(
        np.arange(count), np.arange(count, dtype=np.float64) % 5, np.zeros(count, np.int64)
    )
    for values, same in ((3, False), (5, True), (9, True)):
        scored = replace(result, value=np.arange(count, dtype=np.float64) % values)
        mine = replace(log, judgments=people, results={"a": scored})
        check(mine, "tau_b", 58.3)
        check(mine, "tau_c", 63.1 if same else None)
        scipys = replace(mine, protocol=replace(mine.protocol, tau_m="scipy"))
        check(scipys, "tau_c", 63.1)
