"""Open a local vision-language model, or say in one line why it cannot be opened."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

from discode.backends.local import hub, internvl, memory
from discode.backends.local.adapters import REMOTE_CODE_MODELS, RemoteCodeModel, load_remote_code
from discode.backends.local.spaces import check_spaces
from discode.errors import BackendError, DiscodeError, InputError, MissingExtraError, require

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("4bit", "8bit", "fp8")
_DIGEST_BLOCK = 1 << 16
OWN_CODE = (
    "{} brings code of its own; if you trust it, give trust_remote_code=True "
    "(-M trust_remote_code=true)"
)
SDPA = {"attn_implementation": "sdpa"}
"""The attention of every model: packing needs masks of its own."""
TOKENIZER_SUFFIXES = (".model", ".txt", ".tiktoken", ".spm", ".codes", ".tokenizer")
"""Of vocabularies and merges, besides JSON; transformers' tokenizers name them."""
KEPT_SUFFIXES = (".json", ".jinja", ".safetensors", ".py", *TOKENIZER_SUFFIXES)
"""Files that count for a folder's digest: whatever changes the numbers."""
_LIBRARIES: list[Any] = []  # what torch must not forget


def mend_torchvision() -> None:
    """Make a torchvision built for CUDA importable with a torch that has none.

    Where torch has no CUDA, pip may still install torchvision's CUDA build. Its import fails: two
    operators are missing, which we never call. transformers then hides all image processors, so a
    broken torchvision is worse than none.
    """
    found = find_spec("torchvision")
    if _LIBRARIES or found is None or found.origin is None or find_spec("torch") is None:
        return
    torch = require("torch", "hf")
    version = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    if torch.version.cuda is None and "+cu" in version:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)  # its operators live as long as it does


@dataclass(frozen=True)
class LoadedModel:
    """A model and its processor."""

    model: Any
    processor: Any
    name: str
    revision: str
    dtype: str
    device: Any
    lock: Any = field(default_factory=RLock, compare=False)
    """Held while the model runs: its hooks and its state are for one thread at a time."""


def choose_device_and_dtype(device: str | None, dtype: str) -> tuple[str, str]:
    """Return the device and the dtype to use; raise where they cannot be used.

    >>> choose_device_and_dtype("cpu", "auto")
    ('cpu', 'float32')
    """
    torch = require("torch", "hf")
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} is not allowed; give one of {', '.join(DTYPES)}")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used here: {short_message(error)}") from None
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return device, dtype


def load_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str = "auto",
    revision: str | None = None,
    quantize: str | None = None,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    legacy_spaces: str = "keep",
) -> LoadedModel:
    """Load a hub name or a folder: safetensors only, and remote code only if the user says so."""
    mend_torchvision()
    torch, transformers = require("torch", "hf"), require("transformers", "hf")
    if quantize not in (None, *QUANTIZE):
        raise InputError(f"quantize={quantize!r} is not allowed; give one of {', '.join(QUANTIZE)}")
    device, dtype = choose_device_and_dtype(device, dtype)
    folder = Path(name)
    check_name(name, revision)
    if folder.is_dir():
        check_folder(folder, trust_remote_code)
    if quantize == "fp8":
        from discode.backends.local.fp8 import check_fp8, use_fp8  # imports torch

        check_fp8(device, dtype)
        if device_map is not None:
            raise InputError("quantize=fp8 is for one GPU; leave device_map out")
    quantization = _quantization(transformers, getattr(torch, dtype), quantize)
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if not folder.is_dir():
        common["local_files_only"] = hub.must_use_cache(name, revision)
    try:
        described = describe(name, common)
        config, processor, remote = described.config, described.processor, described.remote
        to_device = quantize is not None or not device.startswith("cpu")
        if device_map is None:
            kind = quantize or dtype
            needed = (
                memory.weight_bytes(memory.weight_files(folder), kind)
                if folder.is_dir()
                else hub.hub_weight_bytes(name, revision, kind, offline=common["local_files_only"])
            )
            memory.check_fits(name, needed, kind, device)
        options = {
            "dtype": getattr(torch, dtype),
            "use_safetensors": True,
            "device_map": device_map or ({"": device} if to_device and quantize != "fp8" else None),
            "quantization_config": quantization,
        }
        if remote and quantize == "fp8":
            raise InputError(f"quantize=fp8 is not for models with code of their own, like {name}")
        if remote:
            model = load_remote_code(remote, name, config, revision, options)
        elif described.original:
            files = ("*.safetensors", "*.safetensors.index.json")
            local = hub.local_folder(name, files, common)
            model = internvl.load_original(name, local, config, {**options, **SDPA})
        else:
            model = transformers.AutoModelForImageTextToText.from_pretrained(
                name, config=config, **SDPA, **options, **common
            )
        if quantize == "fp8":
            use_fp8(model, device)
            model = model.to(device)
    except DiscodeError:
        raise
    except torch.OutOfMemoryError as error:
        raise BackendError(
            f"{name} does not fit on {device}: {short_message(error)}; try quantize='4bit' or "
            "device_map='auto'"
        ) from error
    # A broken settings file may fail anywhere in transformers, with any exception.
    except Exception as error:
        if "trust_remote_code=True" in str(error) and not trust_remote_code:
            raise InputError(OWN_CODE.format(name)) from None
        raise InputError(f"cannot load {name}: {short_message(error)}") from error
    model = model.eval().requires_grad_(False)
    if remote:
        model = processor = remote.adapter(model, processor)
    cached = None if folder.is_dir() else hub.cached_folder(name, revision)
    if not remote:
        check_spaces(name, processor, cached or folder, legacy_spaces)
    commit = cached.name if cached else revision or "main"
    return LoadedModel(
        model,
        processor,
        folder.resolve().name if folder.is_dir() else name,
        folder_digest(folder) if folder.is_dir() else commit[:12],
        dtype,
        torch.device(device),
    )


@dataclass(frozen=True)
class ModelDescription:
    """What a model says of itself before its weights are read."""

    config: Any
    processor: Any
    remote: RemoteCodeModel | None
    """How it is opened where it needs its own code."""
    original: bool
    """Whether it is an InternVL in its original layout."""


def describe(name: str, common: dict[str, Any]) -> ModelDescription:
    """Open configuration and processor; ``common`` is what ``from_pretrained`` takes.

    Raise InputError where the model cannot be a judge.
    """
    try:
        return _describe(name, common)
    except ImportError as error:
        if common["trust_remote_code"] or isinstance(error, MissingExtraError):
            raise  # a model's own code may need anything
        why = short_message(error).rstrip(".")
        raise MissingExtraError(
            f"{name} cannot be opened: {why}; run: pip install 'discode-eval[hf]'"
        ) from error


def _describe(name: str, common: dict[str, Any]) -> ModelDescription:
    transformers = require("transformers", "hf")
    folder = Path(name)
    with quiet_hub():
        where = {key: value for key, value in common.items() if key != "trust_remote_code"}
        settings, _ = transformers.PreTrainedConfig.get_config_dict(name, **where)
        if internvl.is_original(settings):
            local = hub.local_folder(name, internvl.FILES, common)
            return ModelDescription(*internvl.open_original(name, local, settings), None, True)
        config = transformers.AutoConfig.from_pretrained(name, **common)
    known = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if not known and not common["trust_remote_code"]:
        raise InputError(
            f"{name} is a {config.model_type!r} model, which does not take images; give a "
            "vision-language model (discode models lists some)"
        )
    remote = None if known else REMOTE_CODE_MODELS.get((config.architectures or [""])[0])
    if folder.is_dir() and not remote:
        _check_processor(folder)
    reader = getattr(transformers, remote.reader if remote else "AutoProcessor")
    processor = reader.from_pretrained(name, **common)
    if not remote and getattr(processor, "tokenizer", None) is None:
        raise InputError(f"{name} has no tokenizer beside its image processor")
    if not remote and not getattr(processor, "chat_template", None):
        raise InputError(f"{name} has no chat template; a judge needs a chat model")
    return ModelDescription(config, processor, remote, False)


def folder_digest(folder: Path) -> str:
    """Return eight hexadecimal digits that tell a model's folder from others of its name.

    Small files count whole, large ones by their size and sixteen blocks spread over them: training
    changes a tensor everywhere, and reading 150 GB would take minutes.
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
def quiet_hub() -> Iterator[None]:
    """Silence the hub's warnings about retries: a failure is reported once, in one line."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def check_name(name: str, revision: str | None) -> None:
    """Raise where a name can be neither a folder nor a hub name."""
    folder = Path(name)
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise InputError(f"no model folder at {name}")
    if folder.is_dir() and revision is not None:
        raise InputError(f"revision={revision} is for a hub name; {name} is a folder")


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the config.json of a model's folder."""
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(f"{folder} has no config.json; it is not a model folder")
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{config} cannot be read: {short_message(error)}") from None
    if not isinstance(settings, dict):
        raise InputError(f"{config} cannot be read: it is not a table of settings")
    return settings


def check_folder(folder: Path, trust_remote_code: bool) -> None:
    """Raise where a folder lacks something, in one line; transformers would take paragraphs."""
    settings = read_settings(folder)
    if "auto_map" in settings and not trust_remote_code and not internvl.is_original(settings):
        raise InputError(OWN_CODE.format(folder))
    if not any(folder.glob("*.safetensors")):
        pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        why = f"only {pickles[0].name}, and pickles can run code" if pickles else "no weights"
        raise InputError(f"{folder} has {why}; give a folder with .safetensors files")


def _check_processor(folder: Path) -> None:
    """Say which half of its processor a folder lacks; transformers says what it tried instead."""
    for what, names in (
        ("tokenizer (tokenizer.json)", ("tokenizer*", "vocab*", "*.model", "tekken.json")),
        ("image processor (preprocessor_config.json)", ("*processor_config.json",)),
    ):
        if not any(any(folder.glob(name)) for name in names):
            raise InputError(f"{folder} has no {what}; copy all files of the model into it")


def _quantization(transformers: Any, dtype: Any, quantize: str | None) -> Any:
    if quantize in (None, "fp8"):  # fp8 is torch's own, after loading
        return None
    require("bitsandbytes", "quantize")
    return transformers.BitsAndBytesConfig(
        load_in_4bit=quantize == "4bit",
        load_in_8bit=quantize == "8bit",
        bnb_4bit_compute_dtype=dtype,
    )


def short_message(error: BaseException) -> str:
    """Return the first line of an error: transformers writes paragraphs.

    >>> short_message(ValueError("No torch. Look at the\\ninstallation page."))
    'No torch.'
    """
    line, *more = str(error).strip().splitlines() or [type(error).__name__]
    end = line.rfind(". ") + 1
    broken = any(more[:1]) and line[-1] not in ".:;!?"  # a sentence goes on in the next line
    return line[:end] if broken and end else line
