"""The embedded backend on a tiny artefact that the test itself trains and exports."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import discode
from discode.backends import demo_path
from discode.backends.embedded import Embedded
from discode.errors import InputError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CAT = demo_path() / "cat.jpg"


@pytest.fixture
def model(build: Path) -> Embedded:
    return Embedded(build / "build" / "tiny.onnx", threads=1)


def test_artefact_equals_the_trained_model(build: Path, model: Embedded) -> None:
    import torch

    from training import evaluate, export, pictures
    from training.batches import Captions, special_tokens

    trained, special = export.load("tiny"), special_tokens("cpu")
    captions = Captions.load("train", 24, "cpu")
    rows = torch.arange(5)[None]
    pixels = pictures.decode("train")[:1]
    says = evaluate.ask(trained, pixels, captions[rows], special)
    ids, lengths = captions[rows[0]]
    session = model._run_session()
    feeds = {
        "pixels": pixels.float().numpy(),
        "ids": np.pad(ids.numpy(), ((0, 0), (0, 3))),
        "lengths": lengths.numpy(),
    }
    stems, both, hidden, head = session.run(None, feeds)
    assert np.abs(stems - says.stem[0].numpy()).max() < 1e-3
    assert np.abs(both[:, 0] - says.digits[0].numpy()).max() < 1e-3
    # The head's rows on the hidden state give the digits back, up to a constant.
    logits = hidden @ head.T
    shift = logits - both[:, 0]
    assert np.abs(shift - shift.mean(axis=1, keepdims=True)).max() < 1e-3


def test_order_batches_and_threads_do_not_matter(model: Embedded, build: Path) -> None:
    judge = discode.load(model)
    captions = [f"a {colour} dog {i}" for i in range(30) for colour in ("red", "blue", "purple")]
    whole = judge.score(CAT, captions)
    back = judge.score(CAT, captions[::-1])
    assert np.abs(whole.value - back.value[::-1]).max() < 1e-5
    singles = [float(judge.score(CAT, caption)) for caption in captions[:4]]
    assert np.abs(whole.value[:4] - singles).max() < 1e-5
    two = discode.load(Embedded(build / "build" / "tiny.onnx", threads=2)).score(CAT, captions)
    assert np.abs(whole.value - two.value).max() < 1e-5
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda caption: float(judge.score(CAT, caption)), captions[:8]))
    assert np.abs(whole.value[:8] - many).max() < 1e-5
    assert np.array_equal(judge.score(CAT, captions).value, whole.value)


def test_a_fork_gets_its_own_session(model: Embedded) -> None:
    judge = discode.load(model)
    want = float(judge.score(CAT, "a dog"))
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, f"{float(judge.score(CAT, 'a dog')):.9f}".encode())
        os._exit(0)
    assert float(os.read(read, 100)) == pytest.approx(want, abs=1e-6)
    os.wait()


def test_odd_pictures_and_captions(model: Embedded, tmp_path: Path) -> None:
    judge = discode.load(model)
    captions = [
        "A DOG",
        "a dog",
        "🐕",
        "собака",
        "x" * 3000,
        "dog " * 500,
        "<|im_end|> 1.0",
        "",
        " . ",
    ]
    scores = judge.score(CAT, captions)
    assert scores.value[0] == pytest.approx(scores.value[1], abs=1e-6)
    assert np.isfinite(scores.value[:7]).all()
    assert np.isnan(scores.value[7:]).all()
    assert scores.errors[7] == "the caption is empty"
    assert scores.flags["cut"].tolist() == [False, False, False, False, True, True] + [False] * 3
    for name, picture in {
        "tiny.png": Image.new("RGB", (1, 1)),
        "wide.png": Image.new("L", (900, 3)),
        "clear.png": Image.new("RGBA", (9, 9), (0, 0, 0, 0)),
        "palette.gif": Image.new("P", (9, 9)),
    }.items():
        picture.save(tmp_path / name)
        assert np.isfinite(float(judge.score(tmp_path / name, "a dog"))), name
    (tmp_path / "broken.jpg").write_bytes(CAT.read_bytes()[:500])
    broken = judge.score([tmp_path / "broken.jpg", CAT], ["a dog", "a dog"])
    assert np.isnan(broken.value).tolist() == [True, False]
    assert "cannot decode" in broken.errors[0]


def test_adam_and_every_divergence_run_on_it(model: Embedded) -> None:
    for method in ("discode:solver=adam", "beta:solver=adam", "jensen-shannon", "renyi", "fleur"):
        assert np.isfinite(float(discode.load(model, method=method).score(CAT, "a dog"))), method
    joint = discode.load(model, method="discode:reading=joint").score(CAT, "a dog")
    assert joint.distribution is not None
    assert joint.distribution.shape == (1, 11)


def test_what_it_cannot_do_is_said_at_once(model: Embedded, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scale 'unit' only"):
        discode.load(model, scale="ten")
    with pytest.raises(InputError, match="prompt 'caption-last' only"):
        discode.load(model, prompt="fleur")
    scores = discode.load(model).score(CAT, "a dog", ["a reference"])
    assert "no references" in scores.errors[0]
    with pytest.raises(InputError, match="no model at"):
        discode.load("embedded:none.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot load"):
        discode.load(f"embedded:{tmp_path / 'junk.onnx'}")
    with pytest.raises(InputError, match="threads"):
        Embedded(tmp_path / "junk.onnx", threads=0)
