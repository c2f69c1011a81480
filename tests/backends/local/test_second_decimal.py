"""The second decimal, against FLEUR's own loop: generate, one pair at a time, and its rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.load import LocalOptions, open_model
from discode.errors import InputError
from discode.images import open_image
from tests.helpers.local_models import LOCAL_MODEL_MARKS, largest_difference, noise_images
from tests.helpers.tiny_lvlms import UNPACKED, ask, make

pytestmark = LOCAL_MODEL_MARKS

CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night"]
PLANTS = 6


def planted(family: str, folder: Path) -> Iterator[Local]:
    """Models of one family that write different first decimals, then another digit or the end."""
    loaded = open_model(
        str(make(family, folder / family, answers=True)), LocalOptions(device="cpu")
    )
    tokenizer = loaded.processor.tokenizer
    embedding = loaded.model.get_input_embeddings().weight
    head = loaded.model.get_output_embeddings().weight
    before = embedding.clone(), head.clone()
    digits = tokenizer.convert_tokens_to_ids([*"0123456789"])
    numbers = [i for t, i in tokenizer.get_vocab().items() if re.fullmatch(r"\d\d", t)]
    for seed in range(PLANTS):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            embedding.copy_(before[0])
            head.copy_(before[1])
            direction = torch.nn.functional.normalize(torch.randn(head.shape[1]), dim=0)
            embedding[digits[2:]] += 16 * direction
            head[digits] += 2 * direction
            head[tokenizer.eos_token_id] += (1.8, 2.2, 3)[seed % 3] * direction
            head[digits + numbers] += 0.2 * torch.randn_like(head[digits + numbers])
            head[numbers] *= 1 + seed % 2
            head[digits[1]] *= 0.5 if seed else 2  # "0." mostly
        yield Local(loaded, read="forced")


def fleur_loop(backend: Local, pair: Pair, raw: str) -> tuple[str, float]:
    """What FLEUR's script does with one pair: the number generated, and its smoothed score.

    The number begins with ``raw``, whatever else these models would say. FLEUR's model has one
    token per digit; one of several digits counts for its first digit, and for its second where it
    was generated.
    """
    processor, model = backend.runner.processor, backend.runner.model
    vocabulary = processor.tokenizer.get_vocab()
    numbers: dict[str, int] = {t: i for t, i in vocabulary.items() if t.isascii() and t.isdigit()}
    begins = [[vocabulary[raw[0]]], [vocabulary["."]]]
    begins += [[i for token, i in numbers.items() if token[0] == raw[2]]]
    inputs = ask(processor, open_image(pair.image), FLEUR.render(pair.caption, (), UNIT))
    start = inputs["input_ids"].shape[1]
    everything = list(range(len(model.get_output_embeddings().weight)))

    def allowed(_: int, ids: Any) -> list[int]:
        step = len(ids) - start
        return begins[step] if step < len(begins) else everything

    out = model.generate(
        **inputs, max_new_tokens=5, do_sample=False, output_logits=True,
        return_dict_in_generate=True, prefix_allowed_tokens_fn=allowed,
    )  # fmt: skip
    tokens = out.sequences[0, start:].tolist()
    text = processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    found = re.match(r"[01]\.\d+", text)
    assert found, text
    p: list[list[float]] = [logits[0].softmax(-1).tolist() for logits in out.logits]

    def weighted(p: list[float], after: str = "") -> float:
        """Σ d·p(d) over the digits d that follow ``after`` in a token."""
        at = len(after)
        return sum(
            int(t[at]) * p[i] for t, i in numbers.items() if len(t) > at and t.startswith(after)
        )

    if float(found[0]) >= 1:
        return found[0], 0.9 * p[0][numbers["0"]] + p[0][numbers["1"]]
    score = 0.1 * weighted(p[2])
    if len(str(float(found[0][:4]))) > 3:  # "0.80" is 0.8
        first = processor.tokenizer.convert_ids_to_tokens(tokens[2])
        if len(first) == 1:
            score += 0.01 * weighted(p[3])
        else:
            group = sum(p[2][i] for t, i in numbers.items() if t[0] == first[0])
            score += 0.01 * weighted(p[2], first[0]) / group
    return found[0], score


@pytest.mark.parametrize(
    "family",
    [
        "llava_next_qwen2", "llava_next_llama", "qwen2_vl", "gemma3", "gemma3_short_window",
        "llama4", "mllama", "paligemma",
    ],
)  # fmt: skip
def test_fleur_equals_its_own_loop(family: str, tmp_path: Path) -> None:
    images = noise_images((80, 60), (80, 60))
    pairs = [Pair(image, caption) for image in images for caption in CAPTIONS]
    pairs = pairs[:-1]  # images with different numbers of captions
    kinds: set[tuple[str, bool]] = set()
    for backend in planted(family, tmp_path):
        readings = read_all(backend, pairs, FLEUR, UNIT)
        scores = discode.decode(readings, "fleur").value
        stems = readings.stem_logp.argmax(axis=1)
        raw = [f"{b}.{readings.answer_logp[n, b].argmax()}" for n, b in enumerate(stems)]
        said = [fleur_loop(backend, *pair) for pair in zip(pairs, raw, strict=True)]
        assert backend.runner.packed == (family not in UNPACKED)
        assert np.abs(scores - [score for _, score in said]).max() < 1e-5
        assert readings.second_logp is not None
        two = [bool(re.match(r"0\.\d\d", number)) for number, _ in said]
        assert np.isfinite(readings.second_logp).any(axis=1).tolist() == two
        known, kinds = ("0", True) in kinds, kinds | {(n[0], len(n) > 3) for n, _ in said}
        if known or not any(two):
            continue
        backend.runner.one_pass_tokens = 4096
        at_once = read_all(backend, pairs, FLEUR, UNIT)
        backend.runner.batch_captions = 2
        chunks = read_all(backend, pairs, FLEUR, UNIT)
        backend.runner.packed = False
        for other in (at_once, chunks, read_all(backend, pairs, FLEUR, UNIT)):
            assert largest_difference(readings, other) < 1e-4
            np.testing.assert_allclose(readings.second_logp, other.second_logp, atol=1e-4)  # type: ignore[arg-type]
    assert ("0", True) in kinds  # two decimals, and one
    assert ("0", False) in kinds or family == "llama4"


def test_off_is_as_before_and_told_apart(llava: Path, tmp_path: Path) -> None:
    pairs = [Pair(noise_images((80, 60))[0], caption) for caption in CAPTIONS]
    on = Local(llava, device="cpu", read="forced")
    off = Local(llava, device="cpu", read="forced", second_decimal="off")
    assert on.identity.revision == off.identity.revision + "+second"
    readings = read_all(on, pairs, FLEUR, UNIT)
    assert read_all(off, pairs, FLEUR, UNIT).second_logp is None
    assert largest_difference(readings, read_all(off, pairs, FLEUR, UNIT)) == 0
    assert read_all(on, pairs, FLEUR, FIVE).second_logp is None  # whole numbers have no decimals
    with pytest.raises(InputError, match="second_decimal=on"):
        Local(llava, device="cpu", second_decimal="on")
