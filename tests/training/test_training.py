"""Every step of training/, on eight pictures with random stand-ins for the pretrained parts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from discode.backends.embedded.tokenizer import Bpe
from tests.helpers.training_stand_ins import command
from training import agreement, common, data, evaluate, packing, pictures, quantise, train
from training.batches import Captions, Sampler, special_tokens
from training.labels import Labels
from training.wrong_words import KINDS, PENALTY, WORDS, splice, swap

pytestmark = [
    pytest.mark.slow,
    # torch's exporter warns about its own use of deprecated names
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_figures_and_weights_are_there(build: Path) -> None:
    figures = json.loads((common.BUILD / "tiny.json").read_text())
    assert {"tau_c", "own_over_hard", "own_over_random"} <= figures.keys()
    saved = torch.load(common.BUILD / "tiny.pt", weights_only=True)
    assert saved["layers"] == 3


def test_a_run_goes_on_from_its_checkpoint(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = torch.save
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)
    command(monkeypatch, train.main, "long", "--steps", 4, "--no-styles", "--seed", 3)
    whole = torch.load(common.BUILD / "long.pt", weights_only=True)["weights"]
    capsys.readouterr()

    class Killed(Exception):
        pass

    def die(state: object, path: Path) -> None:
        original(state, path)
        raise Killed

    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(Killed):
        command(monkeypatch, train.main, "killed", "--steps", 4, "--no-styles", "--seed", 3)
    monkeypatch.setattr(torch, "save", original)
    command(monkeypatch, train.main, "killed", "--steps", 4, "--no-styles", "--seed", 3)
    assert "goes on from step 2" in capsys.readouterr().out
    resumed = torch.load(common.BUILD / "killed.pt", weights_only=True)["weights"]
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_packed_equals_one_caption_at_a_time(build: Path) -> None:
    model, special = evaluate.load("tiny", "cpu"), special_tokens("cpu")
    captions = Captions.load("train", 24, "cpu")
    pixels = pictures.decode("train")[:2]
    rows = torch.arange(10).view(2, 5)
    says = evaluate.ask(model, pixels, captions[rows], special)
    for i in range(2):
        for j in range(5):
            one = rows[i : i + 1, j : j + 1]
            ids, lengths = captions[one]
            short = ids[..., : int(lengths.max())]
            alone = evaluate.ask(model, pixels[i : i + 1], (short, lengths), special)
            assert (alone.stem[0, 0] - says.stem[i, j]).abs().max() < 1e-4
            assert (alone.digits[0, 0] - says.digits[i, j]).abs().max() < 1e-4


def test_the_stems_do_not_see_each_other(build: Path) -> None:
    special = special_tokens("cpu")
    tokens, steps, roles = packing.segment(
        torch.tensor([[[5, 6, 0]]]), torch.tensor([[2]]), special
    )
    assert tokens[0, 0].tolist() == [5, 6, special.end, *special.stems, 0]
    assert steps[0, 0].tolist()[:5] == [0, 1, 2, 3, 3]
    assert roles[0, 0].tolist()[:5] == [0, 0, 0, 1, 2]


def test_captions_stand_without_gaps_and_what_finds_no_room_is_said(build: Path) -> None:
    special = special_tokens("cpu")
    end, zero, one = special.end, *special.stems
    ids, lengths = torch.tensor([[[5, 6, 0], [7, 8, 9]]]), torch.tensor([[2, 3]])
    written = torch.tensor([[4, 0, 0]]), torch.tensor([1])
    layout = packing.lay_out(packing.Packed(ids, lengths, written, room=16), special)
    first, second = [5, 6, end, zero, one], [7, 8, 9, end, zero, one]
    assert layout.tokens[0].tolist() == [special.start, 4, end, *first, *second, 0, 0]
    assert layout.roles[0].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2, -1, -1]
    assert layout.ends.tolist() == [[5, 11]]
    assert layout.kept.tolist() == [[1, 1]]
    short = packing.lay_out(packing.Packed(ids, lengths, written, room=13), special)
    assert short.kept.tolist() == [[1, 0]]
    assert short.tokens[0].tolist() == layout.tokens[0].tolist()[:13]


def test_a_batch_is_a_function_of_its_number(build: Path) -> None:
    config = common.config()
    labels = Labels(config["labels"] | {"hard_ranks": 10}, 8, 4, "cpu")
    captions = [Captions.load(name, 24, "cpu") for name in ("train", "wrong")]
    sampler = Sampler(config, labels, *captions)
    one, other, again = sampler.draw(5), sampler.draw(6), sampler.draw(5)
    assert torch.equal(one.packed.ids, again.packed.ids)
    assert torch.equal(one.target, again.target)
    photos = pictures.decode("train")
    crops = [pictures.augment(photos[b.images], 0.6, b.generator) for b in (one, again)]
    assert torch.equal(*crops)
    assert not torch.equal(one.packed.ids, other.packed.ids)
    own = one.true[:, : config["batch"]["own"]]
    assert torch.equal(own // 5, one.images[:, None].expand_as(own))


def test_agreement_of_the_file_and_of_the_model(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build / "flickr8k"
    monkeypatch.setattr(agreement, "RESAMPLES", 8)
    command(monkeypatch, evaluate.main, "pairs", folder)
    command(monkeypatch, evaluate.main, "read", "tiny")
    model = dict(np.load(common.BUILD / "tiny_test.npz"))
    command(monkeypatch, agreement.main, "read", folder, common.BUILD / "tiny.onnx")
    file = dict(np.load(common.BUILD / "tiny_test.npz"))
    assert model.keys() == file.keys()
    assert file["expert_photo_digits"].shape == (12, 10)  # own captions are dropped
    assert file["crowd_photo_digits"].shape == (18, 10)
    assert np.isfinite(file["expert_sketch_digits"]).all()
    # int8 weights, and pictures that were not recompressed: near, not equal
    assert np.abs(file["crowd_photo_digits"] - model["crowd_photo_digits"]).max() < 0.5
    capsys.readouterr()
    command(monkeypatch, agreement.main, "figures", folder, "tiny")
    table = capsys.readouterr().out
    assert [row.split(" | ")[0] for row in table.splitlines()[3:]] == [
        *(f"| expert_{domain}" for domain in agreement.DOMAINS),
        "| crowd_photo",
    ]
    command(monkeypatch, agreement.main, "dev", folder, common.BUILD / "tiny.onnx")
    assert [row.split(" | ")[0] for row in capsys.readouterr().out.splitlines()[2:]] == [
        f"| {domain}" for domain in agreement.DOMAINS
    ]


def test_resamples_hold_whole_images() -> None:
    image = np.array([3, 1, 3, 2, 1, 3])
    for rows in agreement.resampled(image):
        drawn = image[rows]
        counts = {i: int((drawn == i).sum()) for i in (1, 2, 3)}
        assert counts[1] % 2 == counts[3] % 3 == 0
        assert counts[1] // 2 + counts[2] + counts[3] // 3 == 3


def test_labels_rank_own_captions_first(build: Path) -> None:
    settings = common.config()
    labels = Labels(settings["labels"] | {"hard_ranks": 10}, 8, 4, "cpu")
    images = torch.arange(8)
    own = labels.of(images, images[:, None] * 5)
    assert (own >= settings["labels"]["own_low"]).all()
    assert labels.dev().shape == (4, 20)
    soft = labels.soft(torch.tensor([0.0, 9.8]))
    assert soft.sum(-1).tolist() == pytest.approx([1, 1])
    assert soft[0].argmax() == 0
    assert soft[1].argmax() == 10
    assert not (labels.hard // 5 == images[:, None]).any()


def test_a_wrong_word_is_wrong() -> None:
    rng = random.Random(0)
    references = ["a brown dog runs on the beach", "two dogs play near the ocean"]
    for kind in PENALTY:
        swapped = swap("two brown dogs running on the beach", references, rng, kind)
        assert swapped is not None
        text, found = swapped
        assert found == kind
        changed = set(text.split()) - {"two", "brown", "dogs", "running", "on", "the", "beach"}
        assert len(changed) == 1
        assert not changed & {word for r in references for word in r.split()}
    assert swap("nothing to see", references, rng) is None
    assert splice("a b c d", "e f g h") == "a b g h"
    assert set(WORDS) == set(KINDS)


def test_vocabulary_is_closed_and_spells_everything(build: Path) -> None:
    saved = common.load_json("tokenizer.json")
    bpe = Bpe(saved["tokens"], saved["merges"])
    assert len(set(bpe.tokens)) == len(bpe.tokens)
    for a, b in bpe.merges:
        assert {a, b, a + b} <= set(bpe.tokens)
    for text in (" a red dog", " 猫 🐈 naïve", "\x00"):
        assert all(0 <= i < len(bpe.tokens) for i in bpe.encode(text))
    special = {common.START, common.END, *common.STEMS}
    spelt = {bpe.tokens[i] for i in bpe.encode(f" {common.END} 0. 1. {common.START}")}
    assert not spelt & special  # a caption cannot spell a control token


def test_int8_rows_come_back() -> None:
    weight = np.random.default_rng(0).normal(size=(7, 30)).astype(np.float32)
    q, scale = quantise.quantise(weight)
    back = q.astype(np.float32) * scale.astype(np.float32)[:, None]
    assert np.abs(back - weight).max() <= np.abs(weight).max() / 127
    again, same = quantise.quantise(back)
    assert np.array_equal(again, q)
    assert np.array_equal(same, scale)


def test_styles_are_rendered_once(build: Path) -> None:
    first = pictures.styled("test", "sketch", workers=1)
    assert first.shape == (3, 3, 256, 256)
    assert (common.BUILD / "test_sketch.npy").exists()
    assert torch.equal(pictures.styled("test", "sketch", workers=1), first)


def test_stems_and_words() -> None:
    assert data.stem("running") == data.stem("runs") == data.stem("run")
    assert data.stem("dogs") == "dog"
