"""Models with remote code: the adapters against the stand-ins' own interfaces."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import discode
from discode._pairs import Pair
from discode._prompts import CAPTION_LAST, FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.load import folder_digest
from discode.errors import InputError
from tests.helpers.local_models import LOCAL_MODEL_MARKS, count_generated, noise_images
from tests.helpers.tiny_remote.make import PACKED, make
from tests.helpers.tiny_remote.modeling_cogvlm import CogVLMConfig, CogVLMForCausalLM
from tests.helpers.tiny_remote.modeling_minicpmv import MiniCPMV, MiniCPMVConfig

pytestmark = [*LOCAL_MODEL_MARKS, pytest.mark.full]
CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night " * 4]


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the copies that transformers makes of remote code out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module", params=list(PACKED))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(str(request.param), tmp_path_factory.mktemp("remote") / str(request.param))


def local(folder: Path, **options: Any) -> Local:
    return Local(folder, device="cpu", trust_remote_code=True, **options)


def by_itself(folder: Path) -> Any:
    """The stand-in, made by its own class and filled with the file's weights."""
    settings = json.loads((folder / "config.json").read_text())
    model = (
        CogVLMForCausalLM(CogVLMConfig(**settings))
        if folder.name == "cogvlm"
        else MiniCPMV(MiniCPMVConfig(**settings))
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def own(model: Any, adapter: Any, image: Any, text: str, more: list[int]) -> Any:
    """The stand-in's own forward on a prompt of its own interface: logits (len(more) + 1, V)."""
    rest = torch.tensor([more], dtype=torch.long)
    keep = len(more) + 1
    with torch.no_grad():
        if isinstance(model, CogVLMForCausalLM):
            made = model.build_conversation_input_ids(
                adapter.tokenizer, query=text, history=[], images=[image], template_version="chat"
            )
            types = torch.cat([made["token_type_ids"][None], torch.zeros_like(rest)], dim=1)
            ids = torch.cat([made["input_ids"][None], rest], dim=1)
            return model(
                input_ids=ids,
                token_type_ids=types,
                attention_mask=torch.ones_like(ids),
                images=[made["images"]],
            ).logits[0, -keep:]
        prompt = adapter.tokenizer.apply_chat_template(
            [{"role": "user", "content": f"(<image>./</image>)\n{text}"}],
            tokenize=False,
            add_generation_prompt=True,
        )
        data = adapter.processor([prompt], [[image]], return_tensors="pt")
        data["input_ids"] = torch.cat([data["input_ids"], rest], dim=1)
        data["position_ids"] = torch.arange(data["input_ids"].shape[1])[None]
        return model(data).logits[0, -keep:]


def test_readings_are_the_models_own(folder: Path) -> None:
    backend = local(folder, read="forced")
    assert backend.runner.packed == PACKED[folder.name]
    model = by_itself(folder)
    images = noise_images((90, 60), (90, 60), (20, 12), (50, 120))
    pairs = [Pair(image, text) for image in images for text in CAPTIONS]
    said = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    assert not said.errors
    assert said.hidden is not None
    assert said.head is not None
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    head = backend.runner.model.get_output_embeddings().weight
    for row, pair in enumerate(pairs):
        text = FLEUR.render(pair.caption, (), UNIT)
        for stem in range(2):
            paths, joint, rows = [], [], []
            for spelling in tokenized.spellings:
                if spelling.stem != stem:
                    continue
                ids = spelling.ids
                logits = own(model, backend.runner.model, pair.image, text, list(ids))
                logp = logits.log_softmax(-1)
                paths.append(sum(float(logp[step, token]) for step, token in enumerate(ids)))
                after = [float(logp[-1, list(group)].logsumexp(-1)) for group in spelling.answers]
                joint.append(paths[-1] + np.array(after))
                rows.append(logits[-1, [group[0] for group in spelling.answers]].numpy())
            whole = np.logaddexp.reduce(paths)
            assert said.stem_logp[row, stem] == pytest.approx(whole, abs=1e-5)
            answers = np.logaddexp.reduce(joint, axis=0) - whole
            assert np.abs(said.answer_logp[row, stem] - answers).max() < 1e-5
            if stem == said.stem_logp[row].argmax():
                likelier = rows[int(np.argmax([part.max() for part in joint]))]
                assert np.abs(said.head @ said.hidden[row] - likelier).max() < 1e-4
    assert head.shape[1] == said.hidden.shape[1]
    backend.runner.packed = False
    plain = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    assert np.abs(plain.answer_logp - said.answer_logp).max() < 1e-5
    assert plain.hidden is not None
    assert np.abs(plain.hidden - said.hidden).max() < 1e-4
    # images and captions make a difference: the above does not compare constants
    assert np.abs(said.answer_logp[0] - said.answer_logp[3]).max() > 1e-3
    assert np.abs(said.answer_logp[0] - said.answer_logp[1]).max() > 1e-3


def test_generate_writes_what_is_likeliest(folder: Path) -> None:
    backend = local(folder)
    image = noise_images((90, 60))[0]
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    group, _ = backend._prepare([Pair(image, "a dog runs")], [0], tokenized)
    written = backend.runner.generate(group, 0)
    text = FLEUR.render("a dog runs", (), UNIT)
    model, adapter = by_itself(folder), backend.runner.model
    logits = own(model, adapter, image, text, written)
    assert len(written) > 1
    assert written == logits[:-1].argmax(-1).tolist()  # a cache, against none


def test_other_prompts_scales_and_references(folder: Path) -> None:
    backend = local(folder, read="forced")
    image = noise_images((80, 60))[0]
    pairs = [Pair(image, "a dog", references=("a cat", "a cow")), Pair(image, "a dog")]
    both = read_all(backend, pairs, CAPTION_LAST, FIVE)
    assert not both.errors
    tokenized = backend.runner.vocabulary.tokenize_prompt(CAPTION_LAST, FIVE, references=True)
    text = CAPTION_LAST.render("a dog", ("a cat", "a cow"), FIVE)
    model, rated = by_itself(folder), np.zeros(5)
    for spelling in tokenized.spellings:  # with and without a space
        logits = own(model, backend.runner.model, image, text, list(spelling.ids))
        p = logits.log_softmax(-1).exp().numpy()
        before = np.prod([p[step, token] for step, token in enumerate(spelling.ids)])
        rated += before * p[-1, [group[0] for group in spelling.answers]]
    assert np.abs(both.answer_logp[0, 0] - np.log(rated)).max() < 1e-5


@pytest.mark.parametrize("begins", ["number", "space"])
def test_cogvlm_may_begin_with_a_space_or_not(begins: str, tmp_path: Path) -> None:
    backend = local(make("cogvlm", tmp_path / "cogvlm", answers=True, begins=begins))
    pairs = [Pair(image, text) for image in noise_images((80, 60)) for text in CAPTIONS]
    with count_generated(backend) as count:
        said = read_all(backend, pairs, FLEUR, UNIT)
    assert not count
    assert said.lead_logp is not None
    assert np.exp(said.lead_logp).sum(axis=1).min() > 0.9


def test_captions_cannot_spell_control_tokens(folder: Path) -> None:
    backend = local(folder, read="forced")
    vocabulary = backend.runner.vocabulary
    ids = set(vocabulary.tokenizer.convert_tokens_to_ids(sorted(vocabulary.control_tokens)))
    tokenized = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    image = noise_images((90, 60))[0]
    inputs = backend.runner.processor.apply_chat_template(
        [{"role": "user", "content": [{"image": image}, {"text": tokenized.text}]}],
        add_generation_prompt=True,
        tokenize=True,
    )["input_ids"][0]
    clean = [i for i in inputs.tolist() if i in ids]
    tricks = [f"a dog {token} {token}{token}" for token in sorted(vocabulary.control_tokens)]
    tricks.append("(<image>./</image>) a dog (<image>./</image>)")
    for trick in tricks:
        text = tokenized.render(trick, ())
        made = backend.runner.processor.apply_chat_template(
            [{"role": "user", "content": [{"image": image}, {"text": text}]}],
            add_generation_prompt=True,
            tokenize=True,
        )["input_ids"][0]
        assert [i for i in made.tolist() if i in ids] == clean, trick
    said = read_all(backend, [Pair(image, trick) for trick in tricks], FLEUR, UNIT)
    assert not said.errors


def test_code_is_not_run_unless_trusted(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    for path in copy.glob("*.py"):
        path.write_text("raise RuntimeError('this must not run')\n")
    with pytest.raises(InputError, match="trust_remote_code=True") as caught:
        discode.load(copy, device="cpu")
    assert "\n" not in str(caught.value)
    assert folder_digest(copy) != folder_digest(folder)  # other code, other numbers


def test_folders_that_cannot_be_opened(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    lost = next(key for key in weights if "lm_head" in key)
    save_file(
        {k: v for k, v in weights.items() if k != lost},
        copy / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(InputError, match=r"no weights that fit .*lm_head"):
        local(copy)
    code = copy / f"modeling_{folder.name}.py"
    for line, words in (
        ("import no_such_package_anywhere", "no_such_package_anywhere"),
        ("torch.gone()", "has no attribute 'gone'"),  # code for another version
    ):
        code.write_text(f"{(folder / code.name).read_text()}\n{line}\n")
        with pytest.raises(InputError, match=words) as caught:
            local(copy)
        assert "\n" not in str(caught.value)


def test_tables_that_are_in_no_checkpoint(folder: Path) -> None:
    model, right = local(folder).runner.model.model, by_itself(folder)
    tables = dict(right.named_buffers())
    lost = [key for key in tables if key not in right.state_dict()]
    assert any("inv_freq" in key or "table" in key for key in lost)
    for key, table in model.named_buffers():
        assert torch.equal(table, tables[key]), key
