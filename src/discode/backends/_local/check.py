"""Check a model without downloading its weights: whether it can be a judge, and how it is read.

Only the small files are read: configuration, tokenizer, processor, chat template. The model's own
code is not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discode._extras import require_transformers
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends._local import hub, internvl, memory
from discode.backends._local.adapters import REMOTE_CODE_MODELS
from discode.backends._local.catalog import CATALOG, UNTRIED
from discode.backends._local.load import check_name, describe, in_one_line, quiet
from discode.backends._local.vocabulary import TokenizedPrompt, Vocabulary, conversation
from discode.errors import InputError, require

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Files that are downloaded; weights and code are not."""
EXAMPLE = "0.8"
COMMON = {"revision": None, "trust_remote_code": False}


def check_model(name: str, revision: str | None = None) -> dict[str, str]:
    """Report in words how a hub name or a folder would be read."""
    with opening(name, revision) as (folder, offline):
        settings = memory.read_settings(folder / "config.json")
        architecture = (settings.get("architectures") or [""])[0]
        kind = settings.get("model_type") or architecture
        size = hub.model_bytes(name, revision, "bfloat16", offline=offline)
        names = require_transformers().models.auto.modeling_auto
        natives = names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        if architecture in REMOTE_CODE_MODELS:
            adapter = REMOTE_CODE_MODELS[architecture].adapter.__name__
            route = f"with its own code (-M trust_remote_code=true) and the adapter {adapter}"
            captions = _captions(adapter.lower(), remote=True)
            start = tokens = "unknown until its code has run"
        elif "auto_map" in settings and not internvl.is_original(settings) and kind not in natives:
            raise InputError(f"{name} needs its own code, and discode has no adapter for {kind!r}")
        else:
            described = describe(str(folder), COMMON)
            vocabulary = Vocabulary(described.processor)
            tokenized = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
            route = (
                "converted for transformers' InternVL, without its own code"
                if described.original
                else "by transformers, without its own code"
            )
            captions = _captions(described.config.model_type)
            start, tokens = _start(vocabulary, tokenized.text), _tokens(tokenized)
            size = size or _counted_bytes(described.config)
    four_bits = memory.gigabytes(0.28 * size)  # with their scales
    weights = f"{memory.gigabytes(size)} in bfloat16, {four_bits} in 4 bit"
    return {
        "model": f"{name} ({kind})",
        "opened": route,
        "captions": captions,
        "an answer begins with": start,
        "answers on unit": tokens,
        "memory of the weights": weights if size else "unknown before the download",
    }


def open_vocabulary(name: str, revision: str | None = None) -> Vocabulary:
    with opening(name, revision) as (folder, _):
        settings = memory.read_settings(folder / "config.json")
        architecture = (settings.get("architectures") or [""])[0]
        if architecture in REMOTE_CODE_MODELS:
            raise InputError(f"{name} builds its prompt with its own code, which is not run here")
        return Vocabulary(describe(str(folder), COMMON).processor)


@contextmanager
def opening(name: str, revision: str | None) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of a model's small files, and whether the hub is offline."""
    check_name(name, revision)
    offline = not Path(name).is_dir() and hub.must_use_cache(name, revision)
    where = {"revision": revision, "local_files_only": offline}
    with in_one_line(name):
        with quiet("huggingface_hub"):
            folder = hub.local_folder(name, SMALL_FILES, where)
        yield folder, offline


def _captions(kind: str, *, remote: bool = False) -> str:
    for row in CATALOG:
        same = row.kind.startswith(kind) if remote else row.kind == kind
        if row.tested != UNTRIED and row.remote == remote and same:
            packed = "packed: they share the computation of their image"
            return packed if row.packed else "plain: one forward pass per pair"
    return f"no {kind!r} model was tested; packing is checked when it is loaded"


def _start(vocabulary: Vocabulary, text: str) -> str:
    prompt = vocabulary.chat(text)
    answer = {"role": "assistant", "content": [{"type": "text", "text": EXAMPLE}]}
    whole = str(
        vocabulary.processor.apply_chat_template([*conversation(text), answer], tokenize=False)
    )
    lead = whole.removeprefix(prompt).rpartition(EXAMPLE)[0] if whole.startswith(prompt) else None
    end = f"after {prompt[-20:]!r}"
    if prompt[-1:].isspace() or lead == "":
        return f"the number, {end}"
    if lead == " ":
        return f"a space, {end}"
    return f"the number or a space, {end}: its chat template does not say"


def _tokens(tokenized: TokenizedPrompt) -> str:
    """Describe the tokens of stems and answers: "0 ., 1 .; then 0 1 2 (1 token each)"."""
    spell = tokenized.vocabulary.tokenizer.convert_ids_to_tokens
    stems = ", ".join(dict.fromkeys(" ".join(spell(list(stem))) for stem in tokenized.stems))
    groups = {len(group) for groups in tokenized.answers for group in groups}
    ids = "1 token each" if groups == {1} else f"up to {max(groups)} tokens each, such as 85"
    return f"{stems}; then {' '.join(tokenized.scale.answers)} ({ids})"


def _counted_bytes(config: Any) -> float:
    torch, transformers = require("torch", "hf"), require_transformers()
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    count = sum(weight.numel() for weight in model.parameters())
    return float(memory.BYTES_PER_WEIGHT["bfloat16"] * count)
