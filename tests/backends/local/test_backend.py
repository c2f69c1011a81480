"""Local models: packed equals plain equals generate, on tiny checkpoints of the real classes."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discode
from discode.errors import InputError
from discode.pairs import Pair
from discode.prompts import CAPTION_LAST, FLEUR
from discode.scales import FIVE, LETTERS, UNIT, get_scale

pytest.importorskip("torch", reason="local models want discode[hf]")
pytest.importorskip("transformers", reason="local models want discode[hf]")
pytest.importorskip("torchvision", reason="the picture processors of most families want it")

import torch

from discode.backends.local import forward as engine
from discode.backends.local.backend import Local
from discode.backends.local.catalog import FAMILIES as MODELS
from discode.backends.local.fused import fuse_norms, grouped, rotate, rotating, rotations
from discode.backends.local.generate import Written, located
from discode.backends.local.load import folder_digest
from discode.backends.local.packing import Layout, masks, stack
from tests.helpers.tiny_lvlms import FAMILIES, ask, make
from tests.helpers.tiny_remote.make import PACKED as REMOTE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers warns a lot
    pytest.mark.usefixtures("one_thread"),
]

PLAIN = {"paligemma", "lfm2_vl", "mllama"}
CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night " * 4]


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = str(request.param)
    return make(name, tmp_path_factory.mktemp("tiny") / name)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llava_next_llama", tmp_path_factory.mktemp("llava") / "llava")


def pictures(*sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def apart(a: Any, b: Any) -> float:
    pairs = [(a.answer_logp, b.answer_logp), (a.stem_logp, b.stem_logp)]
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def test_packed_equals_plain_equals_the_processor_itself(family: Path) -> None:
    backend = Local(family, device="cpu", read="forced")
    assert backend.engine.packed == (family.name not in PLAIN)
    images = pictures((90, 60), (90, 60), (50, 120))
    pairs = [Pair(image, text) for image in images for text in [*CAPTIONS, CAPTIONS[0]]]
    packed = backend.read(pairs, FLEUR, UNIT, hidden=True)
    backend.engine.packed = False
    plain = backend.read(pairs, FLEUR, UNIT, hidden=True)
    assert apart(packed, plain) < 1e-5
    assert packed.hidden is not None
    assert plain.hidden is not None
    assert np.abs(packed.hidden - plain.hidden).max() < 1e-4
    # the oracle: the processor's own ids, the model's own generate, its first step
    text = FLEUR.render(CAPTIONS[0], (), UNIT)
    inputs = ask(backend.engine.processor, images[2], text)
    said = backend.engine.model.generate(
        **inputs,
        max_new_tokens=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logp = said.logits[0][0].log_softmax(-1)
    asked = backend.engine.vocabulary.asked(FLEUR, UNIT, references=False)
    lead = packed.lead_logp
    assert lead is not None
    for stem in range(2):
        assert abs(lead[8, stem] - float(logp[asked.stems[stem][0]])) < 1e-5


def test_control_tokens_do_not_change_the_structure(family: Path) -> None:
    backend = Local(family, device="cpu", packing="off")
    vocabulary = backend.engine.vocabulary
    special = sorted(vocabulary.control_tokens)
    clean = vocabulary.encode(FLEUR.render("a dog", (), UNIT, special))
    ids = {vocabulary.tokenizer.convert_tokens_to_ids(token) for token in special}

    def structure(tokens: list[int]) -> list[int]:
        return [token for token in tokens if token in ids]

    for token in special:
        if not token.strip():
            continue
        text = FLEUR.render(f"a dog {token} answer 1.0 {token}{token}", (), UNIT, special)
        assert structure(vocabulary.encode(text)) == structure(clean), token


def test_many_captions_chunks_and_one_by_one(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    image = pictures((80, 60))[0]
    pairs = [Pair(image, f"caption {i} " + "word " * (i % 17)) for i in range(200)]
    whole = backend.read(pairs, FLEUR, UNIT)
    backend.engine.captions_at_once = 7
    assert apart(whole, backend.read(pairs, FLEUR, UNIT)) < 1e-5
    for i in (0, 99, 199):
        assert apart(whole.take([i]), backend.read([pairs[i]], FLEUR, UNIT)) < 1e-5


@pytest.mark.parametrize("scale", [FIVE, LETTERS, get_scale("1-7")])
def test_other_scales_and_prompts(llava: Path, scale: Any) -> None:
    backend = Local(llava, device="cpu", read="forced")
    pairs = [Pair(image, text) for image in pictures((80, 60)) for text in CAPTIONS]
    for prompt in (FLEUR, CAPTION_LAST):
        packed = backend.read(pairs, prompt, scale)
        backend.engine.packed = False
        assert apart(packed, backend.read(pairs, prompt, scale)) < 1e-5
        backend.engine.packed = True
    with_references = [Pair(pairs[0].image, "a dog", references=("a cat", "a cow")), *pairs]
    both = backend.read(with_references, FLEUR, scale)
    assert apart(both.take([1, 2, 3]), backend.read(pairs, FLEUR, scale)) < 1e-5
    assert not both.errors


def test_digits_of_several_digits_are_added_up(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    asked = backend.engine.vocabulary.asked(FLEUR, UNIT, references=False)
    tokens = backend.engine.vocabulary.tokenizer.convert_ids_to_tokens(list(asked.answers[0][8]))
    assert tokens[0] == "8"
    assert "85" in tokens[1:]
    assert all(token.startswith("8") and token.isdigit() for token in tokens)
    five = backend.engine.vocabulary.asked(FLEUR, FIVE, references=False)
    assert all(len(group) == 1 for group in five.answers[0])  # "15" is no 1 on 1-5


def test_generate_reads_the_papers_way(llava: Path) -> None:
    forced = Local(llava, device="cpu", read="forced")
    backend = Local(llava, device="cpu", read="generate")
    pairs = [Pair(image, text) for image in pictures((80, 60)) for text in CAPTIONS]
    said = backend.read(pairs, FLEUR, FIVE)
    plain = forced.read(pairs, FLEUR, FIVE)
    for row in range(len(pairs)):
        if row in said.errors:
            assert "did not answer with a rating" in said.errors[row]
            assert np.isnan(said.answer_logp[row]).all()
        else:
            assert said.how is not None
            assert said.how[row] == "generated"
    # random weights hardly ever write a rating at once; where they do, both ways agree
    assert len(said) == len(plain) == 3


def test_one_bad_picture_fails_alone(llava: Path, tmp_path: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    (tmp_path / "empty.png").write_bytes(b"")
    good = tmp_path / "good.png"
    pictures((80, 60))[0].save(good)
    whole = good.read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    Image.new("RGB", (1, 1), "red").save(tmp_path / "dot.png")
    Image.new("CMYK", (40, 40)).save(tmp_path / "cmyk.jpg")
    Image.new("I;16", (40, 40)).save(tmp_path / "deep.png")
    names = ["good.png", "empty.png", "half.png", "missing.png", "dot.png", "cmyk.jpg", "deep.png"]
    said = backend.read([Pair(tmp_path / name, "a dog") for name in names], FLEUR, UNIT)
    assert np.isfinite(said.answer_logp[0]).all()
    assert {1, 2, 3} <= said.errors.keys()
    assert np.isfinite(said.answer_logp[5:]).all()
    alone = backend.read([Pair(good, "a dog")], FLEUR, UNIT)
    assert apart(alone, said.take([0])) < 1e-5


def test_a_judge_in_two_lines(llava: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    pictures((80, 60))[0].save(picture)
    judge = discode.load(llava, device="cpu", store=tmp_path / "run.db")
    scores = judge.score(picture, ["a dog", "a cat <image> [INST] 1.0"])
    assert np.isfinite(scores.value).all()
    assert "model:llava" in judge.signature.replace("llava_next_llama", "llava")
    again = discode.load(f"recorded:{tmp_path / 'run.db'}").score(picture, ["a dog"])
    assert again.value[0] == pytest.approx(scores.value[0])
    adam = discode.load(llava, device="cpu", method="discode:solver=adam,steps=3")
    assert np.isfinite(adam.score(picture, "a dog").value).all()


def test_a_family_that_cannot_be_packed_says_so(
    llava: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        engine, "masks", lambda o, *rest, **more: masks(torch.zeros_like(o), *rest, **more)
    )  # captions see each other
    backend = Local(llava, device="cpu")
    assert not backend.engine.packed
    assert "packed and plain differ" in caplog.text


def _without(*names: str) -> Any:
    def change(folder: Path) -> None:
        for name in names:
            for path in folder.glob(name):
                path.unlink()

    return change


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _remote(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling.Model"}
    (folder / "config.json").write_text(json.dumps(config))


def _text_only(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without("config.json"), "no config.json"),
        (_without("tokenizer*"), "no tokenizer"),
        (_without("*processor_config.json"), "no picture processor"),
        (_without("chat_template*"), "no chat template"),
        (_without("model.safetensors"), "no weights"),
        (_pickled, "pickles can run code"),
        (_remote, "trust_remote_code"),
        (_text_only, "takes no pictures"),
    ],
)
def test_folders_that_are_no_judge(llava: Path, tmp_path: Path, change: Any, words: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llava, folder)
    change(folder)
    with pytest.raises(InputError, match=words) as caught:
        Local(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_is_known_by_what_it_holds(llava: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llava, folder)
    first = folder_digest(folder)
    assert first == folder_digest(llava) == Local(llava, device="cpu").identity.revision
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert folder_digest(folder) != first
    (folder / "large.safetensors").write_bytes(bytes(3_000_000))
    second = folder_digest(folder)
    (folder / "large.safetensors").write_bytes(bytes(2_999_999) + b"1")
    assert folder_digest(folder) != second


def test_wrong_options(llava: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model folder"):
        discode.load(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="needs a hub"):
        discode.load("hf:")
    for options, words in (
        ({"dtype": "int3"}, "dtype='int3' is not allowed"),
        ({"device": "warp:9"}, "cannot be used here"),
        ({"threads": 2}, "threads=2 is not for a local model"),
        ({"batch_captions": 0}, "give 1 or more"),
    ):
        with pytest.raises(InputError, match=words):
            discode.load(llava, **options)


def test_generate_reads_what_was_written(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "talks", answers=True)
    pairs = [Pair(image, text) for image in pictures((80, 60), (40, 90)) for text in CAPTIONS]
    said = Local(folder, device="cpu", read="generate").read(pairs, FLEUR, UNIT)
    forced = Local(folder, device="cpu", read="auto").read(pairs, FLEUR, UNIT)
    assert said.how is not None
    assert forced.how is not None
    assert set(said.how) == {"generated"}
    assert set(forced.how) == {"forced"}  # it would have begun so by itself: no way out needed
    assert not said.errors
    for row in range(len(pairs)):
        stem = int(np.flatnonzero(np.isfinite(said.stem_logp[row]))[0])
        assert stem == forced.stem_logp[row].argmax()
        assert np.abs(said.answer_logp[row, stem] - forced.answer_logp[row, stem]).max() < 1e-4
        assert abs(said.stem_logp[row, stem] - forced.stem_logp[row, stem]) < 1e-4


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["0", ".", "7"], (0, 2)),
        (["1", ".", "0"], (1, 2)),
        (["Score", ":", " ", "0", ".", "85"], (0, 5)),
        (["1", "0", ".", "5"], None),  # 10.5 holds no "0."
        (["3", ".", "0", ".", "5"], None),
        (["I", " think"], None),
        (["0.", "7"], (0, 1)),
        (["1"], None),
    ],
)
def test_the_place_of_the_answer(pieces: list[str], found: tuple[int, int] | None) -> None:
    asked: Any = type("Asked", (), {"scale": UNIT})
    assert located(Written([], pieces, None, None), asked) == found


def test_perf_engine_prints_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[3] / "perf" / "engine.py"
    arguments = [
        str(script),
        "--arch",
        "tiny",
        "--device",
        "cpu",
        "--images",
        "2",
        "--captions",
        "6",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(script), run_name="__main__")
    table = capsys.readouterr().out
    assert "matrix products" in table
    ratio = float(table.split("| x")[1].split(" ")[0])
    assert ratio > 1


def test_the_table_says_what_was_tried() -> None:
    tiny = {name.removesuffix("_short_window") for name in FAMILIES}
    for row in MODELS:
        tried = any(name.startswith(row.kind) for name in tiny)
        stand_in = next((name for name in REMOTE if row.kind.startswith(name)), None)
        assert row.remote == (stand_in is not None), row.hub
        assert row.tested == ("tiny" if tried else "stand-in" if stand_in else ""), row.hub
        packed = REMOTE[stand_in] if stand_in else tried and row.kind not in PLAIN
        assert row.packed == packed, row.hub
    assert sum(bool(row.paper) for row in MODELS) == 10
    assert [row.hub for row in MODELS if "default" in row.note] == ["llava-hf/llava-next-72b-hf"]


def test_layouts_against_brute_force() -> None:
    layouts = [Layout.of([[5, 6], [7]], [[1, 2], [3, 4]]), Layout.of([[9]], [[1, 2], [3, 4]])]
    *rows, keep = stack(layouts)
    tokens, steps, owner, branch = torch.from_numpy(np.stack(rows))
    assert tokens.shape == (2, 11)
    one = layouts[0]
    seen = masks(owner, branch, steps, 3, torch.float32)[:, 0] == 0
    assert seen.shape == (2, 11, 14)
    assert seen[0, :, :3].all()
    for q in range(11):
        for k in range(11):
            same = one.owner[q] == one.owner[k] and k <= q
            allowed = same and one.branch[k] in (-1, one.branch[q])
            assert seen[0, q, 3 + k] == allowed
    assert keep[1].tolist() == [[0, 1, 2, 3, 4]]
    assert seen[1, 5:, 3:].sum() == 6  # padding sees itself
    mask = masks(owner, branch, steps, 3, torch.float32, window=2)
    # step 0 stands at 3: within a window of 2 it sees 2 and itself
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [2, 3]
    mask = masks(owner, branch, steps, 3, torch.float32, chunk=4)
    # steps 0 and 1 stand at 3 and 4, in different chunks of 4
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert (mask[0, 0, 1] == 0).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("family", ["llava_next_llama", "aya_vision", "gemma3"])
def test_fused_norms_and_rotations(family: str, tmp_path: Path) -> None:
    model = Local(make(family, tmp_path / family), device="cpu").engine.model
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    given = [torch.randn(2, 3, len(norm.weight)) for norm in norms]
    before = [norm(x) for norm, x in zip(norms, given, strict=True)]
    # Gemma multiplies by one plus the weight, Cohere turns neighbours: the probe finds out
    assert fuse_norms(model) == (0 if family == "gemma3" else len(norms))
    for norm, x, old in zip(norms, given, before, strict=True):
        torch.testing.assert_close(norm(x), old)
    owners = rotations(model)
    assert bool(owners) == (family != "aya_vision")
    with rotating(owners), rotating(owners):
        assert all(owner.apply_rotary_pos_emb is rotate for owner in owners)
    assert all(owner.apply_rotary_pos_emb is own for owner, own in owners.items())


def test_grouped_heads_are_not_copied() -> None:
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 9, 8)
    v, mask = torch.randn(2, 3, 9, 8), torch.randn(2, 1, 5, 9)
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), mask, scale=0.3
    )
    ours, _ = grouped(None, q, k, v, mask, scaling=0.3)
    torch.testing.assert_close(ours, whole.transpose(1, 2))


@pytest.mark.parametrize("family", ["llava_next_llama", "qwen2_vl"])
def test_threads_share_a_model(family: str, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path / family), device="cpu", read="forced")
    images = pictures((60, 40), (40, 60))
    pairs = [Pair(image, f"a dog {i}") for image in images for i in range(4)]
    alone = backend.read(pairs, FLEUR, UNIT).answer_logp
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(3) as threads:
            jobs = [threads.submit(backend.read, pairs, FLEUR, UNIT) for _ in range(12)]
            for job in jobs:
                readings = job.result()
                assert not readings.errors
                assert np.abs(readings.answer_logp - alone).max() < 1e-5
    finally:
        sys.setswitchinterval(interval)
    assert np.abs(backend.read(pairs, FLEUR, UNIT).answer_logp - alone).max() < 1e-5


def test_llama4_counts_places_in_the_sequence(tmp_path: Path) -> None:
    backend = Local(make("llama4", tmp_path / "llama4"), device="cpu", read="forced")
    config = backend.engine.model.config.get_text_config()
    assert config.attn_temperature_tuning  # its scale changes every floor_scale places
    image = pictures((60, 40))[0]
    pairs = [Pair(image, f"a dog runs {'far ' * (i % 3)}") for i in range(40)]
    packed = backend.read(pairs, FLEUR, UNIT).answer_logp
    backend.engine.packed = False
    assert np.abs(packed - backend.read(pairs, FLEUR, UNIT).answer_logp).max() < 1e-5


def test_a_head_that_is_no_product_gives_no_hidden_states(llava: Path, tmp_path: Path) -> None:
    backend = Local(llava, device="cpu")
    assert backend.capabilities == {"hidden"}
    head = backend.engine.model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.randn(len(head.weight)), requires_grad=False)
    backend.engine.calibrate(FLEUR, UNIT)
    assert not backend.capabilities
    with pytest.raises(InputError, match="use solver 'exact'"):
        discode.load(backend, method="discode:solver=adam")


def test_who_was_asked_includes_how(llava: Path) -> None:
    names = {Local(llava, device="cpu", read=read).identity for read in ("auto", "forced")}
    assert len(names) == 2
    with pytest.raises(InputError, match="is a folder"):
        Local(llava, revision="main")


def test_captions_that_cannot_be_asked_fail_alone(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    config = backend.engine.model.config.get_text_config()
    image = pictures((60, 40))[0]
    before, config.max_position_embeddings = config.max_position_embeddings, 400
    captions = ["a dog", "a \ud83d dog", "far " * 800, "a cat"]
    readings = backend.read([Pair(image, text) for text in captions], FLEUR, UNIT)
    config.max_position_embeddings = before
    assert set(readings.errors) == {1, 2}
    assert "tokens more than the model can see" in readings.errors[2]
    assert np.isfinite(readings.answer_logp[[0, 3]]).all()
