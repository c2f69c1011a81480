"""The small judge that runs anywhere: an ONNX file, an image and its captions at a time.

The image and the instruction are computed once for all captions of an image; captions are
batched. Made by ``training/``, which says how. One such file ships with the package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from discode.backends.embedded.tokenizer import Bpe
from discode.errors import ImageError, InputError
from discode.images import ImageSource, open_image
from discode.pairs import Pair, group_by_image
from discode.prompts import CAPTION_LAST, Prompt, neutralise
from discode.readings import Identity, Readings, ReadingsCollector
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


def advised_trust(identity: Identity) -> float | None:
    """Return the weight that suits a model, live or recorded: known of the shipped ones alone.

    >>> advised_trust(Embedded(threads=1).identity) == ADVISED_TRUST, advised_trust(Identity("x"))
    (True, None)
    """
    if identity.model != MODEL:
        return None
    return {SHA256[:8]: ADVISED_TRUST, VERSION_1: 9999.0}.get(identity.revision.rpartition("-")[2])


class EmbeddedOptions(TypedDict, total=False):
    """What the embedded model may be told."""

    threads: Annotated[int, "cores to use; all of them by default"]


class Embedded:
    """A backend for the shipped model and other artefacts of ``training/``.

    Args:
        path: The ONNX file; the shipped one if None or empty.
        threads: Cores to use; all of them if None.

    It knows one prompt (``caption-last``), one scale (``unit``) and no references. Captions are
    read in lower case; what goes beyond its limit of tokens is cut and flagged ``cut``. Safe for
    several threads, and after a fork.

    >>> Embedded(threads=1).identity.model
    'discode-embedded'
    """

    capabilities = frozenset({"hidden"})
    prompt = CAPTION_LAST
    scale = UNIT

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, threads: int | None = None
    ) -> None:
        self.path = Path(path) if path else SHIPPED
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise InputError(f"threads={threads} is not allowed; give 1 or more")
        digest = _digest(self.path, shipped=not path)
        self._threads = threads
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

    @property
    def advised_trust(self) -> float | None:
        """The decoder's weight for the shipped file; None for another."""
        return advised_trust(self.identity)

    def _run_session(self) -> Any:
        """Return the session of this process; a fork does not inherit its threads."""
        with self._lock:
            if self._owner != os.getpid():
                import onnxruntime as ort  # here: `import discode` stays light

                options = ort.SessionOptions()
                # More threads than cores only get into each other's way, by the minute.
                options.intra_op_num_threads = min(self._threads or 0, os.cpu_count() or 1)
                options.enable_cpu_mem_arena = False  # as fast, and 140 MB less at 64 captions
                options.log_severity_level = 3
                try:
                    self._session = ort.InferenceSession(
                        str(self.path), options, providers=["CPUExecutionProvider"]
                    )
                # onnxruntime's errors share no base that can be named without it
                except Exception as error:
                    raise InputError(f"cannot load {self.path}: {error}") from error
                self._owner = os.getpid()
            return self._session

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
    ) -> Readings:
        """Read N pairs; the captions of an image share its computation."""
        self.check(prompt, scale)
        collector = ReadingsCollector(scale, len(pairs))

        def fail(numbers: Sequence[int], reason: str) -> None:
            collector.add(Readings.failed(scale, [reason]), [numbers])

        for numbers in group_by_image(pairs):
            texts: dict[int, list[int]] = {}
            for number in numbers:
                if pairs[number].references:
                    fail([number], "the embedded model takes no references")
                # The model's own special tokens cannot be spelt: text falls to words and bytes.
                elif ids := self._bpe.encode_caption(neutralise(pairs[number].caption)):
                    texts[number] = ids
                else:
                    fail([number], "the caption is empty")
            usable = list(texts)
            try:
                pixels = _pixels(pairs[numbers[0]].image, self._side) if usable else np.empty(0)
            except ImageError as error:
                fail(usable, str(error))
                continue
            for start in range(0, len(usable), CAPTIONS_AT_ONCE):
                part = usable[start : start + CAPTIONS_AT_ONCE]
                collector.add(self._read(pixels, [texts[i] for i in part], hidden), part)
        return collector.readings()

    def _read(self, pixels: np.ndarray, texts: list[list[int]], hidden: bool) -> Readings:
        lengths = np.array([min(len(ids), self._limit) for ids in texts], np.int64)
        ids = np.zeros((len(texts), int(lengths.max()) + 3), np.int64)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            ids[row, :length] = text[:length]
        stems, digits, states, head = self._run_session().run(
            None, {"pixels": pixels, "ids": ids, "lengths": lengths}
        )
        return Readings(
            UNIT,
            digits.astype(np.float64),
            stems.astype(np.float64),
            how=np.array(["cut" if len(t) > self._limit else "forced" for t in texts]),
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
