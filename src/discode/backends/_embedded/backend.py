"""The small built-in judge: an ONNX file that reads all captions of an image together.

The image and the instruction are computed once per image; captions are batched. The states of
recent images are cached for later captions. ``training/`` builds such files and documents how;
one ships with the package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from discode._pairs import Pair, group_by_image
from discode._prompts import CAPTION_LAST, Prompt, neutralise
from discode._scales import UNIT, Scale
from discode.backends._base import Backend, Blocks
from discode.backends._embedded.tokenizer import Bpe
from discode.errors import ImageError, InputError
from discode.images import ImageSource, SharedImage, image_digest, open_image
from discode.options import SIZE, Configurable, option, with_options_documented
from discode.readings import Identity, Readings

MODEL = "discode-embedded"
SHIPPED = Path(__file__).parents[2] / "data" / "embedded.onnx"
"""The model that ships with the package."""
SHA256 = "0d60a866843b2fd0be2abc6f66c966a429273ca0a993f04ed218f3c6f6cd3570"
"""The digest of that file: an incomplete download must not judge."""
VERSION = "3"
"""The version of that model; other files carry their own."""
CAPTIONS_AT_ONCE = 64
IMAGES_KEPT = 256
"""Most recently used images whose states are cached, 600 KB each."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU limit of a container: "QUOTA PERIOD", or "max PERIOD" without a limit."""
MAX_CHARACTERS = 8192
"""The most characters of a caption, many times the model's limit. Longer captions are cut first,
because normalising text can take time that grows with the square of its length."""


def usable_cores() -> int:
    """Count the cores that this process may use, by its affinity and its container's limit."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        cores = os.cpu_count() or 1
    try:
        quota, period = map(int, CPU_QUOTA.read_text().split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(quota / period)))


@with_options_documented
@dataclass(frozen=True)
class EmbeddedOptions(Configurable):
    """The options of ``embedded``."""

    threads: int | None = option(
        None, "cores to use; default: OMP_NUM_THREADS, or all available", SIZE, None
    )


class _OpenFile(NamedTuple):
    """A model that a process has opened, with the metadata of its file."""

    session: Any
    version: str
    side: int
    limit: int
    bpe: Bpe

    def encode(self, captions: list[str]) -> list[tuple[list[int], bool]]:
        """Tokenise captions; each comes with whether it was cut."""
        captions = [caption.strip() for caption in captions]
        # Text cannot spell the model's special tokens: it becomes words and bytes.
        safe = [neutralise(caption[:MAX_CHARACTERS]) for caption in captions]
        tokens = [self.bpe.encode_caption(caption, self.limit) for caption in safe]
        return [
            (ids[: self.limit], len(ids) > self.limit or len(caption) > MAX_CHARACTERS)
            for ids, caption in zip(tokens, captions, strict=True)
        ]


class Embedded(Backend):
    """A backend for the shipped model and other files built by ``training/``.

    Args:
        path: The ONNX file; the shipped one if None or empty.
        options: See :class:`EmbeddedOptions`.

    It supports one prompt (``caption-last``), one scale (``unit``) and no references. Captions are
    lower-cased; those that exceed its token limit are cut and flagged ``cut``. It can be shared
    between threads and used after a fork.

    >>> Embedded(threads=1).identity.model
    'discode-embedded'
    """

    capabilities = frozenset({"hidden"})
    takes_references = False
    prompt = CAPTION_LAST
    _spinning = "0"

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.path = Path(path) if path else SHIPPED
        self._threads = EmbeddedOptions(**options).threads
        digest = _digest(self.path, shipped=not path)
        self._lock = threading.Lock()
        self._owner = 0
        self._states: dict[str, np.ndarray] = {}  # by image digest, least recently used first
        # The shipped version is known, so answers from a store do not load the model.
        version = self._open().version if path else VERSION
        self.identity = Identity(MODEL, f"{version}-{digest[:8]}", "int8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and options: ``datasets`` sends judges to worker processes."""
        path = None if self.path == SHIPPED else self.path
        return partial(Embedded, threads=self._threads), (path,)

    def _open(self) -> _OpenFile:
        """Open the file once per process: a fork does not inherit onnxruntime's threads."""
        with self._lock:
            if self._owner != os.getpid():
                self._opened = self._open_again()
                self._owner = os.getpid()
            return self._opened

    def _open_again(self) -> _OpenFile:
        # From 1.29 on, onnxruntime sends usage data to its makers unless this is set first.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime as ort  # here: `import discode` stays light

        try:
            session = ort.InferenceSession(
                str(self.path), self._options(ort), providers=["CPUExecutionProvider"]
            )
        # onnxruntime's errors share no public base class
        except Exception as error:
            raise InputError(f"cannot load {self.path}: {error}") from error
        metadata = session.get_modelmeta().custom_metadata_map
        inputs = {each.name: each.shape for each in session.get_inputs()}
        if metadata.get("prompt") != CAPTION_LAST.digest or "known" not in inputs:
            raise InputError(f"{self.path} is not an embedded model for this version of discode")
        tokens, ids = json.loads(metadata["tokens"]), json.loads(metadata["merges"])
        merges = [(tokens[a], tokens[b]) for a, b in zip(ids[::2], ids[1::2], strict=True)]
        return _OpenFile(
            session, metadata["version"], int(inputs["pixels"][-1]), int(metadata["limit"]),
            Bpe(tokens, merges),
        )  # fmt: skip

    def _options(self, ort: Any) -> Any:
        options = ort.SessionOptions()
        # More threads than cores can be slower by minutes. onnxruntime's default would pin threads,
        # and count the cores of the host inside a container.
        cores = usable_cores()
        usual = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # as Ray sets for workers
        threads = self._threads or int(usual if usual.strip().isdecimal() else 0) or cores
        options.intra_op_num_threads = min(threads, cores)
        # Spinning threads use a quarter to two thirds more CPU time, and on a busy machine answers
        # take 1.2 to 2.9 times as long (perf/embedded.py --spinning).
        options.add_session_config_entry("session.intra_op.allow_spinning", self._spinning)
        options.enable_cpu_mem_arena = False  # as fast, and 140 MB less at 64 captions
        options.enable_mem_pattern = False  # likewise: frees weights after they are rearranged
        # Convert weights to floats once, when the file is opened, and not in every run.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.log_severity_level = 3
        return options

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless the prompt is ``caption-last`` and the scale ``unit``."""
        if scale != UNIT:
            raise InputError(f"the embedded model supports scale 'unit' only, not {scale.name!r}")
        if prompt.free != CAPTION_LAST.free:
            raise InputError(
                f"the embedded model supports prompt 'caption-last' only, not {prompt.name!r}"
            )

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings image by image: captions share the computation of their image."""
        self.check(prompt, scale)
        opened = self._open()
        texts = opened.encode([pair.caption for pair in pairs])
        for numbers in group_by_image(pairs):
            usable, failed = [], dict[int, str]()
            for number in numbers:
                if pairs[number].references:
                    failed[number] = "the embedded model takes no references"
                elif not texts[number][0]:
                    failed[number] = "the caption is empty"
                else:
                    usable.append(number)
            if failed:
                yield list(failed), Readings.failed(scale, list(failed.values()))
            for start in range(0, len(usable), CAPTIONS_AT_ONCE):
                part = usable[start : start + CAPTIONS_AT_ONCE]
                try:
                    asked = [texts[i] for i in part]
                    readings = self._read(opened, pairs[part[0]].image, asked, hidden)
                except ImageError as error:
                    readings = Readings.failed(scale, [str(error)] * len(part))
                yield part, readings

    def _read(
        self,
        opened: _OpenFile,
        image: ImageSource,
        texts: list[tuple[list[int], bool]],
        hidden: bool,
    ) -> Readings:
        """Read captions of an image, and cache its states."""
        from PIL import Image

        lengths = np.array([len(text) for text, _ in texts], np.int64)
        ids = np.zeros((len(texts), int(lengths.max()) + 3), np.int64)
        for row, (text, _) in enumerate(texts):
            ids[row, : len(text)] = text
        if isinstance(image, str | os.PathLike):
            image = SharedImage(image)  # its file is read once
        digest, size = image_digest(image), (opened.side, opened.side)
        known = self._states.get(digest)
        if known is None:  # resized to the model's input, whatever its proportions
            known = np.empty(0, np.float32)
            small = np.asarray(open_image(image).resize(size, Image.Resampling.BICUBIC), np.float32)
            pixels = np.ascontiguousarray(small.transpose(2, 0, 1)[None])
        else:
            pixels = np.zeros((1, 3, *size), np.float32)
        stems, digits, last, head, states = opened.session.run(
            ["stems", "digits", "hidden", "answers", "states"],
            {"pixels": pixels, "known": known, "ids": ids, "lengths": lengths},
        )
        with self._lock:
            self._states.pop(digest, None)  # moves it to the end: most recently used
            self._states[digest] = states
            while len(self._states) > IMAGES_KEPT:
                del self._states[next(iter(self._states))]
        return Readings(
            UNIT,
            digits.astype(np.float64),
            stems.astype(np.float64),
            how=np.array(["cut" if cut else "forced" for _, cut in texts]),
            hidden=last if hidden else None,
            head=head if hidden else None,
        )


WAYS_TO_CHOOSE = ('load("NAME")', 'load("embedded")')
"""How to choose another model, and this one, in :func:`introduce`; the CLI replaces them."""


@cache
def introduce(identity: Identity) -> None:
    """Log which judge is used by default: one line, once per process.

    A warning of the logger ``discode``, so that it is shown on standard error by default;
    ``logging.getLogger("discode").setLevel("ERROR")`` silences it.
    """
    logging.getLogger("discode").warning(
        "discode: using the built-in judge %s (small, offline); choose another with %s; %s hides "
        "this message",
        identity.revision,
        *WAYS_TO_CHOOSE,
    )


def _digest(path: Path, *, shipped: bool) -> str:
    """Compute the file's SHA-256; that of the shipped file must match."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"no model at {path}: {error.strerror}; choose another model") from None
    if shipped and digest != SHA256:
        raise InputError(f"{path} is damaged (sha256 {digest[:8]}); reinstall discode")
    return digest
