"""The part of a processor that reads the image, run without the part that reads the text.

A processor renders, expands and tokenises the whole prompt for each image, in Python, which holds
back the thread that launches the model. But the ids depend only on the size of the image.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from PIL import Image

from discode.errors import require

SMALL = 64
"""Elements of tensors that are compared by value: sizes and counts, not pixels."""


class Call(NamedTuple):
    """How a processor calls its image processor: how deep the image is in lists, and options."""

    depth: int
    options: dict[str, Any]


class Recorder:
    """Stands in for an image processor: returns ``output`` if it is given, and records calls."""

    def __init__(self, real: Any, output: Any = None) -> None:
        self.real, self.output = real, output
        self.calls: list[Call | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __call__(self, images: Any, *more: Any, **options: Any) -> Any:
        depth, inner = 0, images
        while isinstance(inner, list | tuple) and len(inner) == 1:
            depth, inner = depth + 1, inner[0]
        plain = isinstance(inner, Image.Image) and not more
        self.calls.append(Call(depth, dict(options)) if plain else None)
        if self.output is None or not plain:
            self.output = self.real(images, *more, **options)
        return copy.copy(self.output)  # processors remove parts of it


class ImagePart:
    """The image processor of a processor, called as the processor itself calls it.

    How is learnt from the first image. ``known`` is None until then, and if the processor does more
    with an image than that: then it must be run as a whole.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.real: Any = getattr(processor, "image_processor", None)
        self.known: Call | None = None
        self._usable = self.real is not None

    def run(self, opened: Image.Image) -> Any:
        """Process an image without text; None if this cannot be done, or not yet."""
        known = self.known
        return None if known is None else self._run(opened, known)

    def _run(self, opened: Image.Image, call: Call) -> Any:
        images: Any = opened
        for _ in range(call.depth):
            images = [images]
        return self.real(images, **call.options)

    def with_output(self, output: Any) -> tuple[Any, Recorder | None]:
        """Copy the processor with an image processor that returns ``output``, unless it is None."""
        if not self._usable:
            return None, None
        twin, recorder = copy.copy(self._processor), Recorder(self.real, output)
        twin.image_processor = recorder
        return twin, recorder

    def learn(
        self, recorder: Recorder, opened: Image.Image, ids: Any, inputs: dict[str, Any]
    ) -> list[str] | None:
        """List the inputs that are the image processor's output; None if they cannot be told apart.

        All others have a value per token of the prompt.
        """
        call = recorder.calls[0] if len(recorder.calls) == 1 else None
        if call is not None and self._usable and self.known in (None, call):
            first, self.known = self.known is None, call
            outputs = [recorder.output, *([self._run(opened, call)] if first else ())]
            names = [name for name in inputs if name in recorder.output]
            others = [inputs[name] for name in inputs if name not in names]
            if all(_same(output[name], inputs[name]) for output in outputs for name in names) and (
                all(other.shape[:2] == ids.shape for other in others)
            ):
                return names
        self._usable, self.known = False, None
        return None


def _same(one: Any, other: Any) -> bool:
    torch = require("torch", "hf")
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return one is other or (tensors and one.dtype == other.dtype and torch.equal(one, other))


def size_key(opened: Image.Image, output: Any) -> tuple[Any, ...]:
    """A key that is equal for images around which a processor writes the same ids."""
    torch = require("torch", "hf")
    values: list[Any] = []
    for name, value in sorted(output.items()):
        if isinstance(value, torch.Tensor):
            small = value.tolist() if value.numel() <= SMALL else value.dtype
            values.append((name, tuple(value.shape), repr(small)))
        else:
            values.append((name, repr(value)))
    return opened.size, *values
