"""The small judge that runs anywhere: an ONNX file, an image and its captions at a time.

The image and the instruction are computed once for all captions of an image; captions are
batched. Made by ``training/``, which says how. One such file ships with the package.
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

from discode.backends.base import Backend, Blocks
from discode.backends.embedded.tokenizer import Bpe
from discode.errors import ImageError, InputError
from discode.images import ImageSource, open_image
from discode.options import SIZE, Configurable, option, with_options_documented
from discode.pairs import Pair, group_by_image
from discode.prompts import CAPTION_LAST, Prompt, neutralise
from discode.readings import Identity, Readings
from discode.scales import UNIT, Scale

MODEL = "discode-embedded"
SHIPPED = Path(__file__).parents[2] / "data" / "embedded.onnx"
"""The model that ships with the package."""
SHA256 = "03723a268c5a6e2daa684133a3200808e15125b90f4e437fda71c16c208be03a"
"""Of that file: half a download must not judge."""
ADVISED_TRUST = 9999.0
"""The decoder's weight for that file, chosen on dev images by ``docs/make_trust.py``; this much
of it is smoothing: every prior that could be noticed lost there."""
VERSION_1 = "0d536ba0"
"""The file before it, of which there are recordings."""
CAPTIONS_AT_ONCE = 64
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container finds its limit: "QUOTA PERIOD", or "max PERIOD" without one."""
MAX_CHARACTERS = 8192
"""Of a caption, many times what the model reads; what goes beyond is cut before anything is done
with it, as bringing text to one form may take time that grows with the square of its length."""


def advised_trust(identity: Identity) -> float | None:
    """Return the weight that suits a model, live or recorded: known of the shipped ones alone.

    >>> advised_trust(Embedded(threads=1).identity) == ADVISED_TRUST, advised_trust(Identity("x"))
    (True, None)
    """
    if identity.model != MODEL:
        return None
    return {SHA256[:8]: ADVISED_TRUST, VERSION_1: 9999.0}.get(identity.revision.rpartition("-")[2])


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity and its container's limit."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        cores = os.cpu_count() or 1
    try:
        quota, period = map(int, CPU_QUOTA.read_text().split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(quota / period)))


class _Text(NamedTuple):
    """The ids of a caption, and whether there were more."""

    ids: list[int]
    cut: bool


@with_options_documented
@dataclass(frozen=True)
class EmbeddedOptions(Configurable):
    """The options of ``embedded``."""

    threads: int | None = option(None, "cores to use; all that the process may use", SIZE, None)


class Embedded(Backend):
    """A backend for the shipped model and other artefacts of ``training/``.

    Args:
        path: The ONNX file; the shipped one if None or empty.
        options: Those of :class:`EmbeddedOptions`.

    It knows one prompt (``caption-last``), one scale (``unit``) and no references. Captions are
    read in lower case; what goes beyond its limit of tokens is cut and flagged ``cut``. Safe for
    several threads, and after a fork.

    >>> Embedded(threads=1).identity.model
    'discode-embedded'
    """

    capabilities = frozenset({"hidden"})
    takes_references = False
    prompt = CAPTION_LAST
    _spinning = "0"

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.path = Path(path) if path else SHIPPED
        digest = _digest(self.path, shipped=not path)
        self._threads = EmbeddedOptions(**options).threads
        self._lock = threading.Lock()
        self._owner = 0
        self._session: Any = None
        metadata = self._run_session().get_modelmeta().custom_metadata_map
        if metadata.get("prompt") != CAPTION_LAST.digest:
            raise InputError(f"{self.path} is not an embedded model of this version of discode")
        tokens = json.loads(metadata["tokens"])
        ids = json.loads(metadata["merges"])
        merges = [(tokens[a], tokens[b]) for a, b in zip(ids[::2], ids[1::2], strict=True)]
        self._bpe = Bpe(tokens, merges)
        self._limit = int(metadata["limit"])
        self._side = int(self._run_session().get_inputs()[0].shape[-1])
        self.identity = Identity(MODEL, f"{metadata['version']}-{digest[:8]}", "int8")
        self.advised_trust = advised_trust(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open the same file: ``datasets`` sends judges to its workers."""
        path = None if self.path == SHIPPED else self.path
        return partial(Embedded, threads=self._threads), (path,)

    def _run_session(self) -> Any:
        """Return the session of this process; a fork does not inherit its threads."""
        with self._lock:
            if self._owner != os.getpid():
                # From 1.29 on onnxruntime reports what it runs to its makers, unless told before.
                os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
                import onnxruntime as ort  # here: `import discode` stays light

                try:
                    self._session = ort.InferenceSession(
                        str(self.path), self._options(ort), providers=["CPUExecutionProvider"]
                    )
                # onnxruntime's errors share no base that can be named without it
                except Exception as error:
                    raise InputError(f"cannot load {self.path}: {error}") from error
                self._owner = os.getpid()
            return self._session

    def _options(self, ort: Any) -> Any:
        options = ort.SessionOptions()
        # More threads than cores only get into each other's way, by the minute. onnxruntime's own
        # default would pin them, and take the cores of the host inside a container.
        cores = usable_cores()
        options.intra_op_num_threads = min(self._threads or cores, cores)
        # Threads that wait do not spin: that burns a quarter to two thirds more time, and on a busy
        # machine answers take 1.2 to 2.9 times as long (perf/embedded.py --spinning).
        options.add_session_config_entry("session.intra_op.allow_spinning", self._spinning)
        options.enable_cpu_mem_arena = False  # as fast, and 140 MB less at 64 captions
        options.log_severity_level = 3
        return options

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless it can be asked this way."""
        if scale != UNIT:
            raise InputError(f"the embedded model rates on scale 'unit' only, not {scale.name!r}")
        if prompt.free != CAPTION_LAST.free:
            raise InputError(
                f"the embedded model knows the prompt 'caption-last' only, not {prompt.name!r}"
            )

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings, an image at a time: its captions share its computation."""
        self.check(prompt, scale)
        for numbers in group_by_image(pairs):
            texts: dict[int, _Text] = {}
            failed: dict[int, str] = {}
            for number in numbers:
                if pairs[number].references:
                    failed[number] = "the embedded model takes no references"
                elif (text := self._encode(pairs[number].caption)).ids:
                    texts[number] = text
                else:
                    failed[number] = "the caption is empty"
            usable = list(texts)
            try:
                pixels = _pixels(pairs[numbers[0]].image, self._side) if usable else np.empty(0)
            except ImageError as error:
                failed |= dict.fromkeys(usable, str(error))
                usable = []
            if failed:
                yield list(failed), Readings.failed(scale, list(failed.values()))
            for start in range(0, len(usable), CAPTIONS_AT_ONCE):
                part = usable[start : start + CAPTIONS_AT_ONCE]
                yield part, self._read(pixels, [texts[i] for i in part], hidden)

    def _encode(self, caption: str) -> _Text:
        caption = caption.strip()
        # The model's own special tokens cannot be spelt: text falls to words and bytes.
        safe = neutralise(caption[:MAX_CHARACTERS])
        ids = self._bpe.encode_caption(safe, self._limit)
        cut = len(ids) > self._limit or len(caption) > MAX_CHARACTERS
        return _Text(ids[: self._limit], cut)

    def _read(self, pixels: np.ndarray, texts: list[_Text], hidden: bool) -> Readings:
        lengths = np.array([len(text.ids) for text in texts], np.int64)
        ids = np.zeros((len(texts), int(lengths.max()) + 3), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = text.ids
        stems, digits, states, head = self._run_session().run(
            None, {"pixels": pixels, "ids": ids, "lengths": lengths}
        )
        return Readings(
            UNIT,
            digits.astype(np.float64),
            stems.astype(np.float64),
            how=np.array(["cut" if text.cut else "forced" for text in texts]),
            hidden=states if hidden else None,
            head=head if hidden else None,
        )


@cache
def introduce(identity: Identity) -> None:
    """Say who judges where no model was named: one line, once per process.

    It goes to the logger ``discode``, as a warning so that it is seen where logging was not set
    up (on standard error); ``logging.getLogger("discode").setLevel("ERROR")`` silences it.
    """
    logging.getLogger("discode").warning(
        "discode: judging with the embedded model %s, small and offline; for a larger judge give "
        "load(...) or --model another (discode models lists some); name 'embedded' to hide this "
        "line",
        identity.revision,
    )


def _digest(path: Path, *, shipped: bool) -> str:
    """Return the file's SHA-256; the shipped one must be whole."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        cure = "; reinstall discode, or name another model" if shipped else ""
        raise InputError(f"no model at {path}: {error.strerror}{cure}") from None
    if shipped and digest != SHA256:
        raise InputError(
            f"{path} is not the model of this version (sha256 {digest[:8]}..., not "
            f"{SHA256[:8]}...); reinstall discode, or name another model"
        )
    return digest


def _pixels(image: ImageSource, side: int) -> np.ndarray:
    """Squash an image to what the model sees: (1, 3, side, side), 0 ... 255."""
    from PIL import Image

    small = open_image(image).resize((side, side), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1)[None])
