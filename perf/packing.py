"""Packed captions against the loop: python perf/packing.py --arch llava-next-8b --random-weights

The loop is FLEUR's: one pair at a time, ``generate`` of five tokens with scores, on the model as
transformers loads it. Both are timed in one run, with the processing of images, on the same images
and captions. A prefix (images and instruction, vision tower and language model) is compared with
its own matrix products: every linear layer and convolution that it calls, on inputs of the same
shape, and nothing else. Exits with 1 unless packed and separate passes agree.
``--arch tiny --device cpu`` takes less than a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from discode.backends import read_all
from discode.backends.local.backend import Local
from discode.backends.local.calibrate import packing_error
from discode.backends.local.forward import ProcessedImage
from discode.backends.local.gpu.fp8 import Fp8Linear, use_fp8
from discode.backends.local.load import DTYPES, LoadedModel, LocalOptions, load_model
from discode.backends.local.vocabulary import conversation
from discode.decoders import get_decoder
from discode.pairs import Pair
from discode.paper.random_weights import ARCHITECTURES, random_model
from discode.prompts import FLEUR
from discode.readings import Readings
from discode.scales import UNIT

CAPTION = "a man in a red shirt is riding a bike down a hill near the beach"


def noise_images(count: int) -> list[Image.Image]:
    """Return images of noise, as large as photographs."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (375, 500, 3), np.uint8)) for _ in range(count)]


def seconds(work: Callable[[], object], repeats: int = 2) -> float:
    """Return the shortest of several timings after a first one that warms up."""
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def loop(loaded: LoadedModel, pairs: list[Pair]) -> None:
    """Ask one pair at a time; generate five tokens with their scores."""
    for pair in pairs:
        inputs: Any = loaded.processor.apply_chat_template(
            conversation(FLEUR.render(pair.caption, (), UNIT), pair.image),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            loaded.model.generate(
                **inputs.to(loaded.device, loaded.model.dtype),
                max_new_tokens=5,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )


def prefix(backend: Local, ready: list[ProcessedImage]) -> None:
    """Run the prefixes of some images."""
    with torch.inference_mode():
        backend.runner.run_prefixes(ready)


def products(backend: Local, ready: list[ProcessedImage]) -> Callable[[], None]:
    """Return a function that runs a prefix's matrix products alone."""
    calls: list[tuple[Any, tuple[int, ...]]] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, given: calls.append((m, given[0].shape)))
        for module in backend.runner.model.modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d | Fp8Linear)
    ]
    prefix(backend, ready)
    for hook in hooks:
        hook.remove()
    model = backend.runner.model
    inputs = {
        shape: torch.randn(shape, device=model.device, dtype=model.dtype) for _, shape in calls
    }

    def run() -> None:
        with torch.inference_mode():
            for module, shape in calls:
                module(inputs[shape])

    return run


def compared(rounded: Readings, exact: Readings) -> str:
    """Return how far the readings in 8 bits are from those in bfloat16."""
    off = rounded.answer_logp - exact.answer_logp
    scores = [get_decoder("smoothing").decode(each).score for each in (rounded, exact)]
    moved = np.abs(scores[0] - scores[1])
    top = (rounded.answer_logp.argmax(-1) != exact.answer_logp.argmax(-1)).mean()
    return (
        f"fp8 against {len(exact)} pairs without: log-probabilities "
        f"{np.sqrt((off**2).mean()):.3f} apart (root mean square; their spread is "
        f"{exact.answer_logp.std():.2f}), smoothed scores {moved.mean():.4f} on average and "
        f"{moved.max():.4f} at most, another likeliest digit in {100 * top:.1f} %"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default="tiny")
    parser.add_argument("--model", help="a checkpoint instead")
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="the default, unless --model",
    )
    parser.add_argument("--device")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument(
        "--fp8", action="store_true", help="products of 8-bit floats, as quantize=fp8"
    )
    parser.add_argument("--images", type=int, help="16 on a GPU, else 4")
    parser.add_argument("--captions", type=int, nargs="+", default=[1, 2, 6, 16, 48])
    parser.add_argument("--second", action="store_true", help="the second decimal's share, too")
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
    args = parser.parse_args()
    loaded = (
        load_model(args.model, LocalOptions(device=args.device, dtype=args.dtype or "auto"))
        if args.model
        else random_model(args.arch, args.device, args.dtype)
    )
    images = noise_images(args.images or (16 if loaded.device.type == "cuda" else 4))
    each = [Pair(image, CAPTION) for image in images]
    alone = seconds(lambda: loop(loaded, each[:4])) / 4

    backend = Local(loaded, read="forced")
    if args.fp8:
        six = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(6)]
        before = read_all(backend, six, FLEUR, UNIT)
        use_fp8(loaded.model, loaded.device)
        backend = Local(loaded, read="forced")
        print(compared(read_all(backend, six, FLEUR, UNIT), before))
    some = [Pair(image, f"{CAPTION} {i}") for image in images[:2] for i in range(3)]
    together = read_all(backend, some, FLEUR, UNIT)
    runner = backend.runner
    was, runner.packed = runner.packed, False
    plain = read_all(backend, some, FLEUR, UNIT)
    apart, allowed = packing_error(runner, together.answer_logp, plain.answer_logp)
    runner.packed = was
    dtype = backend.identity.dtype
    tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    ready = [runner.process_image(image, tokenized) for image in images]
    ready = ready[: runner.images_that_fit(ready[0])]
    tokens = ready[0].ids.shape[1]
    where = torch.cuda.get_device_name() if loaded.device.type == "cuda" else "CPU"
    print(f"{backend.identity.model}, {dtype}, {where}, torch {torch.__version__}")
    most = float(np.abs(together.answer_logp - plain.answer_logp).max())
    print(
        f"packed against separate passes: log-probabilities {apart:.1e} apart (root mean square; "
        f"rounding is {allowed:.1e}), {most:.1e} at most"
    )
    print(f"loop: {1e3 * alone:.1f} ms per pair")
    whole = seconds(lambda: prefix(backend, ready)) / len(ready)
    bare = seconds(products(backend, ready)) / len(ready)
    print(
        f"prefix of {tokens} tokens, {len(ready)} images at once: {1e3 * whole:.2f} ms, its "
        f"matrix products {1e3 * bare:.2f} ms: x{whole / bare:.2f}"
    )
    print("| captions per image | packed, ms per pair | pairs/s | against the loop |")
    print("| --- | --- | --- | --- |")
    rows = []
    for count in args.captions:
        pairs = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(count)]
        pair = seconds(lambda p=pairs: read_all(backend, p, FLEUR, UNIT)) / len(pairs)  # type: ignore[misc]  # bound at once
        rows.append({"captions": count, "packed": pair, "ratio": alone / pair})
        print(f"| {count} | {1e3 * pair:.2f} | {1 / pair:.0f} | x{alone / pair:.1f} |", flush=True)
    if args.second:
        runner.second_decimal = False
        less = seconds(lambda: read_all(backend, pairs, FLEUR, UNIT)) / len(pairs)
        runner.second_decimal = True
        print(f"without the second decimal, {count} captions: {1e3 * less:.2f} ms per pair")
    many = together.take(np.resize(np.arange(len(together)), 10_000))
    decoder = get_decoder("discode")
    decode = seconds(lambda: decoder.decode(many)) / len(many)
    print(
        f"decoding: {1e6 * decode:.2f} µs per pair, {100 * decode / alone:.5f} % of the loop's, "
        f"{100 * decode / pair:.5f} % of the last packed pair"
    )
    if args.json:
        figures = {
            "model": backend.identity.model, "dtype": dtype, "device": where, "loop": alone,
            "fp8": args.fp8, "tokens": tokens, "prefix": whole, "products": bare,
            "decode": decode, "rows": rows,
        }  # fmt: skip
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if not was or apart > allowed:
        sys.exit("packed and separate passes do not agree")


if __name__ == "__main__":
    main()
