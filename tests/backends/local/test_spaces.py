"""Spaces after special tokens: found, warned about, removed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import import_protobuf
from transformers.tokenization_utils_base import generate_merges

from discode.backends._local.spaces import (
    check_spaces,
    sentencepiece_adds_space,
    tokens_with_space,
)
from discode.backends._local.vocabulary import Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = (
    "<|im_start|>system\nAnswer.<|im_end|><|im_start|>user\n<image>\n%s<|im_end|><|im_start|>a\n"
)


class Processor:
    """A tokenizer in the chat template of LLaVA-NeXT-34B, or in another."""

    image_token = "<image>"

    def __init__(self, tokenizer: Any, prompt: str = PROMPT) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt

    def apply_chat_template(self, conversation: Any, **_: Any) -> str:
        return self.prompt % str(conversation[0]["content"][1]["text"])


def tokenizer(vocabulary: dict[str, int], merges: Any = (), *, how: str) -> Any:
    """A BPE that adds a space as transformers does with ``legacy: true``, today or in old files."""
    made = Tokenizer(models.BPE(vocabulary, list(merges), unk_token="<unk>", byte_fallback=True))
    if how == "metaspace":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    else:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        made.normalizer = normalizers.Sequence(steps)
    special = ["<s>", "<image>", "<|im_start|>", "<|im_end|>"]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")


def small(how: str) -> Any:
    letters = ["<unk>", "▁", *(f"<0x{i:02X}>" for i in range(256)), *map(chr, range(33, 127))]
    return tokenizer({letter: i for i, letter in enumerate(letters)}, how=how)


@pytest.mark.parametrize("how", ["metaspace", "prepend"])
def test_a_space_after_a_turn_begins_is_told_and_removed(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    processor = Processor(small(how))
    assert "<|im_start|>" in tokens_with_space(Vocabulary(processor))
    with caplog.at_level(logging.WARNING):
        check_spaces("yi", Vocabulary(processor), None, "keep")
    assert "'<|im_start|>' in prompts of yi" in caplog.text
    assert "-M legacy_spaces=off" in caplog.text
    assert len(caplog.records) == 1
    caplog.clear()
    check_spaces("yi", Vocabulary(processor), None, "off")
    assert not caplog.records
    assert not tokens_with_space(Vocabulary(processor))
    assert processor.tokenizer.tokenize("<|im_start|>us a") == ["<|im_start|>", *"us▁a"]


def test_vicuna_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    processor = Processor(small("metaspace"), "<s>USER: <image>\n%s ASSISTANT:")
    check_spaces("vicuna", Vocabulary(processor), None, "keep")
    assert not caplog.records


def test_files_that_are_not_sentencepiece(tmp_path: Path) -> None:
    assert sentencepiece_adds_space(tmp_path / "missing") is None
    for data in (b"", b"IQ== 0\nIg== 1\n", b"\x0a\xff\xff", b"\xff" * 40):
        (tmp_path / "tokenizer.model").write_bytes(data)
        assert sentencepiece_adds_space(tmp_path / "tokenizer.model") is None


@pytest.mark.data
def test_yi_does_not_know_the_spaces_that_transformers_adds(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = data / "tokenizers" / "yi"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    assert sentencepiece_adds_space(folder / "tokenizer.model") is False
    for other in ("llama2_vicuna", "mistral"):
        assert sentencepiece_adds_space(folder.parent / other / "tokenizer.model") is True
    assert sentencepiece_adds_space(folder.parent / "llama3" / "tokenizer.model") is None
    model = import_protobuf().ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    vocabulary = {piece.piece: i for i, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces}
    yi = tokenizer(vocabulary, generate_merges(vocabulary, scores), how="metaspace")
    assert yi.tokenize("<|im_start|>user\na dog") == ["<|im_start|>", "▁user", "\n", "a", "▁dog"]
    processor = Processor(yi)
    check_spaces("yi", Vocabulary(processor), folder, "keep")
    assert "legacy_spaces=off" in caplog.text
    caplog.clear()
    check_spaces("vicuna", Vocabulary(processor), folder.parent / "llama2_vicuna", "keep")
    assert not caplog.records  # its own sentencepiece model adds the space, too
    check_spaces("yi", Vocabulary(processor), folder, "off")
    # what sentencepiece itself gives for the text after the special token
    assert yi.tokenize("<|im_start|>user\na dog") == ["<|im_start|>", "user", "\n", "a", "▁dog"]
    assert yi.tokenize("hello 0.8") == ["hello", "▁", "0", ".", "8"]
