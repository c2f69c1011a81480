"""Every step of training/, on a few images with random stand-ins for the pretrained parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from discode.backends._embedded.tokenizer import Bpe
from tests.helpers.training_stand_ins import command
from training import (
    agreement,
    common,
    data,
    evaluate,
    export,
    images,
    mix,
    packing,
    plots,
    quantise,
    sources,
    statements,
    stretch,
    train,
    unpack,
    writer,
)
from training.batches import Captions, Sampler, special_tokens
from training.labels import Labels, soft
from training.model import CaptionJudge
from training.train import Guide

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


def test_resamples_hold_whole_images() -> None:
    image = np.array([3, 1, 3, 2, 1, 3])
    for rows in agreement.resampled(image):
        drawn = image[rows]
        counts = {i: int((drawn == i).sum()) for i in (1, 2, 3)}
        assert counts[1] % 2 == counts[3] % 3 == 0
        assert counts[1] // 2 + counts[2] + counts[3] // 3 == 3


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
    kept = build / "kept"
    kept.mkdir()
    shutil.copy(common.BUILD / "pupil.w0", kept)
    command(monkeypatch, unpack.main, kept, "unpacked")
    again = torch.load(common.BUILD / "unpacked.pt", weights_only=True)
    assert again["layers"] == 3
    assert again["weights"].keys() == model.keys()
    for name, value in again["weights"].items():
        assert torch.equal(value, model[name].half()), name
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


def test_nearest_are_of_other_images_whatever_the_block(training_data: Path) -> None:
    labels = Labels(common.config()["labels"], "cpu")
    images_ = torch.arange(labels.images)
    assert not (labels.owner[labels.hard.long()] == images_[:, None]).any()
    again = labels.nearest(10, block=3)  # ties may change places
    near, same = (labels.similarity(images_, hard.long())[0] for hard in (labels.hard, again))
    assert torch.allclose(near, same, atol=1e-5)
    assert (near.diff(dim=1) < 1e-5).all()


def test_soft_targets() -> None:
    target = soft(torch.tensor([[0.0, 9.8]]), torch.tensor([0.8]))
    assert target.sum(-1).flatten().tolist() == pytest.approx([1, 1])
    assert target.argmax(-1).tolist() == [[0, 10]]
    wide = soft(torch.tensor([[5.0]]), torch.tensor([2.0]))
    assert wide.max() < soft(torch.tensor([[5.0]]), torch.tensor([0.8])).max()


def test_held_out_styles_are_never_trained() -> None:
    for run in common.settings()["runs"]:
        augment = common.config(run)["augment"]
        assert augment["styles"].keys() <= {"sketch", "quickdraw", "clipart"}
        assert augment["rough"] + sum(augment["styles"].values()) < 1


def test_drawings_are_seen_as_the_photographs_behind_them(training_data: Path) -> None:
    torch.manual_seed(0)
    model = CaptionJudge(2)
    guide = Guide(model, "cpu")
    photos = torch.randn(2, 3, 224, 224)
    changed = torch.tensor([False, True])
    tokens, e = model.image(photos)
    assert guide.loss(tokens, e, photos, changed).item() == pytest.approx(0, abs=1e-5)
    tokens, e = model.image(photos.flip(3))
    loss = guide.loss(tokens, e, photos, changed)
    row = 1 - torch.cosine_similarity(tokens[1], model.image(photos)[0][1], dim=-1)
    assert 0 < row.mean() < loss
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    grad = model.vision.patch.weight.grad
    assert grad is not None
    assert grad.abs().sum() > 0
    assert all(p.grad is None for p in guide.model.parameters())
    assert guide.loss(tokens, e, photos, torch.zeros(2)).item() == 0


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


@pytest.mark.full
def test_a_stretch_that_is_late_ends_and_makes_what_was_not_brought(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over before it begins, the meanings are missing, nothing was written yet."""
    mix.write("former", ["pupil"])
    before = np.load(common.BUILD / "train_meaning.npz")["q"]
    (common.BUILD / "train_meaning.npz").unlink()
    monkeypatch.setattr(evaluate, "dev", lambda *_: {})
    asked = common.load_json("questions.json")
    with pytest.raises(SystemExit):  # no such run
        command(monkeypatch, stretch.main, "pupil,nobody", 0)
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
    # The file is the model, but for products in int8.
    assert np.abs(says[0][0] - written["stem"][0]).max() < 0.3
    assert np.abs(says[1][0] - written["digits"][0]).max() < 0.3
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
