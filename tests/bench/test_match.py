"""Which of the paper's cells belongs to a run: a row per way of being the same or another thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discode.bench import RunLog, match_published, published_cells
from discode.bench.published import paper_model
from discode.benchmarks import Ratings
from discode.prompts import CAPTION_LAST
from discode.signature import Signature
from tests.helpers.published_runs import LLAVA, judged, run_of

EXPERT, CF = "flickr8k-expert", "flickr8k-cf"
PAPER = "paper:stem=greedy"
"""The paper's method with nothing of ours: its own rule for 1.0, too."""
QWEN, INTERN = "Qwen/Qwen2-VL-7B-Instruct", "OpenGVLab/InternVL2_5-78B"
VICUNA = "llava-hf/llava-v1.6-vicuna-13b-hf"
ROUGE, CIDER = Signature.of(metric="rouge-l"), Signature.of(metric="cider")
FILE = Signature.of(metric="scorefile", file="scores.csv")


def clip(metric: str, model: str = "openai/clip-vit-base-patch32", **more: str) -> Signature:
    return Signature.of(metric=metric, model=model, **more)


def bert(model: str = "roberta-large", idf: str = "none") -> Signature:
    return Signature.of(metric="bertscore", model=model, layer=17, idf=idf, measure="f1")


def chat(model: str, metric: str = "g-veval") -> Signature:
    return Signature.of(metric=metric, model=model, prompt="0", top=5)


def check(log: RunLog, measure: str, value: float | None, word: str = "") -> None:
    """The paper's number for a run, or none; without a ``word`` the two are compared."""
    (label,) = log.results
    match = match_published(log, label, measure)
    assert (None if match.cell is None else match.value) == value
    assert match.comparable == (not word)
    assert word in match.reason if word else match.reason == ""


@pytest.mark.parametrize(
    ("benchmark", "signature", "more", "measure", "value"),
    [
        # The paper's method and its judges; a served model, and references that are not shown.
        (EXPERT, judged(PAPER), {}, "tau_b", 55.7),
        (EXPERT, judged(f"{PAPER},solver=exact"), {}, "tau_c", 56.1),
        (EXPERT, judged(PAPER, f"{LLAVA}@localhost:8000", dtype="none"), {}, "tau_c", 56.1),
        ("pascal50s", judged(PAPER), {}, "HC", 62.9),
        ("pascal50s", judged(PAPER), {"references": "given"}, "mean", 84.5),
        ("mceval", judged(PAPER), {}, "quickdraw", 78.5),
        ("composite", judged(PAPER), {"references": "all"}, "tau_c", 66.0),
        ("composite", judged("raw"), {}, "tau_c", 63.1),
        ("composite", judged("fleur"), {}, "tau_c", 65.7),
        (EXPERT, judged("fleur", VICUNA), {}, "tau_b", 51.8),
        (EXPERT, judged(PAPER, references="all"), {}, "tau_b", 56.1),
        (EXPERT, judged(PAPER, references="some"), {}, "tau_c", 56.5),
        # Rows with a setting.
        (EXPERT, judged("no-cross-entropy:stem=greedy"), {}, "tau_c", 54.6),
        (EXPERT, judged("no-divergence:stem=greedy"), {}, "tau_c", 49.9),
        (EXPERT, judged("no-adaptive-alpha:stem=greedy"), {}, "tau_c", 55.6),
        (EXPERT, judged("kl:stem=greedy"), {}, "tau_b", 55.2),
        (EXPERT, judged(f"{PAPER},alpha=0.5"), {}, "tau_c", 55.6),
        (EXPERT, judged(f"{PAPER},sigma2=1.0"), {}, "tau_c", 55.9),
        (EXPERT, judged(f"{PAPER},sigma2=0.01"), {}, "tau_b", 55.7),
        (EXPERT, judged("paper", scale="five"), {}, "tau_b", 54.0),
        (EXPERT, judged("paper", scale="1-5"), {}, "tau_c", 54.4),
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
        *(("foil", judged(PAPER), {"references": n}, "mean", 98.2) for n in ("0", "1", "4")),
        ("foil", judged("fleur", "llava-hf/llava-1.5-13b-hf"), {}, "mean", 96.8),
        ("foil", clip("ref-pac-s"), {"references": "1"}, "mean", 93.7),
        ("foil", clip("ref-pac-s"), {"references": "4"}, "mean", 94.9),
    ],
)
def test_the_same_thing_is_compared(
    benchmark: str, signature: Signature, more: dict[str, Any], measure: str, value: float
) -> None:
    check(run_of(benchmark, signature, **more), measure, value)


@pytest.mark.parametrize(
    ("benchmark", "signature", "more", "value", "word"),
    [
        (EXPERT, judged("discode"), {}, 56.1, "tau=1"),
        (EXPERT, judged("paper-unit:stem=greedy"), {}, 56.1, "alpha_scale=unit"),
        (EXPERT, judged(f"{PAPER},solver=adam,steps=30"), {}, 56.1, "steps=30"),
        (EXPERT, judged("paper:stem=graded"), {}, 56.1, "stem=graded"),
        (EXPERT, judged("smoothing:stem=greedy"), {}, 55.7, "renormalised"),
        (EXPERT, judged("discode:sigma2=0.01"), {}, 56.1, "alpha_clip=0:1"),
        (EXPERT, judged(PAPER, prompt=CAPTION_LAST), {}, 56.1, "caption-last-"),
        (EXPERT, judged(PAPER, dtype="4bit-bfloat16"), {}, 56.1, "4bit-bfloat16"),
        (EXPERT, judged(PAPER, revision="x+448px", dtype="none"), {}, 56.1, "448px"),
        ("composite", CIDER, {"references": "all"}, 37.7, "references=all"),
        (EXPERT, CIDER, {"experts": "average"}, 43.9, "experts=average"),
        (EXPERT, CIDER, {"self_references": "keep"}, 43.9, "self_references"),
        (EXPERT, bert(idf="set"), {}, 39.2, "idf=set"),
        (EXPERT, clip("polos", normalised="text"), {}, 56.4, "normalised=text"),
        (EXPERT, judged("fleur", VICUNA), {}, 52.1, "52.1 (llms) and 51.1 (llms_appendix)"),
        *((EXPERT, chat(name), {}, 59.7, "wording")
          for name in ("gpt-4o", "gpt-4o-2024-08-06", "openai:gpt-4o")),
        # The paper solves KL exactly and other divergences by Adam, and names no orders.
        (EXPERT, judged("paper-adam:stem=greedy"), {}, 56.1, "Adam steps"),
        (EXPERT, judged("jensen-shannon:stem=greedy"), {}, 55.6, "solved exactly"),
        (EXPERT, judged("jensen-shannon:solver=adam,stem=greedy"), {}, 55.6, "Adam starts"),
        (EXPERT, judged("beta:solver=adam,stem=greedy"), {}, 55.3, "order=2"),
        (EXPERT, judged("renyi:order=0.7,stem=greedy"), {}, 55.9, "order=0.7"),
    ],
)  # fmt: skip
def test_a_departure_is_shown_and_not_compared(
    benchmark: str, signature: Signature, more: dict[str, Any], value: float, word: str
) -> None:
    check(run_of(benchmark, signature, **more), "tau_c", value, word)


@pytest.mark.parametrize(
    ("benchmark", "signature", "more", "measure", "word"),
    [
        (EXPERT, judged("paper", scale="1-7"), {}, "tau_c", "scale=1-7"),
        (EXPERT, judged("paper", QWEN, scale="five"), {}, "tau_c", "Qwen2-VL-7B-Instruct"),
        (EXPERT, judged("paper:sigma2=0.05", scale="five"), {}, "tau_c", "scale=five and sigma2"),
        (EXPERT, judged("paper:sigma2=0.2"), {}, "tau_c", "sigma2=0.2"),
        (EXPERT, judged("paper:alpha=0.3"), {}, "tau_c", "alpha=0.3"),
        (EXPERT, judged("no-divergence", INTERN), {}, "tau_c", "LLaVA-NeXT-72B"),
        (EXPERT, judged("raw", references="all"), {}, "tau_c", "not in the paper"),
        ("foil", judged("fleur"), {}, "mean", "another model"),
        ("foil", judged("paper", INTERN), {}, "mean", "another model"),
        ("foil", judged("paper"), {"size": (992, 1000)}, "mean", "other data"),
        ("foil", Signature.of(metric="meteor"), {}, "mean", "FOIL"),
        ("foil", clip("ref-pac-s"), {"references": "0"}, "mean", "empty"),
        (EXPERT, clip("clip-s", "openai/clip-vit-large-patch14"), {}, "tau_c", "another model"),
        (EXPERT, clip("pac-s++", "clip-vit-base-patch32"), {}, "tau_c", "ViT-L"),
        (EXPERT, bert("bert-base-uncased"), {}, "tau_c", "another model"),
        (EXPERT, bert(), {}, "tau_b", "empty"),
        (EXPERT, chat("gpt-4o-mini"), {}, "tau_c", "another model"),
        (EXPERT, chat("gpt-4o", "clair"), {}, "tau_c", "does not say"),
        (CF, FILE, {"label": "fleur@LLaVA-1.5-13B"}, "tau_c", "empty"),  # 20.7 is LLaVA-NeXT-72B's
        (EXPERT, FILE, {"label": "ref-pac-s++@ViT-L"}, "tau_b", "empty"),
        (EXPERT, FILE, {"label": "ref-pac-s++"}, "tau_c", "ref-pac-s++@ViT-L"),
        *((EXPERT, FILE, {"label": label}, "tau_c", "does not say its model")
          for label in ("fleur", "discode", "raw", "ref-discode", "g-veval")),
        (EXPERT, FILE, {"label": "mine"}, "tau_c", "not in the paper"),
        ("mceval", ROUGE, {"size": (12, 12)}, "mean", "12 images with 12 judgments"),
        ("custom", ROUGE, {"size": (6000, 6000)}, "mean", "benchmark"),
    ],
)  # fmt: skip
def test_another_thing_has_no_number(
    benchmark: str, signature: Signature, more: dict[str, Any], measure: str, word: str
) -> None:
    check(run_of(benchmark, signature, **more), measure, None, word)


def test_ties_that_are_not_wrong_are_another_protocol() -> None:
    check(run_of("pascal50s", CIDER, ties="half"), "mean", 80.1, "ties count half")


def test_scores_for_some_images_have_no_number() -> None:
    """Composite with Flickr8k's images alone is a quarter of it."""
    log = run_of("composite", judged(PAPER))
    (result,) = log.results.values()
    for share, value, word in ((0.75, None, "75 %"), (9 / 11_985, 66.0, "")):
        failed = replace(result.measures["failed"], value=share)
        changed = replace(result, measures={**result.measures, "failed": failed})
        check(replace(log, results={"a": changed}), "tau_c", value, word)


def test_a_judge_has_the_numbers_of_its_own_model_only() -> None:
    for model, paper in {
        QWEN: "Qwen2-VL-7B-Instruct",
        "Qwen2-VL-7B-Instruct": "Qwen2-VL-7B-Instruct",  # a folder
        "llava-hf/llava-next-72b-hf@localhost:8000": "LLaVA-NeXT-72B",  # a server
        "llava-v1.6-34b-hf": "LLaVA-NeXT-34B",
    }.items():
        match = match_published(run_of(EXPERT, judged(PAPER, model)), "a", "tau_c")
        assert (match.model, match.comparable) == (paper, True)
    for model in ("discode-embedded", "internvl-converted", "me/llava-next-72b-hf"):
        assert paper_model(model) == ""
        for method in ("paper", "raw", "fleur", "smoothing", "kl"):
            check(run_of(EXPERT, judged(method, model)), "tau_c", None, model)
    assert all(cell.model for cell in published_cells() if cell.system.endswith("fleur"))


def test_every_cell_of_a_benchmark_can_be_reached() -> None:
    """Each row of the judges' tables is what some run gets: none is there in vain."""
    methods = [
        "raw", "fleur", "smoothing", "paper", "kl", "no-cross-entropy", "no-divergence",
        "jensen-shannon", "beta", "renyi", *(f"paper:sigma2={s}" for s in (1, 0.5, 0.05, 0.01)),
    ]  # fmt: skip
    hubs = [
        "llama3-llava-next-8b-hf", "llava-v1.6-vicuna-13b-hf", "llava-v1.6-34b-hf",
        "llava-next-72b-hf", "InternVL2_5-8B", "InternVL2_5-78B", "Qwen2-VL-7B-Instruct",
        "Qwen2-VL-72B-Instruct", "cogvlm2-llama3-chat-19B", "MiniCPM-V-2_6", "llava-1.5-13b-hf",
    ]  # fmt: skip
    log = run_of(EXPERT, judged("raw"))
    (result,) = log.results.values()
    wanted = {
        (c.system, c.model, c.value)
        for c in published_cells(column=f"{EXPERT} tau_c")
        if c.model.startswith(("LLaVA", "Intern", "Qwen", "Cog", "Mini"))
    }
    reached = set()
    for hub in hubs:
        for method in methods:
            for scale in ("unit", "five", "ten", "letters"):
                if method == "fleur" and scale != "unit":
                    continue
                for references in ("none", "all"):
                    signature = judged(method, hub, scale=scale, references=references)
                    changed = replace(log, results={"a": replace(result, signature=signature)})
                    match = match_published(changed, "a", "tau_c")
                    if match.cell:
                        reached.add((match.cell.system, match.model, match.value))
    assert wanted - reached == {("fleur", "LLaVA-NeXT-13B", 51.1)}  # a contradiction


def test_another_m_in_tau_c_is_a_departure_where_it_matters() -> None:
    """The literature's m is scipy's; both are the same unless a metric has fewer values."""
    log = run_of("composite", judged("raw"))
    (result,) = log.results.values()
    count = len(result.value)
    people = Ratings(
        np.arange(count), np.arange(count, dtype=np.float64) % 5, np.zeros(count, np.int64)
    )
    for values, comparable in ((3, False), (5, True), (9, True)):
        scored = replace(result, value=np.arange(count, dtype=np.float64) % values)
        mine = replace(log, judgments=people, results={"a": scored})
        check(mine, "tau_b", 58.3)
        check(mine, "tau_c", 63.1, "" if comparable else "--tau-m scipy")
        scipys = replace(mine, protocol=replace(mine.protocol, tau_m="scipy"))
        check(scipys, "tau_c", 63.1)
