"""Packed captions against the loop: python perf/engine.py --arch llava-next-8b --random-weights

The loop is FLEUR's: one pair at a time, ``generate`` of five tokens with scores. Both are timed in
one run, picture processing included, on the same pictures and captions. Exits with 1 unless packed
and plain agree. ``--arch tiny --device cpu`` takes less than a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image

from discode.backends.engine import AGREE
from discode.backends.hf import Local
from discode.backends.random_weights import ARCHITECTURES, random_model
from discode.backends.tokens import conversation
from discode.decoders import get_decoder
from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT

CAPTION = "a man in a red shirt is riding a bike down a hill near the beach"


def pictures(count: int) -> list[Image.Image]:
    """Return photographs' sizes filled with noise."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (375, 500, 3), np.uint8)) for _ in range(count)]


def wait() -> None:
    """Let the GPU finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def loop(backend: Local, pairs: list[Pair]) -> float:
    """Return seconds a pair, one at a time, five tokens generated with their scores."""
    engine = backend.engine
    device, dtype = engine.model.device, engine.model.dtype

    def ask(pair: Pair) -> None:
        inputs: Any = engine.processor.apply_chat_template(
            conversation(FLEUR.render(pair.caption, (), UNIT), pair.image),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            engine.model.generate(
                **inputs.to(device, dtype),
                max_new_tokens=5,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )

    ask(pairs[0])
    wait()
    start = time.perf_counter()
    for pair in pairs:
        ask(pair)
    wait()
    return (time.perf_counter() - start) / len(pairs)


def packed(backend: Local, pairs: list[Pair]) -> float:
    """Return seconds a pair, packed."""
    backend.read(pairs, FLEUR, UNIT)
    wait()
    start = time.perf_counter()
    backend.read(pairs, FLEUR, UNIT)
    wait()
    return (time.perf_counter() - start) / len(pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default="tiny")
    parser.add_argument("--model", help="a checkpoint instead")
    parser.add_argument("--random-weights", action="store_true", help="say that you know")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--captions", type=int, nargs="*", default=[1, 2, 6, 16, 48])
    args = parser.parse_args()
    model = args.model or random_model(args.arch, args.device, args.dtype)
    backend = Local(model, read="forced", images_at_once=args.images)
    images = pictures(args.images)
    some = [Pair(image, f"{CAPTION} {i}") for image in images[:2] for i in range(3)]
    together = backend.read(some, FLEUR, UNIT)
    was, backend.engine.packed = backend.engine.packed, False
    apart = float(np.abs(together.answer_logp - backend.read(some, FLEUR, UNIT).answer_logp).max())
    backend.engine.packed = was
    dtype = backend.identity.dtype
    tokens = backend.engine.picture(
        images[0], backend.engine.vocabulary.asked(FLEUR, UNIT, references=False)
    ).ids.shape[1]
    print(f"{backend.identity.model}, {dtype}, {tokens} prefix tokens, packed: {was}")
    print(f"packed against plain: {apart:.1e} in log-probability")
    alone = loop(backend, [Pair(image, CAPTION) for image in images])
    print(f"loop: {1e3 * alone:.1f} ms a pair")
    print("| captions a picture | packed, ms a pair | pairs/s | against the loop |")
    print("| --- | --- | --- | --- |")
    for count in args.captions:
        pairs = [Pair(image, f"{CAPTION} {i}") for image in images for i in range(count)]
        each = packed(backend, pairs)
        print(f"| {count} | {1e3 * each:.2f} | {1 / each:.0f} | x{alone / each:.1f} |", flush=True)
    readings = backend.read(some, FLEUR, UNIT)
    many = readings.take(np.resize(np.arange(len(readings)), 10_000))
    decoder = get_decoder("discode")
    decoder.decode(many)
    start = time.perf_counter()
    decoder.decode(many)
    share = (time.perf_counter() - start) / len(many) / alone
    print(f"decoding costs {100 * share:.5f} % of the loop's pair")
    if not was or apart > AGREE[dtype]:
        sys.exit("packed and plain do not agree")


if __name__ == "__main__":
    main()
