"""The small judge that runs anywhere: an ONNX file, an image and its captions at a time.

The image and the instruction are computed once for all captions of an image; captions are
batched. What was computed of the last images is kept, for captions that come later. Made by
``training/``, which says how. One such file ships with the package.
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
"""Of that file: half a download must not judge."""
VERSION = "3"
"""Of that model; any other file says its own."""
CAPTIONS_AT_ONCE = 64
IMAGES_KEPT = 256
"""Images whose states are kept, 600 KB each: those that were used last."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container finds its limit: "QUOTA PERIOD", or "max PERIOD" without one."""
MAX_CHARACTERS = 8192
"""Of a caption, many times what the model reads; what goes beyond is cut before anything is done
with it, as bringing text to one form may take time that grows with the square of its length."""


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


@with_options_documented
@dataclass(frozen=True)
class EmbeddedOptions(Configurable):
    """The options of ``embedded``."""

    threads: int | None = option(
        None, "cores to use; OMP_NUM_THREADS, else all that the process may use", SIZE, None
    )


class _OpenFile(NamedTuple):
    """A model that a process has opened, and what its file says."""

    session: Any
    version: str
    side: int
    limit: int
    bpe: Bpe

    def encode(self, captions: list[str]) -> list[tuple[list[int], bool]]:
        """Return the ids of each caption, and whether there were more."""
        captions = [caption.strip() for caption in captions]
        # The model's own special tokens cannot be spelt: text falls to words and bytes.
        safe = [neutralise(caption[:MAX_CHARACTERS]) for caption in captions]
        tokens = [self.bpe.encode_caption(caption, self.limit) for caption in safe]
        return [
            (ids[: self.limit], len(ids) > self.limit or len(caption) > MAX_CHARACTERS)
            for ids, caption in zip(tokens, captions, strict=True)
        ]


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
        self._threads = EmbeddedOptions(**options).threads
        digest = _digest(self.path, shipped=not path)
        self._lock = threading.Lock()
        self._owner = 0
        self._states: dict[str, np.ndarray] = {}  # by image, in the order they were used
        # The shipped file is known: what is answered from a store needs no model.
        version = self._open().version if path else VERSION
        self.identity = Identity(MODEL, f"{version}-{digest[:8]}", "int8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open the same file: ``datasets`` sends judges to its workers."""
        path = None if self.path == SHIPPED else self.path
        return partial(Embedded, threads=self._threads), (path,)

    def _open(self) -> _OpenFile:
        """Return the file as this process opened it; a fork does not inherit its threads."""
        with self._lock:
            if self._owner != os.getpid():
                self._opened = self._open_again()
                self._owner = os.getpid()
            return self._opened

    def _open_again(self) -> _OpenFile:
        # From 1.29 on onnxruntime reports what it runs to its makers, unless told before.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime as ort  # here: `import discode` stays light

        try:
            session = ort.InferenceSession(
                str(self.path), self._options(ort), providers=["CPUExecutionProvider"]
            )
        # onnxruntime's errors share no base that can be named without it
        except Exception as error:
            raise InputError(f"cannot load {self.path}: {error}") from error
        metadata = session.get_modelmeta().custom_metadata_map
        inputs = {each.name: each.shape for each in session.get_inputs()}
        if metadata.get("prompt") != CAPTION_LAST.digest or "known" not in inputs:
            raise InputError(f"{self.path} is not an embedded model of this version of discode")
        tokens, ids = json.loads(metadata["tokens"]), json.loads(metadata["merges"])
        merges = [(tokens[a], tokens[b]) for a, b in zip(ids[::2], ids[1::2], strict=True)]
        return _OpenFile(
            session, metadata["version"], int(inputs["pixels"][-1]), int(metadata["limit"]),
            Bpe(tokens, merges),
        )  # fmt: skip

    def _options(self, ort: Any) -> Any:
        options = ort.SessionOptions()
        # More threads than cores only get into each other's way, by the minute. onnxruntime's own
        # default would pin them, and take the cores of the host inside a container.
        cores = usable_cores()
        usual = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # as Ray sets for workers
        threads = self._threads or int(usual if usual.strip().isdecimal() else 0) or cores
        options.intra_op_num_threads = min(threads, cores)
        # Threads that wait do not spin: that burns a quarter to two thirds more time, and on a busy
        # machine answers take 1.2 to 2.9 times as long (perf/embedded.py --spinning).
        options.add_session_config_entry("session.intra_op.allow_spinning", self._spinning)
        options.enable_cpu_mem_arena = False  # as fast, and 140 MB less at 64 captions
        options.enable_mem_pattern = False  # likewise: weights are freed once they are rearranged
        # Weights become floats once, when the file is opened, and not in every run.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
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
        """Read captions of an image; what is known of it by then is kept."""
        from PIL import Image

        lengths = np.array([len(text) for text, _ in texts], np.int64)
        ids = np.zeros((len(texts), int(lengths.max()) + 3), np.int64)
        for row, (text, _) in enumerate(texts):
            ids[row, : len(text)] = text
        if isinstance(image, str | os.PathLike):
            image = SharedImage(image)  # its file is read once
        digest, size = image_digest(image), (opened.side, opened.side)
        known = self._states.get(digest)
        if known is None:  # it is squashed to what the model sees
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
            self._states.pop(digest, None)  # those that were used last are at the end
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
"""How :func:`introduce` says to name a model, and this one; the command line has its own way."""


@cache
def introduce(identity: Identity) -> None:
    """Name the judge where no model was named: one line, once per process.

    It goes to the logger ``discode``, as a warning so that it is seen where logging was not set
    up (on standard error); ``logging.getLogger("discode").setLevel("ERROR")`` silences it.
    """
    logging.getLogger("discode").warning(
        "discode: using the built-in judge %s (small, offline); choose another with %s; %s hides "
        "this message",
        identity.revision,
        *WAYS_TO_CHOOSE,
    )


def _digest(path: Path, *, shipped: bool) -> str:
    """Return the file's SHA-256; the shipped one must be whole."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"no model at {path}: {error.strerror}; name another model") from None
    if shipped and digest != SHA256:
        raise InputError(f"{path} is damaged (sha256 {digest[:8]}); reinstall discode")
    return digest
