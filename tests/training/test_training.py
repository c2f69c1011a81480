"""Every step of training/, on a few images with random stand-ins for the pretrained parts."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from discode._paper.styles import render
from discode.backends._embedded.tokenizer import Bpe
from tests.helpers.training_stand_ins import command
from training import (
    agreement,
    common,
    data,
    evaluate,
    export,
    images,
    labels,
    mix,
    packing,
    people,
    plots,
    quantise,
    sources,
    statements,
    stretch,
    teachers,
    train,
    unpack,
    writer,
)
from training.batches import Captions, Sampler, special_tokens
from training.labels import SAME_WORDS, Labels, soft
from training.sources import MOST
from training.wrong_words import splice

pytestmark = [
    pytest.mark.slow,
    # torch's exporter warns about its own use of deprecated names
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_packed_equals_one_caption_at_a_time(build: Path) -> None:
    model, special = evaluate.load("pupil", "cpu"), special_tokens("cpu")
    captions = Captions.load("train", 24, "cpu")
    pixels = images.rendered("dev")[:2]
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


def test_the_stems_do_not_see_each_other(training_data: Path) -> None:
    special = special_tokens("cpu")
    tokens, steps, roles = packing.segment(
        torch.tensor([[[5, 6, 0]]]), torch.tensor([[2]]), special
    )
    assert tokens[0, 0].tolist() == [5, 6, special.end, *special.stems, 0]
    assert steps[0, 0].tolist()[:5] == [0, 1, 2, 3, 3]
    assert roles[0, 0].tolist()[:5] == [0, 0, 0, 1, 2]


def test_captions_stand_without_gaps_and_what_finds_no_room_is_said(training_data: Path) -> None:
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


def test_resamples_hold_whole_images() -> None:
    image = np.array([3, 1, 3, 2, 1, 3])
    for rows in agreement.resampled(image):
        drawn = image[rows]
        counts = {i: int((drawn == i).sum()) for i in (1, 2, 3)}
        assert counts[1] % 2 == counts[3] % 3 == 0
        assert counts[1] // 2 + counts[2] + counts[3] // 3 == 3


def test_halves_of_two_captions() -> None:
    assert splice("a b c d", "e f g h") == "a b g h"


def test_vocabulary_is_closed_and_spells_everything(training_data: Path) -> None:
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
    weight = np.random.default_rng(0).normal(size=(200, 30)).astype(np.float32)
    weight *= np.geomspace(1, 1e-7, 200, dtype=np.float32)[:, None]  # hardly used ones, too
    q, scale = quantise.quantise(weight)
    back = q.astype(np.float32) * scale.astype(np.float32)[:, None]
    assert np.abs(back - weight).max() <= np.abs(weight).max() / 127
    again, same = quantise.quantise(back)
    assert np.array_equal(again, q)
    assert np.array_equal(same, scale)


def test_one_step_of_a_run(training_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest pass through the trainer, which `make test` makes."""
    monkeypatch.setattr(evaluate, "dev", lambda *_: {})
    command(monkeypatch, train.main, "deep", "--steps", 1)
    saved = torch.load(common.BUILD / "deep.pt", weights_only=True)
    assert saved["layers"] == 3
    assert all(torch.isfinite(value).all() for value in saved["weights"].values())


def test_figures_and_weights_are_there(build: Path) -> None:
    figures = json.loads((common.BUILD / "pupil.json").read_text())
    assert figures.keys() == {"flickr8k", "photographs"}
    assert {"tau_c", "nearest", "random", "after: score"} <= figures["flickr8k"].keys()
    saved = torch.load(common.BUILD / "pupil.pt", weights_only=True)
    assert saved["layers"] == 3


def test_a_run_may_start_from_a_finished_file_and_from_a_mean(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = common.BUILD / "tiny.onnx"
    command(monkeypatch, unpack.main, file, "unpacked")
    with torch.no_grad():
        model = export.load("pupil").state_dict()
    found = torch.load(common.BUILD / "unpacked.pt", weights_only=True)
    assert found["layers"] == 3
    assert {name for name in model if name.endswith("weight")} <= found["weights"].keys()
    for name, value in found["weights"].items():
        assert torch.allclose(value.float(), model[name], rtol=1e-3, atol=1e-6), name
    tokenizer = common.load_json("tokenizer.json")
    assert data.vocabulary_of(file).tokens == tokenizer["tokens"]
    assert [list(pair) for pair in data.vocabulary_of(file).merges] == tokenizer["merges"]
    runs = ["deep", "pupil"]
    (_, one), (_, other), (_, mean) = mix.mean(runs[:1]), mix.mean(runs[1:]), mix.mean(runs)
    for name, value in mean.items():
        assert torch.allclose(value, (one[name] + other[name]) / 2, atol=1e-6), name
    command(monkeypatch, mix.main, "mixed", *runs, "--shares", 0.25, 0.75)
    mixed = torch.load(common.BUILD / "mixed.pt", weights_only=True)["weights"]
    for name, value in mixed.items():
        wanted = 0.25 * one[name] + 0.75 * other[name]
        assert torch.allclose(value.float(), wanted, rtol=1e-3, atol=1e-3), name


def test_a_run_goes_on_from_its_checkpoint(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(evaluate, "dev", lambda *_: {})
    settings = common.settings()
    for name in ("whole", "killed"):
        settings["runs"][name] = settings["runs"]["pupil"]
    monkeypatch.setattr(common, "settings", lambda: settings)
    command(monkeypatch, train.main, "whole", "--steps", 4)
    capsys.readouterr()
    save, kept = train.Pupil.save, []

    class Killed(Exception):
        pass

    def die(pupil: train.Pupil) -> None:
        kept.append(pupil.name)
        raise Killed

    monkeypatch.setattr(train.Pupil, "save", die)
    with pytest.raises(Killed):
        command(monkeypatch, train.main, "killed", "--steps", 4)
    monkeypatch.setattr(train.Pupil, "save", save)
    command(monkeypatch, train.main, "killed", "--steps", 4)
    assert "goes on from step 2" in capsys.readouterr().out
    whole, resumed = (
        torch.load(common.BUILD / f"{name}.pt", weights_only=True)["weights"]
        for name in ("whole", "killed")
    )
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def sampler_of(**batch: float) -> Sampler:
    config = common.config("pupil")
    config["batch"] |= batch
    return Sampler(config, Labels(config["labels"], "cpu"))


def test_without_decoded_images_training_says_what_to_run(
    training_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(common.BUILD, tmp_path / "build", ignore=shutil.ignore_patterns("*.npy"))
    monkeypatch.setattr(common, "BUILD", tmp_path / "build")
    with pytest.raises(SystemExit, match=r"training\.images"):
        images.Photos([], "cpu").wait(patience=0)


def test_a_batch_is_a_function_of_its_number(training_data: Path) -> None:
    sampler = sampler_of()
    one, other, again = sampler.draw(5), sampler.draw(6), sampler.draw(5)
    assert torch.equal(one.packed.ids, again.packed.ids)
    assert torch.equal(one.target, again.target)
    photos = images.Photos([], "cpu")
    photos.wait()
    rough = torch.tensor([0, 2])
    crops = [images.augment(photos.pixels[b.images], 0.6, b.generator, rough) for b in (one, again)]
    assert torch.equal(*crops)
    assert not torch.equal(one.packed.ids, other.packed.ids)


def test_sources_have_their_shares_and_no_caption_stands_twice(training_data: Path) -> None:
    sampler = sampler_of()
    source = torch.tensor(common.load_json("images.json")["train_source"])
    for number in range(20):
        batch = sampler.draw(number)
        assert source[batch.images].tolist() == [0, 0, 1]
        for image, row in zip(batch.images, batch.true, strict=True):
            slots = row[: sampler.config["batch"]["own"]]
            own = [c for c in slots.tolist() if sampler.labels.owner[c] == image]
            assert len(set(own)) == len(own) == min(3, int(sampler.labels.count[image]))


def test_words_around_a_caption_keep_its_target(training_data: Path) -> None:
    plain, loud = sampler_of(extra=0.0).draw(3), sampler_of(extra=1.0).draw(3)
    assert torch.equal(plain.target, loud.target)
    assert (loud.packed.lengths[:, :-1] > plain.packed.lengths[:, :-1]).all()
    assert torch.equal(loud.true, plain.true)  # the meaning wanted is the plain caption's


def test_own_captions_are_good_and_few_references_leave_doubt(training_data: Path) -> None:
    labels = Labels(common.config()["labels"], "cpu")
    assert ((labels.own >= 8) & (labels.own <= 9.5)).all()
    few = torch.nonzero(labels.count < labels.settings["own_references"])[:, 0]
    assert labels.count[few].tolist() == [1, 2, 1]
    assert (labels.spread(few) == labels.settings["spread_few"]).all()
    own = labels.of(few, labels.first[few][:, None])
    assert torch.equal(own[:, 0], labels.own[labels.first[few]])
    assert soft(own, labels.spread(few))[..., 10].max() < 0.5  # not all of them are perfect


def test_people_set_the_scale(training_data: Path) -> None:
    scale = common.load_json("people.json")["scale"]
    assert len(scale) == MOST + 1
    assert scale != people.PLAIN
    names = common.load_json("images.json")["dev"]
    rated = people.rated(names)
    assert len(rated) == 12
    assert {row[2] for row in rated} == {0, 2, 4, 6, 8, 10}
    scaling = {row[0] for row in people.calibrating(names)}
    asked = common.load_json("questions.json")
    choosing = {
        i for i, kind in zip(asked["image"], asked["kind"], strict=True) if kind == "graded"
    }
    assert choosing
    assert scaling
    assert not choosing & scaling


def test_a_fit_finds_the_weights_and_does_not_blow_up() -> None:
    rng = np.random.default_rng(0)
    known = np.column_stack([np.ones(4000), rng.random((4000, 2))])
    weights = people.fit(known, known @ [1.0, 2.0, 3.0])
    assert weights == pytest.approx([1, 2, 3], abs=0.05)
    same = people.fit(np.column_stack([known, known[:, 2]]), known @ [1.0, 2.0, 3.0])
    assert same[2:] == pytest.approx([1.5, 1.5], abs=0.05)


def test_nearest_are_of_other_images_whatever_the_block(training_data: Path) -> None:
    labels = Labels(common.config()["labels"], "cpu")
    images_ = torch.arange(labels.images)
    assert not (labels.owner[labels.hard.long()] == images_[:, None]).any()
    again = labels.nearest(10, block=3)  # ties may change places
    near, same = (labels.similarity(images_, hard.long())[0] for hard in (labels.hard, again))
    assert torch.allclose(near, same, atol=1e-5)
    assert (near.diff(dim=1) < 1e-5).all()


def test_alike_are_of_other_images_and_not_the_same(training_data: Path) -> None:
    labels = Labels(common.config()["labels"], "cpu")
    alike = labels.alike(3, block=4)
    rows = torch.arange(len(labels.owner))
    likeness = (labels.words[rows][:, None] * labels.words[alike]).sum(-1)
    others = labels.owner[alike] != labels.owner[rows][:, None]
    fits = others & (likeness <= SAME_WORDS)
    assert fits[:, 0].any()
    table = (labels.words @ labels.words.T).masked_fill(labels.owner[:, None] == labels.owner, -1)
    table[table > SAME_WORDS] = -1
    best = table.amax(1)
    assert torch.allclose(likeness[:, 0][fits[:, 0]], best[fits[:, 0]], atol=1e-5)
    assert (best[~fits[:, 0]] == -1).all()  # a caption that all others are too near to has none


def test_soft_targets() -> None:
    target = soft(torch.tensor([[0.0, 9.8]]), torch.tensor([0.8]))
    assert target.sum(-1).flatten().tolist() == pytest.approx([1, 1])
    assert target.argmax(-1).tolist() == [[0, 10]]
    wide = soft(torch.tensor([[5.0]]), torch.tensor([2.0]))
    assert wide.max() < soft(torch.tensor([[5.0]]), torch.tensor([0.8])).max()


def test_the_schedule_ends_where_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = train.Schedule(10, 99, warmup=1)
    assert [by_steps.done(step) for step in (0, 5, 10)] == [0, 0.5, 1]
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    by_time = train.Schedule(None, 2, warmup=4)
    assert by_time.done(0) == 0
    now[0] += 500  # the first steps compile: not counted
    assert by_time.done(train.UNTIMED) == 0
    now[0] += 60
    assert by_time.done(9) == pytest.approx(0.5)
    assert train.Schedule(None, 2, 4, elapsed=by_time.elapsed).done(9) == pytest.approx(0.5)
    rates = [by_time.rate(step, done) for step, done in ((0, 0.0), (3, 0.0), (50, 0.5), (99, 1.0))]
    assert rates == pytest.approx([0.25, 1.0, 0.51, 0.02])


def test_held_out_styles_are_never_trained() -> None:
    for run in common.settings()["runs"]:
        augment = common.config(run)["augment"]
        assert augment["styles"].keys() <= {"sketch", "quickdraw", "clipart"}
        assert augment["rough"] + sum(augment["styles"].values()) < 1


def test_images_arrive_in_parcels_and_styles_have_their_shares(training_data: Path) -> None:
    photos = images.Photos(["sketch"], "cpu")
    photos.wait()
    while photos.share["sketch"] == 0:
        photos.arrive()
    assert photos.pixels.shape == (12, 256, 256, 3)
    about = common.load_json("images.json")
    for name in images.parcels():
        numbers, files = images.parcel(name)
        for number, file in zip(numbers, files, strict=True):
            decoded = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            assert np.array_equal(photos.pixels[number].numpy(), decoded), about["train"][number]
    numbers, files = images.parcel(images.parcels()[0])
    rows = photos.row["sketch"]
    assert torch.nonzero(rows >= 0)[:, 0].tolist() == sorted(numbers.tolist())
    with Image.open(io.BytesIO(files[0])) as first:
        wanted = np.asarray(render(first, "sketch", seed=int(numbers[0])))
    assert np.array_equal(photos.styled["sketch"][rows[numbers[0]]].numpy(), wanted)
    chosen = torch.from_numpy(numbers).long().repeat(200)
    shares = {"styles": {"sketch": 0.3}, "rough": 0.25, "rendered": 1.0}
    pixels, rough = train.restyle(photos, chosen, shares, 0)
    drawn = (pixels == photos.styled["sketch"][rows[chosen]]).flatten(1).all(1)
    assert 0.2 < drawn.float().mean() < 0.4
    assert torch.equal(pixels[~drawn], photos.pixels[chosen][~drawn])
    assert 0.15 < len(rough) / len(chosen) < 0.35
    assert not drawn[rough].any()


def test_rough_images_stay_images_and_no_row_leaks_into_another() -> None:
    x = torch.rand(40, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[1:] = 0.5
    rough, again = (images.roughen(each, torch.Generator().manual_seed(1)) for each in (x, other))
    assert rough.shape == x.shape
    assert ((rough >= 0) & (rough <= 1)).all()
    assert torch.equal(rough[0], again[0])
    assert (rough - x).abs().flatten(1).amax(1).min() > 0


def test_one_hump_has_the_mean_and_one_top() -> None:
    said = torch.softmax(3 * torch.randn(500, 11, generator=torch.Generator().manual_seed(0)), -1)
    bell = train.one_hump(said)
    values = torch.arange(11.0)
    assert torch.allclose(bell.sum(-1), torch.ones(500))
    assert torch.allclose((bell * values).sum(-1), (said * values).sum(-1), atol=0.2)
    before = values[1:] <= bell.argmax(-1, keepdim=True)
    assert torch.where(before, bell.diff(dim=-1) >= 0, bell.diff(dim=-1) <= 0).all()


def test_a_spoiled_caption_knows_what_it_was(training_data: Path) -> None:
    sampler = sampler_of()
    batch = sampler.draw(3)
    assert batch.spoiled.any()
    for image, whole, spoiled in batch.spoiled.nonzero().tolist():
        assert batch.true[image, whole] >= 0
        alike = int(batch.true[image, spoiled])
        if alike >= 0:
            assert sampler.labels.owner[alike] != batch.images[image]
            continue
        wanted = (batch.target[image] * torch.arange(11)).sum(-1)
        assert wanted[whole] > wanted[spoiled]


def test_boxes_answers_and_verbs_tell_what_is_true() -> None:
    boxes = statements.Boxes.__new__(statements.Boxes)
    boxes.count, boxes.largest = (
        {"a.png": {"dog": 1, "cup": 3}},
        {"a.png": {"dog": 0.4, "cup": 0.1}},
    )
    boxes.things = ["bed", "bird", "boat", "bus", "cake", "car", "cup", "dog", "kite", "pizza"]
    boxes.beside = {"dog": {"car": 3.0, "bed": 1.0}, "cup": {"bed": 2.0}}
    rng = random.Random(0)
    for _ in range(30):
        for text, rating in statements.of_boxes("a.png", ["a bus"], boxes, rng):
            words = set(text.split())
            assert "bus" not in words  # a caption says it, boxes do not
            negative, named = "no" in words, words & {"dog", "dogs", "cup", "cups"}
            if not named:
                assert rating == (statements.TRUE_LOW if negative else statements.ABSENT)
            elif negative:
                assert rating == statements.ABSENT
            elif words & {"two", "four", "five"} or {"three", "dogs"} <= words:
                assert rating <= statements.WRONG_COUNT[0]
    row = {"items": [{"type": "color", "answer": "red", "statement": "The dog is red."}]}
    answers = {"color": ["blue", "red", "green", "white"]}
    told = dict(statements.of_answers(row, ["a white dog"], answers, rng))
    wrong = {text: rating for text, rating in told.items() if "red" not in text}
    assert told["the dog is red"] == statements.STATED
    assert wrong.keys() <= {"the dog is blue", "the dog is green"}
    assert set(wrong.values()) == {statements.SWAPPED["color"]}
    verbs = {"people_doing": {"run": 1, "hold": 2}, "nobody": ["ski"]}
    doing = dict(statements.of_verbs(verbs, rng))
    (yes,) = (rating for text, rating in doing.items() if "running" in text)
    (no,) = (rating for text, rating in doing.items() if "skiing" in text)
    assert yes > 7 > 2 > no


def test_a_shorter_caption_is_a_little_worse() -> None:
    caption = "two brown dogs playing in the snow near a fence"
    for seed in range(20):
        text, points = statements.shortened(caption, random.Random(seed)) or ("", 0.0)
        assert len(text.split()) < len(caption.split())
        assert set(text.split()) <= set(caption.split())
        assert 0.5 < points < 2.5
    assert statements.shortened("a dog", random.Random(0)) is None
    assert statements.specificity(caption) > statements.specificity("a dog")


def test_a_broader_word_says_less() -> None:
    caption = "a dog and a cat on a red couch"
    found = {statements.broader(caption, random.Random(seed)) for seed in range(20)}
    assert found == {"an animal and a cat on a red couch", "a dog and an animal on a red couch"}
    assert statements.broader("a red couch", random.Random(0)) is None


def test_charts_are_drawn_with_right_and_wrong_captions(
    training_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, plots.main, tmp_path / "plots", 0)
    command(monkeypatch, plots.main, tmp_path / "plots", 30)
    items = sources.read(tmp_path / "plots")
    assert [len(items[split]) for split in ("train", "dev", "test")] == [28, 2, 0]
    for item, made in zip(items["train"], statements.make(items["train"], seed=0), strict=True):
        with Image.open(item.path) as image:
            colours = image.convert("RGB").getcolors(1 << 20)
        assert colours is not None
        assert len(colours) > 2  # more than axes on paper
        assert not set(item.captions) & set(item.wrong)
        assert {dict(made)[text] for text in item.wrong} == {statements.WRONG}


def test_captions_that_only_sound_alike_are_not_held_against_each_other(
    training_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = common.load_json("images.json")
    monkeypatch.setattr(labels, "UNALIKE", (about["sources"][1],))
    made = Labels(common.config()["labels"], "cpu")
    source = torch.tensor(about["train_source"])
    assert (source[made.owner[made.hard[source == 1][:, :5].long()]] == 0).all()
    near = source[made.owner[made.near[source[made.owner] == 1][:, :5]]]
    assert (near == 0).all()


def test_what_a_model_writes_costs_what_the_captioning_loss_says(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, special = evaluate.load("pupil", "cpu"), special_tokens("cpu")
    pixels = images.rendered("dev")[:2]
    drawn, said = writer._drawn, []

    def record(logits: torch.Tensor, temperature: float) -> torch.Tensor:
        said.append(logits.log_softmax(-1))
        return drawn(logits, temperature)

    monkeypatch.setattr(writer, "_drawn", record)
    ids, lengths = writer.write(model, pixels, special, temperature=1.0, longest=5)
    nothing = torch.zeros(1, 1, 8, dtype=torch.long), torch.ones(1, 1, dtype=torch.long)
    for row, length in enumerate(lengths.tolist()):
        text = ids[row, :length]
        packed = packing.Packed(*nothing, (text[None], lengths[row : row + 1]))
        with torch.no_grad():
            shown = images.normal(pixels[row : row + 1])
            loss = packing.run(model, shown, packed, special).caption_loss
        assert loss is not None
        tokens = [*text.tolist(), special.end]
        told = [said[step][row, token].item() for step, token in enumerate(tokens)]
        assert float(loss) == pytest.approx(-np.mean(told), rel=1e-4)
    bpe = Bpe(**common.load_json("tokenizer.json"))
    ids = torch.tensor([bpe.encode(" red dog")])
    assert writer.spelt(ids, torch.tensor([ids.shape[1]]), bpe.tokens) == ["red dog"]


def test_teachers_are_weighed_and_machines_pay_for_what_is_not_there(build: Path) -> None:
    config = common.config("pupil")
    world = train.World(config, "cpu")
    world.photos.wait()
    sampler = Sampler(config, world.labels, world.lists)
    before = sampler.pool.rating.clone()
    teachers.learn_from(sampler, ["former"], world)
    pool, lists = sampler.pool, sampler.lists
    assert pool.captions.shape[1] == before.shape[1] + config["pool"]["machine"]
    assert not torch.equal(pool.rating[:, : before.shape[1]], before)
    assert ((pool.rating >= 0) & (pool.rating <= 9.5)).all()
    written = pool.captions[:, -config["pool"]["machine"] :] - lists.machine
    assert (written >= 0).all()
    owners = lists.machine_owner[written]
    assert (owners == torch.arange(len(owners))[:, None]).all()
    assert lists.machine_penalty[0] == 2.0  # "two cars", of which no box knows
    count = len(common.config()["write"]["temperatures"])
    assert len(lists.machine_owner) == 1 + 12 * count  # another LVLM's, and some of each image
    limit = float(config["labels"]["other_high"]) - config["write"]["weak"]
    assert (pool.rating[:, -config["pool"]["machine"] :] <= limit + 1e-4).all()
    batch, machine = sampler.draw(0), config["batch"]["machine"]
    first = sum(config["batch"][kind] for kind in ("own", "near", "hard"))
    beaten = batch.spoiled[:, :, first : first + machine]
    assert beaten.any()
    image, above, _ = beaten.nonzero(as_tuple=True)
    assert (world.labels.owner[batch.true[image, above]] == batch.images[image]).all()


def test_what_is_in_an_image_is_told_from_its_tokens(build: Path) -> None:
    labels = Labels(common.config()["labels"], "cpu")
    boxes = statements.Boxes()
    seen = train.Seen(labels, boxes)
    names = common.load_json("images.json")["train"]
    texts = common.load_json("captions.json")["train"]
    words = data.TfIdf(texts)
    for image, name in enumerate(names):
        own = " ".join(texts[labels.first[image] : labels.first[image + 1]])
        things = [thing in boxes.count.get(name, ()) for thing in boxes.things]
        told = [word in words.stems(own) for word in words.words]
        assert seen.there[image].tolist() == things + told
        assert bool(seen.known[image, 0]) == (name in boxes.count)
        assert bool(seen.known[image, -1]) == (labels.count[image] >= train.TELLING)
    images, width = torch.tensor([0, 1]), seen.there.shape[1]
    head = torch.nn.Linear(4, width)
    torch.nn.init.zeros_(head.weight)
    head.bias.data.fill_(-np.log(3))  # three tokens of a third each: the odds are even
    loss = seen.loss(head, torch.randn(2, 3, 4), images)
    known, there = seen.known[images], seen.there[images]
    assert float(loss) == pytest.approx(np.log(2) * int(known.sum()) / int((known & there).sum()))


def test_teachers_are_asked_once_when_the_photographs_have_come(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], bool]] = []

    def learn(_: object, names: list[str], world: train.World) -> None:
        asked.append((names, bool(world.photos.ready.all())))

    monkeypatch.setattr(train, "learn_from", learn)
    settings = common.settings()
    settings["runs"]["late"] = settings["runs"]["pupil"]
    monkeypatch.setattr(common, "settings", lambda: settings)
    world = train.World(common.config("late"), "cpu")
    train.train(world, "late", train.prepare(world, "late", styles=True), steps=1)
    assert asked == [(["former"], True)]


@pytest.mark.full
def test_a_stretch_that_is_late_ends_and_makes_what_was_not_brought(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over before it begins, the meanings are missing, nothing was written yet."""
    mix.write("former", ["pupil"])
    before = np.load(common.BUILD / "train_meaning.npz")["q"]
    (common.BUILD / "train_meaning.npz").unlink()
    monkeypatch.setattr(evaluate, "dev", lambda *_: {})
    monkeypatch.setattr(evaluate, "test", lambda *_: None)
    asked = common.load_json("questions.json")
    for words in (("pupil,nobody", 0), ("pupil", 0)):  # no such run, no text files of Flickr8k
        with pytest.raises(SystemExit):
            command(monkeypatch, stretch.main, *words)
    (common.BUILD / "judged").mkdir()
    command(monkeypatch, stretch.main, "pupil,second", 0, 0)
    assert np.array_equal(np.load(common.BUILD / "train_meaning.npz")["q"], before)
    kinds = common.load_json("questions.json")["kind"]
    assert set(kinds) - set(asked["kind"]) <= {"machine: likeliest", "machine: drawn"}
    halfway = mix.mean(["former", "pupil"])[1]  # what the second run began with
    kept = torch.load(common.BUILD / "second_0.pt")["weights"]
    assert all(torch.equal(value.half(), kept[name]) for name, value in halfway.items())
    common.save_json("questions.json", asked)


def test_the_file_is_measured(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = build / "flickr8k", common.BUILD / "tiny.onnx"
    for trace in (b"site-packages", b"stack_trace", str(common.HERE).encode()):
        assert trace not in file.read_bytes()
    monkeypatch.setattr(agreement, "RESAMPLES", 8)
    command(monkeypatch, agreement.main, "read", folder, file)
    read = dict(np.load(common.BUILD / "tiny_test.npz"))
    assert read["expert_photo_digits"].shape == (12, 10)  # own captions are dropped
    assert read["crowd_photo_digits"].shape == (18, 10)
    assert np.isfinite(read["expert_sketch_digits"]).all()
    command(monkeypatch, agreement.main, "dev", file)
    asked = common.load_json("questions.json")
    with torch.no_grad():
        model, special = export.load("pupil"), special_tokens("cpu")
    image, text = asked["image"][0], asked["text"][0]
    bpe = Bpe(**common.load_json("tokenizer.json"))
    flat, offset = common.ragged([bpe.encode(" " + text)])
    captions = Captions.pad(flat, offset, 64, "cpu")
    says = evaluate.read_pairs(model, images.rendered("dev"), np.array([image]), captions, special)
    written = np.load(common.BUILD / "tiny_dev.npz")
    assert np.abs(says[0][0] - written["stem"][0]).max() < 1e-3  # the file is the model
    assert np.abs(says[1][0] - written["digits"][0]).max() < 1e-3
    capsys.readouterr()
    command(monkeypatch, agreement.main, "figures", folder, "tiny")
    table = capsys.readouterr().out
    assert [row.split(" | ")[0] for row in table.splitlines()[3:]] == [
        *(f"| expert_{domain}" for domain in agreement.DOMAINS),
        "| crowd_photo",
    ]
    command(monkeypatch, agreement.main, "compare", folder, "tiny")
    rows = capsys.readouterr().out.splitlines()
    assert "| dev | flickr8k, tiny | photographs, tiny |" in rows
    assert sum(row.startswith("| nearest by words | ") for row in rows) == 1
    assert any(row.startswith("| expert, mean of four styles | ") for row in rows)
    assert any(row.startswith("| demo, couples in order | ") for row in rows)
    page = build / "card.md"
    page.write_text("a\n<!-- agreement card: begin --><!-- agreement card: end -->\nb")
    command(monkeypatch, agreement.main, "card", folder, "tiny", "--into", page)
    text = page.read_text()
    assert text.startswith("a\n")
    assert text.endswith("\nb")
    assert "| Expert, painting, τ_c (style held out) | " in text
    assert "| own above 0.8 | " in text
    command(monkeypatch, agreement.main, "decoders", folder, file)
    assert [row.split(" | ")[0] for row in capsys.readouterr().out.splitlines()[2:]] == [
        f"| {domain}" for domain in agreement.DOMAINS
    ]
