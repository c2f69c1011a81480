"""Open a local vision-language model, or report in one line why it cannot be opened."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from discode._extras import require_transformers
from discode.backends._local import hub, internvl, memory
from discode.backends._local.adapters import (
    REMOTE_CODE_MODELS,
    RemoteCodeModel,
    check_complete,
    load_remote_code,
)
from discode.backends._local.spaces import check_spaces
from discode.backends._local.vocabulary import Vocabulary
from discode.errors import (
    BackendError,
    DiscodeError,
    InputError,
    MissingExtraError,
    install_hint,
    require,
)
from discode.options import SIZE, TEXT, Configurable, option, with_options_documented

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("4bit", "8bit", "fp8")
AUTO_OFF = ("auto", "off")
_DIGEST_BLOCK = 1 << 16
OWN_CODE = (
    "{} contains its own code; if you trust it, set trust_remote_code=True "
    "(-M trust_remote_code=true)"
)
SDPA = {"attn_implementation": "sdpa"}
"""The attention of every model: packing needs custom masks."""
TOKENIZER_SUFFIXES = (".model", ".txt", ".tiktoken", ".spm", ".codes", ".tokenizer")
"""Files of vocabularies and merges in transformers' tokenizers, besides JSON."""
KEPT_SUFFIXES = (".json", ".jinja", ".safetensors", ".py", *TOKENIZER_SUFFIXES)
"""Files that enter a folder's digest: all that change the numbers."""


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class LocalOptions(Configurable):
    """The options of ``hf:ORG/NAME`` and ``hf:FOLDER``."""

    device: str | None = option(None, "cuda, cuda:1, cpu or mps; default: a GPU", TEXT, None)
    dtype: str = option("auto", "type of the weights; auto: bfloat16 on a GPU", *DTYPES)
    revision: str | None = option(None, "branch, tag or commit of the hub's repository", TEXT, None)
    quantize: str | None = option(
        None, "smaller weights; fp8 needs a recent GPU, the others bitsandbytes", *QUANTIZE, None
    )
    device_map: str | None = option(None, "accelerate's; auto uses several GPUs", TEXT, None)
    trust_remote_code: bool = option(
        False, "whether the model's own code may run: it can do anything", True, False
    )
    read: str = option(
        "auto",
        "forced supplies the stem; generate lets the model write, as in the paper; auto generates "
        "if the model is unlikely to begin with a stem",
        *("auto", "forced", "generate"),
    )
    thinking: str = option(
        "off",
        "off asks the chat template for no thoughts; on reads the rating after the thoughts",
        *("off", "on"),
    )
    thinking_tokens: int = option(2048, "maximum tokens of the thoughts", SIZE)
    samples: int | None = option(
        None, "answers to draw per pair; default: log-probabilities are read", SIZE, None
    )
    second_decimal: str = option(
        "auto", "second decimal if the model writes one; off continues a 0.2 store", *AUTO_OFF
    )
    packing: str = option("auto", "captions share a pass; off: one pass per pair", *AUTO_OFF)
    legacy_spaces: str = option(
        "keep",
        "spaces that transformers adds to prompts (Yi); a warning advises off",
        "keep",
        "off",
    )
    batch_captions: int | None = option(None, "captions at once; default: by memory", SIZE, None)
    batch_images: int | None = option(
        None, "images at once; default: by tokens and memory", SIZE, None
    )


@dataclass(frozen=True)
class OpenedModel:
    """A model and its processor; ``load`` returns the model when it is first needed.

    ``lock`` is held while the model loads and while it runs.
    """

    load: Callable[[], Any]
    processor: Any
    name: str
    revision: str
    dtype: str
    device: Any
    thinking: str = "off"
    lock: Any = field(default_factory=RLock, compare=False)

    @cached_property
    def model(self) -> Any:
        return self.load()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.processor, self.thinking)


def choose_device_and_dtype(device: str | None, dtype: str) -> tuple[str, str]:
    """Choose the device and the dtype.

    >>> choose_device_and_dtype("cpu", "auto")
    ('cpu', 'float32')
    """
    torch = require("torch", "hf")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used here: {short_message(error)}") from None
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return device, dtype


def open_model(name: str, options: LocalOptions) -> OpenedModel:
    """Open a hub name or a folder: safetensors only, and remote code only if it is trusted."""
    torch = require("torch", "hf")
    require_transformers()
    device, dtype = choose_device_and_dtype(options.device, options.dtype)
    folder = Path(name)
    check_name(name, options.revision)
    if folder.is_dir():
        check_folder(folder, options.trust_remote_code)
    common: dict[str, Any] = {
        "revision": options.revision,
        "trust_remote_code": options.trust_remote_code,
    }
    if not folder.is_dir():
        common["local_files_only"] = hub.must_use_cache(name, options.revision)
    weights = _weight_options(options, device, dtype)
    with in_one_line(name, device, trusted=options.trust_remote_code):
        described = describe(name, common)
    if described.remote and options.quantize == "fp8":
        raise InputError(f"quantize=fp8 does not support models with their own code, like {name}")
    cached = None if folder.is_dir() else hub.cached_folder(name, options.revision)
    if cached is not None:  # pin the commit, because the weights are read later
        common["revision"] = cached.name
    digest = folder_digest(folder) if folder.is_dir() else ""

    def load() -> Any:
        with in_one_line(name, device, trusted=options.trust_remote_code):
            if options.device_map is None:
                kind, offline = options.quantize or dtype, common.get("local_files_only", False)
                needed = hub.model_bytes(name, common["revision"], kind, offline=offline)
                memory.check_fits(name, needed, kind, device)
            if digest and folder_digest(folder) != digest:
                raise InputError(f"{name} changed after it was opened; run again")
            model = _load_weights(name, described, weights, common)
            if options.quantize == "fp8":
                from discode.backends._local.gpu.fp8 import use_fp8  # imports torch

                use_fp8(model, device)
                model = model.to(device)
        return model.eval().requires_grad_(False)

    processor = described.processor
    if described.remote:  # the processor needs the model's code
        processor = described.remote.adapter(load(), processor)
    else:
        vocabulary = Vocabulary(processor, options.thinking)
        check_spaces(name, vocabulary, cached or folder, options.legacy_spaces)
    commit = cached.name if cached else options.revision or "main"
    return OpenedModel(
        (lambda: processor) if described.remote else load,
        processor,
        folder.resolve().name if folder.is_dir() else name,
        digest or commit[:12],
        dtype,
        torch.device(device),
        options.thinking,
    )


def _weight_options(options: LocalOptions, device: str, dtype: str) -> dict[str, Any]:
    torch, quantize = require("torch", "hf"), options.quantize
    quantization, device_map = None, options.device_map
    if quantize == "fp8":  # torch's own, after loading
        from discode.backends._local.gpu.fp8 import check_fp8  # imports torch

        check_fp8(device, dtype)
        if device_map is not None:
            raise InputError("quantize=fp8 cannot be combined with device_map")
    elif quantize is not None:
        require("bitsandbytes", "quantize")
        quantization = require_transformers().BitsAndBytesConfig(
            load_in_4bit=quantize == "4bit",
            load_in_8bit=quantize == "8bit",
            bnb_4bit_compute_dtype=getattr(torch, dtype),
        )
    if quantize != "fp8" and (quantize is not None or not device.startswith("cpu")):
        device_map = device_map or {"": device}  # type: ignore[assignment]
    return {
        "dtype": getattr(torch, dtype),
        "use_safetensors": True,
        "device_map": device_map,
        "quantization_config": quantization,
    }


def _load_weights(
    name: str, described: ModelDescription, weights: dict[str, Any], common: dict[str, Any]
) -> Any:
    if described.remote:
        revision = common["revision"]
        return load_remote_code(described.remote, name, described.config, revision, weights)
    if described.original:
        folder = hub.local_folder(name, ("*.safetensors", "*.safetensors.index.json"), common)
        return internvl.load_original(name, folder, described.config, {**weights, **SDPA})
    with quiet("transformers"):  # which reports missing weights in a table
        model, report = require_transformers().AutoModelForImageTextToText.from_pretrained(
            name, config=described.config, ignore_mismatched_sizes=True, output_loading_info=True,
            **SDPA, **weights, **common,
        )  # fmt: skip
    misshapen = {key for key, *_ in report["mismatched_keys"]}
    check_complete(name, model, misshapen.union(report["missing_keys"]))
    return model


@contextmanager
def in_one_line(name: str, device: str = "cpu", *, trusted: bool = False) -> Iterator[None]:
    """Report in one line why a model cannot be loaded, whatever the exception."""
    try:
        yield
    except DiscodeError:
        raise
    except require("torch", "hf").OutOfMemoryError as error:
        raise BackendError(
            f"{name} does not fit on {device}: {short_message(error)}; try quantize='4bit' or "
            "device_map='auto'"
        ) from error
    # A broken settings file may raise any exception anywhere in transformers.
    except Exception as error:
        place = _broken_json(Path(name)) if isinstance(error, json.JSONDecodeError) else name
        why = f"cannot load {place}: {short_message(error)}"
        if "trust_remote_code=True" in str(error) and not trusted:
            raise InputError(OWN_CODE.format(name)) from None
        if isinstance(error, ImportError) and not trusted:  # a model's own code may need anything
            raise MissingExtraError(f"{why.rstrip('.')}; {install_hint('hf')}") from error
        raise InputError(why) from error


class ModelDescription(NamedTuple):
    """A model without its weights."""

    config: Any
    processor: Any
    remote: RemoteCodeModel | None  # how to open a model that needs its own code
    original: bool  # whether it is an InternVL in its original layout


def describe(name: str, common: dict[str, Any]) -> ModelDescription:
    """Open configuration and processor; ``common`` are options of ``from_pretrained``."""
    transformers = require_transformers()
    folder = Path(name)
    with quiet("huggingface_hub"):
        where = {key: value for key, value in common.items() if key != "trust_remote_code"}
        settings, _ = transformers.PreTrainedConfig.get_config_dict(name, **where)
        if internvl.is_original(settings):
            local = hub.local_folder(name, internvl.FILES, common)
            return ModelDescription(*internvl.open_original(name, local, settings), None, True)
        config = describe_config(name, common)
    known = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    remote = None if known else REMOTE_CODE_MODELS.get((config.architectures or [""])[0])
    if folder.is_dir() and not remote:
        _check_processor(folder)
    reader = getattr(transformers, remote.reader if remote else "AutoProcessor")
    processor = reader.from_pretrained(name, **common)
    for part in () if remote else ("tokenizer", "chat_template"):
        if not getattr(processor, part, None):
            raise InputError(f"{name} has no {part}; a judge needs a chat model that takes images")
    return ModelDescription(config, processor, remote, False)


def describe_config(name: str, common: dict[str, Any]) -> Any:
    """Open the configuration of a model that takes images."""
    transformers = require_transformers()
    config = transformers.AutoConfig.from_pretrained(name, **common)
    known = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if not known and not common["trust_remote_code"]:
        raise InputError(
            f"{name} is a {config.model_type!r} model, which does not take images; use a "
            "vision-language model (see discode models)"
        )
    return config


def folder_digest(folder: Path) -> str:
    """Compute eight hexadecimal digits that identify the contents of a model's folder.

    Small files are read whole, large ones in sixteen blocks: training changes a tensor everywhere,
    and reading 150 GB would take minutes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix not in KEPT_SUFFIXES:
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            blocks = 16 if size > 16 * _DIGEST_BLOCK else 1
            for number in range(blocks):
                file.seek(number * (size - _DIGEST_BLOCK) // (blocks - 1) if blocks > 1 else 0)
                digest.update(file.read(_DIGEST_BLOCK if blocks > 1 else -1))
    return digest.hexdigest()[:8]


@contextmanager
def quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def check_name(name: str, revision: str | None) -> None:
    """Raise if a name can be neither a folder nor a hub name."""
    folder = Path(name)
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise InputError(f"no model folder at {name}")
    if folder.is_dir() and revision is not None:
        raise InputError(f"revision={revision} requires a hub name; {name} is a folder")


def check_folder(folder: Path, trust_remote_code: bool) -> None:
    """Report in one line what is missing in a folder; transformers writes paragraphs."""
    settings = memory.read_settings(folder / "config.json")
    if "auto_map" in settings and not trust_remote_code and not internvl.is_original(settings):
        raise InputError(OWN_CODE.format(folder))
    if not any(folder.glob("*.safetensors")):
        pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        why = f"only {pickles[0].name}, and pickles can run code" if pickles else "no weights"
        raise InputError(f"{folder} has {why}; use a folder with .safetensors files")


def _check_processor(folder: Path) -> None:
    """Report which half of the processor is missing; transformers lists its attempts instead."""
    for what, names in (
        ("tokenizer (tokenizer.json)", ("tokenizer.*", "vocab*", "*.model", "tekken.json")),
        ("image processor (preprocessor_config.json)", ("*processor_config.json",)),
    ):
        if not any(any(folder.glob(name)) for name in names):
            raise InputError(f"{folder} has no {what}; copy all of the model's files into it")


def _broken_json(folder: Path) -> Path:
    """Find the first settings file of a folder that is not JSON; the folder if there is none."""
    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            return path
    return folder


def short_message(error: BaseException) -> str:
    """Take the first line of an error: transformers writes paragraphs.

    >>> short_message(ValueError("No torch. Look at the\\ninstallation page."))
    'No torch.'
    """
    line, *more = str(error).strip().splitlines() or [type(error).__name__]
    end = line.rfind(". ") + 1
    broken = any(more[:1]) and line[-1] not in ".:;!?"  # the sentence continues in the next line
    return line[:end] if broken and end else line
