"""Spaces that transformers adds after special tokens, unlike sentencepiece.

With ``legacy: true``, transformers begins the text after every special token with a space: in
LLaVA-NeXT-34B (Yi) "<|im_start|>user" becomes ``<|im_start|> ▁user``. Yi's sentencepiece model
adds no such space, so the model never saw that token there (huggingface/transformers#29774).
Vicuna and Mistral were trained with these spaces.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from discode.backends._local.sentencepiece import read_model
from discode.backends._local.vocabulary import Vocabulary
from discode.errors import BackendError, require

LOG = logging.getLogger("discode")
SPACE = "▁"


def check_spaces(name: str, vocabulary: Vocabulary, folder: Path | None, wanted: str) -> None:
    """Warn about spaces that were not in the model's training; ``wanted="off"`` removes them.

    A sentencepiece model in ``folder`` decides. Without one, a space after the token that begins a
    turn is considered wrong: in templates of models that were trained with these spaces, only the
    first token and the image precede text.
    """
    processor, tokenizer = vocabulary.processor, vocabulary.tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        return
    after = tokens_with_space(vocabulary)
    if wanted == "off":
        remove_spaces(tokenizer)
        if left := tokens_with_space(vocabulary):
            raise BackendError(
                f"legacy_spaces=off does not work for {name}: its tokenizer still adds a space "
                f"after {left[0]!r}"
            )
        return
    known = None if folder is None else sentencepiece_adds_space(folder / "tokenizer.model")
    if known is None:
        usual = (tokenizer.bos_token, tokenizer.eos_token, getattr(processor, "image_token", None))
        after = [token for token in after if token not in usual]
    if after and not known:
        LOG.warning(
            "discode: transformers adds a space after %r in prompts of %s that was not there in "
            "training; legacy_spaces=off (-M legacy_spaces=off) removes it",
            after[0],
            name,
        )


def tokens_with_space(vocabulary: Vocabulary) -> list[str]:
    """List the special tokens of a prompt after which the tokenizer adds a space."""
    text, tokenizer = vocabulary.chat("a dog"), vocabulary.tokenizer
    spaced = []
    for token in sorted(vocabulary.control_tokens):
        at = text.find(token) if token.strip() else -1
        following = text[at + len(token) :][:20]
        if at < 0 or not following or following[0] in (" ", SPACE):
            continue
        pieces = tokenizer.tokenize(token + following, add_special_tokens=False)
        if len(pieces) > 1 and pieces[0] == token and pieces[1].startswith(SPACE):
            spaced.append(token)
    return spaced


def remove_spaces(tokenizer: Any) -> None:
    """Make a tokenizer encode texts without a space before them."""
    backend = tokenizer.backend_tokenizer
    settings = json.loads(backend.to_str())
    for part in _parts(settings["pre_tokenizer"], "pretokenizers"):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
    normalizer = settings["normalizer"]
    steps = [part for part in _parts(normalizer, "normalizers") if part["type"] != "Prepend"]
    settings["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
    changed = require("tokenizers", "hf").Tokenizer.from_str(json.dumps(settings))
    backend.normalizer, backend.pre_tokenizer = changed.normalizer, changed.pre_tokenizer


def _parts(settings: Any, name: str) -> list[Any]:
    """List the steps of a normalizer or pre-tokenizer, which may have one, several or none."""
    if settings is None:
        return []
    return list(settings[name]) if settings["type"] == "Sequence" else [settings]


def sentencepiece_adds_space(path: Path) -> bool | None:
    """Whether a sentencepiece model adds a space before a text; None if it cannot be read."""
    try:
        return bool(read_model(path).normalizer_spec.add_dummy_prefix)
    except (OSError, ValueError):  # no file, or one of another kind (tiktoken's)
        return None
