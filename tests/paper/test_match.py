"""Which of the paper's cells belongs to a run: a test per way of being another thing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from discode.bench import RunLog
from discode.paper import PaperMatch, match_published, published_cells
from discode.paper.published import paper_model
from discode.prompts import CAPTION_LAST
from discode.signature import Signature
from tests.helpers.published_runs import LLAVA, judged, run_of

EXPERT = "flickr8k-expert"
PAPER = "paper:stem=greedy"
"""The paper's method with nothing of ours: its own rule for 1.0, too."""


def cells(log: RunLog, *measures: str) -> list[PaperMatch]:
    (label,) = log.results
    return [match_published(log, label, measure) for measure in measures]


def values(log: RunLog, *measures: str) -> list[float]:
    """The paper's numbers, all of which must be comparable."""
    found = cells(log, *measures)
    assert [one.reason for one in found] == [""] * len(found)
    assert all(one.comparable for one in found)
    return [one.value for one in found]


def reason(log: RunLog, measure: str = "tau_c") -> str:
    """Why a run has no number of the paper."""
    (found,) = cells(log, measure)
    assert found.cell is None
    assert math.isnan(found.value)
    assert not found.comparable
    return found.reason


def departure(log: RunLog, value: float, measure: str = "tau_c") -> str:
    """Why a run that stands beside a number of the paper is not compared with it."""
    (found,) = cells(log, measure)
    assert found.value == value
    assert not found.comparable
    return found.reason


def test_the_papers_method_has_the_papers_row() -> None:
    for method in (PAPER, f"{PAPER},solver=exact"):
        log = run_of(EXPERT, judged(method))
        assert values(log, "tau_b", "tau_c") == [55.7, 56.1]
    log = run_of("pascal50s", judged(PAPER))
    assert values(log, "HC", "HI", "HM", "MM", "mean") == [62.9, 99.8, 97.9, 77.4, 84.5]
    assert values(run_of("mceval", judged(PAPER)), "quickdraw", "mean") == [78.5, 83.6]
    assert values(run_of("composite", judged("raw")), "tau_c") == [63.1]
    assert values(run_of("composite", judged("fleur")), "tau_c") == [65.7]


CIDER, ROUGE = Signature.of(metric="cider"), Signature.of(metric="rouge-l")
CLIP = Signature.of(metric="clip-s", model="openai/clip-vit-base-patch32")


@pytest.mark.parametrize(
    ("log", "value", "word"),
    [
        (run_of(EXPERT, judged("discode")), 56.1, "tau=1"),
        (run_of(EXPERT, judged("paper-unit:stem=greedy")), 56.1, "alpha_scale=unit"),
        (run_of(EXPERT, judged(f"{PAPER},solver=adam,steps=30")), 56.1, "steps=30"),
        (run_of(EXPERT, judged("paper:stem=graded")), 56.1, "stem=graded"),
        (run_of(EXPERT, judged("paper:stem=joint")), 56.1, "stem=joint"),
        (run_of(EXPERT, judged("smoothing:stem=greedy")), 55.7, "renormalised"),
        (run_of(EXPERT, judged("discode:sigma2=0.01")), 56.1, "alpha_clip=0:1"),
        (run_of(EXPERT, judged(PAPER, prompt=CAPTION_LAST)), 56.1, "prompt (caption-last-"),
        (run_of(EXPERT, judged(PAPER, dtype="4bit-bfloat16")), 56.1, "4bit-bfloat16"),
        (run_of(EXPERT, judged(PAPER, revision="x+448px", dtype="none")), 56.1, "448px"),
        (run_of("composite", CIDER, references="all"), 37.7, "references=all"),
        (run_of(EXPERT, CIDER, experts="average"), 43.9, "experts=average"),
        (run_of(EXPERT, CIDER, self_references="keep"), 43.9, "self_references"),
    ],
)
def test_a_departure_is_shown_and_not_compared(log: RunLog, value: float, word: str) -> None:
    assert word in departure(log, value)


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (run_of(EXPERT, judged("paper", scale="1-7")), "scale=1-7"),
        (
            run_of(EXPERT, judged("paper", "Qwen/Qwen2-VL-7B-Instruct", scale="five")),
            "another model: Qwen2-VL-7B-Instruct",
        ),
        (run_of(EXPERT, judged("paper:sigma2=0.05", scale="five")), "scale=five and sigma2=0.05"),
        (run_of(EXPERT, judged("paper:sigma2=0.2")), "sigma2=0.2"),
        (run_of(EXPERT, judged("paper:alpha=0.3")), "alpha=0.3"),
        (
            run_of(EXPERT, judged("paper:sigma2=0.05,cross_entropy=false")),
            "cross_entropy=false and sigma2=0.05",
        ),
        (
            run_of(EXPERT, judged("no-divergence", "OpenGVLab/InternVL2_5-78B")),
            "divergence=none is of LLaVA-NeXT-72B",
        ),
        (run_of("foil", Signature.of(metric="meteor")), "FOIL"),
        (
            run_of(EXPERT, CLIP.with_fields(model="openai/clip-vit-large-patch14")),
            "another model: openai/clip-vit-large-patch14",
        ),
        (run_of(EXPERT, judged("raw", references="all")), "not in the paper's tables"),
    ],
)
def test_what_the_paper_lacks_has_no_number(log: RunLog, word: str) -> None:
    assert word in reason(log)


def test_ways_of_asking_that_make_no_difference() -> None:
    served = run_of(EXPERT, judged(PAPER, f"{LLAVA}@localhost:8000", dtype="none"))
    assert values(served, "tau_c") == [56.1]
    for model in ("openai/clip-vit-base-patch32", "clip-vit-base-patch32"):
        assert values(run_of(EXPERT, CLIP.with_fields(model=model)), "tau_c") == [51.2]
    assert "ties count half" in departure(run_of("pascal50s", CIDER, ties="half"), 80.1, "mean")
    assert values(run_of("composite", CIDER, ties="half"), "tau_c") == [37.7]  # ratings have none
    # A judge that is shown no references does not care which ones there are.
    assert values(run_of("composite", judged(PAPER), references="all"), "tau_c") == [66.0]
    assert values(run_of("pascal50s", judged(PAPER), references="given"), "mean") == [84.5]
    assert values(run_of("pascal50s", CIDER, draws="2"), "mean") == [80.1]


@pytest.mark.parametrize(
    ("method", "number", "departs"),
    [
        ("paper-adam", 56.1, ["Adam steps"]),
        ("kl:solver=adam", 55.6, ["Adam steps"]),
        ("jensen-shannon", 55.6, ["solved exactly"]),
        ("jensen-shannon:solver=adam", 55.6, ["Adam starts"]),
        ("beta", 55.3, ["solved exactly", "order=2"]),
        ("beta:solver=adam", 55.3, ["Adam starts", "order=2"]),
        ("renyi", 55.9, ["solved exactly", "order=0.5"]),
        ("renyi:order=0.7,solver=adam", 55.9, ["Adam starts", "order=0.7"]),
    ],
)
def test_the_paper_solves_kl_exactly_and_other_divergences_by_adam(
    method: str, number: float, departs: list[str]
) -> None:
    more = "," if ":" in method else ":"
    told = departure(run_of(EXPERT, judged(f"{method}{more}stem=greedy")), number).split("; ")
    assert len(told) == len(departs)
    assert all(text.startswith(words) for text, words in zip(told, departs, strict=True))


@pytest.mark.parametrize(
    ("scale", "numbers"),
    [("five", [54.0, 54.4]), ("1-5", [54.0, 54.4]), ("ten", [55.1, 55.4]),
     ("letters", [54.1, 54.4]), ("unit", [55.7, 56.1])],
)  # fmt: skip
def test_another_scale_has_its_own_row(scale: str, numbers: list[float]) -> None:
    """Case (a): a run on the five-point scale was held against the row of 0.0 to 1.0."""
    # Only the scale from 0.0 to 1.0 has a rule for 1.0.
    method = PAPER if scale == "unit" else "paper"
    assert values(run_of(EXPERT, judged(method, scale=scale)), "tau_b", "tau_c") == numbers
    system = published_cells("rating_appendix", "smoothing", f"{EXPERT} tau_c")
    if scale in ("five", "ten", "letters"):
        (cell,) = (each for each in system if each.setting == f"scale={scale}")
        smoothed = run_of(EXPERT, judged("smoothing", scale=scale))
        assert values(smoothed, "tau_c") == [cell.value]


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("no-cross-entropy", [54.3, 54.6]),
        ("no-divergence", [49.6, 49.9]),
        ("no-adaptive-alpha", [55.2, 55.6]),
        ("paper:alpha=0.5", [55.2, 55.6]),
        ("paper:sigma2=1.0", [55.6, 55.9]),
        ("paper:sigma2=0.5", [55.6, 55.9]),
        ("paper:sigma2=0.05", [55.7, 56.1]),
        ("paper:sigma2=0.01", [55.7, 56.1]),
        ("kl", [55.2, 55.6]),
    ],
)
def test_rows_with_a_setting_meet_runs_made_so(method: str, numbers: list[float]) -> None:
    """Case (b): rows with a setting never matched."""
    more = "," if ":" in method else ":"
    made = judged(f"{method}{more}stem=greedy")
    assert values(run_of(EXPERT, made), "tau_b", "tau_c") == numbers


def test_bertscore_is_the_papers_bert_s() -> None:
    """Case (c)."""

    def made(model: str = "roberta-large", idf: str = "none", measure: str = "f1") -> Signature:
        return Signature.of(metric="bertscore", model=model, layer=17, idf=idf, measure=measure)

    assert values(run_of(EXPERT, made()), "tau_c") == [39.2]
    assert values(run_of("mceval", made()), "infograph") == [58.6]
    assert "another model" in reason(run_of(EXPERT, made("bert-base-uncased")))
    assert departure(run_of(EXPERT, made(idf="set")), 39.2) == "idf=set"
    assert reason(run_of(EXPERT, made()), "tau_b") == "the paper leaves this cell empty"


def test_foils_judges_have_their_models() -> None:
    """Case (d): DISCODE's default model, FLEUR's own, G-VEval's GPT-4o."""
    for references in ("0", "1", "4"):  # a judge that is not shown them
        log = run_of("foil", judged(PAPER), references=references)
        assert values(log, "mean") == [98.2]
    assert values(run_of("foil", judged("fleur", "llava-hf/llava-1.5-13b-hf")), "mean") == [96.8]
    assert "another model" in reason(run_of("foil", judged("fleur")), "mean")
    assert "another model" in reason(
        run_of("foil", judged("paper", "OpenGVLab/InternVL2_5-78B")), "mean"
    )
    shown = Signature.of(metric="ref-g-veval", model="gpt-4o")
    for references, number in (("1", 97.8), ("4", 98.4)):
        departure(run_of("foil", shown, references=references), number, "mean")
    clip = Signature.of(metric="ref-pac-s", model="openai/clip-vit-base-patch32")
    for references, number in (("1", 93.7), ("4", 94.9)):
        assert values(run_of("foil", clip, references=references), "mean") == [number]
    assert reason(run_of("foil", clip, references="0"), "mean") == (
        "the paper leaves this cell empty"
    )


def test_one_model_per_row() -> None:
    """Case (e), and item 6 of what a stranger found: a row never mixes two models."""
    file = Signature.of(metric="scorefile", file="scores.csv")
    small = run_of(EXPERT, file, "ref-pac-s++@ViT-B")
    large = run_of(EXPERT, file, "ref-pac-s++@ViT-L")
    assert values(small, "tau_b", "tau_c") == [55.3, 55.7]
    assert values(large, "tau_c") == [57.9]
    assert reason(large, "tau_b") == "the paper leaves this cell empty"
    told = reason(run_of(EXPERT, file, "ref-pac-s++"))
    assert told.startswith("the paper's is of ViT-L and ViT-B, and the run does not say its model")
    assert "ref-pac-s++@ViT-L" in told
    fleur = run_of("flickr8k-cf", file, "fleur@LLaVA-1.5-13B")
    assert values(fleur, "tau_b") == [38.6]
    assert reason(fleur) == "the paper leaves this cell empty"  # 20.7 is LLaVA-NeXT-72B's
    for label in ("fleur", "discode", "raw", "ref-discode", "g-veval"):
        assert "does not say its model" in reason(run_of(EXPERT, file, label))
    for backbone, number in (("large-patch14", 57.9), ("base-patch32", 55.7)):
        clip = Signature.of(metric="ref-pac-s++", model=f"openai/clip-vit-{backbone}")
        assert values(run_of(EXPERT, clip), "tau_c") == [number]
    plain = Signature.of(metric="pac-s++", model="clip-vit-base-patch32")
    assert reason(run_of(EXPERT, plain)) == "another model: ViT-B; the paper's is of ViT-L"
    other = Signature.of(metric="pac-s++", model="my-clip")
    assert "another model: my-clip" in reason(run_of(EXPERT, other))
    made = {"metric": "polos", "model": "openai/clip-vit-base-patch32", "normalised": "text"}
    assert departure(run_of(EXPERT, Signature.of(**made)), 56.4) == "normalised=text"
    assert values(run_of(EXPERT, file, "polos"), "tau_c") == [56.4]
    assert reason(run_of(EXPERT, file, "mine")) == "not in the paper's tables"
    every = {(c.system, c.model) for c in published_cells() if c.system.endswith("fleur")}
    assert all(model for _, model in every)


def test_other_data_are_not_compared() -> None:
    """Case (f): twelve images of one's own, called mceval, got a difference of -47.27."""
    assert values(run_of("mceval", ROUGE), "mean") == [55.6]
    assert reason(run_of("mceval", ROUGE, size=(12, 12)), "mean") == (
        "other data: 12 images with 12 judgments, where the paper's have 6,000 and 6,000"
    )
    assert "other data" in reason(run_of("foil", judged("paper"), size=(992, 1000)), "mean")
    assert values(run_of("composite", ROUGE, size=(3992, 11_976)), "tau_c") == [32.4]
    assert reason(run_of("custom", ROUGE, size=(6000, 6000)), "mean") == (
        "the paper does not have this benchmark"
    )


def test_scores_for_some_images_are_not_compared() -> None:
    """Composite with Flickr8k's images alone is a quarter of it."""
    log = run_of("composite", judged(PAPER))
    (result,) = log.results.values()
    for share, told in ((0.75, "75 % of the judgments have no score"), (9 / 11_985, "")):
        failed = replace(result.measures["failed"], value=share)
        changed = replace(result, measures={**result.measures, "failed": failed})
        (found,) = cells(replace(log, results={"a": changed}), "tau_c")
        assert (found.value, found.reason) == (66.0, told)


def test_chat_metrics_have_the_numbers_of_their_model() -> None:
    """Case (g): G-VEval by any model was held against GPT-4o's."""

    def asked(model: str, metric: str = "g-veval") -> RunLog:
        return run_of(EXPERT, Signature.of(metric=metric, model=model, prompt="0", top=5))

    for model in ("gpt-4o", "gpt-4o-2024-08-06", "openai:gpt-4o"):
        told = departure(asked(model), 59.7)
        assert told == "the wording of the question is not the authors'"
    for model in ("gpt-4o-mini", "tiny", "Qwen/Qwen2-VL-7B-Instruct"):
        assert "another model" in reason(asked(model))
    assert reason(asked("gpt-4o", "clair")) == "the paper does not say of which model its row is"


def test_a_judge_has_the_numbers_of_its_own_model_only() -> None:
    for model, paper in {
        "Qwen/Qwen2-VL-7B-Instruct": "Qwen2-VL-7B-Instruct",
        "Qwen2-VL-7B-Instruct": "Qwen2-VL-7B-Instruct",  # a folder
        "llava-hf/llava-next-72b-hf@localhost:8000": "LLaVA-NeXT-72B",  # a server
        "llava-v1.6-34b-hf": "LLaVA-NeXT-34B",
    }.items():
        log = run_of(EXPERT, judged(PAPER, model))
        (found,) = cells(log, "tau_c")
        assert (found.model, found.comparable) == (paper, True)
    for model in (
        "discode-embedded",
        "internvl-converted",
        "openai:gpt-4o",
        "me/llava-next-72b-hf",
    ):
        assert paper_model(model) == ""
        for method in ("paper", "raw", "fleur", "smoothing", "kl"):
            assert reason(run_of(EXPERT, judged(method, model))) == f"another model: {model}"


def test_references_make_another_row() -> None:
    for references in ("all", "some"):
        log = run_of(EXPERT, judged(PAPER, references=references))
        assert values(log, "tau_b", "tau_c") == [56.1, 56.5]


def test_where_the_paper_prints_two_numbers_nothing_is_compared() -> None:
    log = run_of(EXPERT, judged("fleur", "llava-hf/llava-v1.6-vicuna-13b-hf"))
    told = departure(log, 52.1)
    assert told == "the paper contradicts itself: 52.1 (llms) and 51.1 (llms_appendix)"
    assert values(log, "tau_b") == [51.8]


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
    found = set()
    for hub in hubs:
        for method in methods:
            for scale in ("unit", "five", "ten", "letters"):
                if method == "fleur" and scale != "unit":
                    continue
                for references in ("none", "all"):
                    made = judged(method, hub, scale=scale, references=references)
                    changed = replace(log, results={"a": replace(result, signature=made)})
                    match = match_published(changed, "a", "tau_c")
                    if match.cell:
                        found.add((match.cell.system, match.model, match.value))
    assert wanted - found == {("fleur", "LLaVA-NeXT-13B", 51.1)}  # a contradiction
