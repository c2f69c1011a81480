"""Ask trained models, before they are a file: figures on dev, readings of the judged test pairs.

    python -m training.evaluate pairs FLICKR8K       the judged test pairs, as ids (no judgments)
    python -m training.evaluate read NAME ...        what models say of them: build/NAME_test.npz

Models are selected on dev images and pseudo ratings alone; agreement with people is measured by
``agreement.py``, and nothing is fed back.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discode.backends.embedded.tokenizer import Bpe
from training import common, pictures
from training.agreement import DOMAINS, expected, judged_pairs
from training.labels import Labels
from training.model import CaptionJudge
from training.packing import Answers, Packed, Special, run


@torch.no_grad()
def ask(
    model: CaptionJudge, pixels: Tensor, captions: tuple[Tensor, Tensor], special: Special
) -> Answers:
    """Return what a model says of uint8 pictures with N captions each."""
    device = pixels.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        return run(model, pictures.normal(pixels), Packed(*captions), special)


def read_pairs(
    model: CaptionJudge,
    images: Tensor,
    image: np.ndarray,
    ids: Tensor,
    lengths: Tensor,
    special: Special,
    group: int = 16,
    batch: int = 64,
) -> tuple[np.ndarray, np.ndarray]:
    """Read pairs (image number, caption) with captions of an image packed together."""
    rows: list[np.ndarray] = []
    order = np.argsort(image, kind="stable")
    for same in np.split(order, np.flatnonzero(np.diff(image[order])) + 1):
        rows += [same[i : i + group] for i in range(0, len(same), group)]
    stems = np.empty((len(image), 2), np.float32)
    digits = np.empty((len(image), 10), np.float32)
    rows.sort(key=len)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        width = max(map(len, part))
        full = np.stack([np.resize(row, width) for row in part])
        index = torch.from_numpy(full).to(ids.device)
        pixels = images[torch.from_numpy(image[full[:, 0]]).to(images.device)].to(ids.device)
        says = ask(model, pixels, (ids[index], lengths[index]), special)
        s, d = says.stem.float().cpu().numpy(), says.digits.float().cpu().numpy()
        for row, a, b in zip(part, s, d, strict=True):
            stems[row], digits[row] = a[: len(row)], b[: len(row)]
    return stems, digits


def dev(model: CaptionJudge, labels: Labels, special: Special) -> dict[str, Any]:
    """Return figures on dev images: pseudo ratings, own against others, wrong words."""
    from scipy.stats import kendalltau

    from training.batches import Captions

    device = str(labels.device)
    images = pictures.decode("dev").to(device)
    n = len(images)
    slots = common.config()["data"]["long_tokens"]
    captions = Captions.load("dev", slots, device)
    similarity = labels.dev().cpu().numpy()
    rng = np.random.default_rng(1)
    image, caption = [], []
    for i in range(n):
        order = np.argsort(-similarity[i])
        order = order[order // 5 != i]
        top = min(1500, len(order))
        hard = order[(np.exp(rng.random(6) * np.log(top)) - 1).astype(int)]
        image += [i] * 15
        caption += [*range(i * 5, i * 5 + 5), *hard, *rng.choice(order, 4)]
    index, chosen = np.array(image), np.array(caption)
    rows = torch.from_numpy(chosen).to(device)
    score = expected(
        *read_pairs(model, images, index, captions.ids[rows], captions.lengths[rows], special)
    )
    other = chosen // 5 != index
    cuts = [labels.low + (labels.high - labels.low) * share for share in (0.15, 0.45, 0.75)]
    level = np.digitize(similarity[index, chosen], cuts)
    by_image = score.reshape(n, 15)
    own = by_image[:, :5, None]
    figures = {
        "tau_c": float(100 * kendalltau(score[other], level[other], variant="c").statistic),
        "own_over_hard": float((own > by_image[:, None, 5:11]).mean()),
        "own_over_random": float((own > by_image[:, None, 11:]).mean()),
        "share_of_ones": float((score > 0.95).mean()),
    }
    text = np.load(common.BUILD / "text.npz")
    kinds = np.array([row[2] for row in common.load_json("dev_swaps.json")])
    source = text["dev_swap_source"]
    swaps = Captions.load("dev_swap", slots, device)
    rows = torch.arange(len(source), device=device)
    swapped = expected(
        *read_pairs(model, images, source // 5, swaps.ids[rows], swaps.lengths[rows], special)
    )
    rows = torch.arange(n * 5, device=device)
    before = expected(
        *read_pairs(
            model,
            images,
            np.arange(n * 5) // 5,
            captions.ids[rows],
            captions.lengths[rows],
            special,
        )
    )[source]
    for kind in np.unique(kinds):
        where = kinds == kind
        figures[f"swap_{kind}"] = float((before[where] > swapped[where]).mean())
    return figures


def load(name: str, device: str) -> CaptionJudge:
    """Return a trained model."""
    saved = torch.load(common.BUILD / f"{name}.pt", weights_only=True)
    model = CaptionJudge(saved["layers"])
    model.load_state_dict({key: value.float() for key, value in saved["weights"].items()})
    return model.to(device).eval()


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pairs", "read"))
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    if args.command == "pairs":
        tokenizer = common.load_json("tokenizer.json")
        bpe = Bpe(tokenizer["tokens"], tokenizer["merges"])
        names = common.load_json("names.json")["test"]
        arrays: dict[str, Any] = {}
        for name, (image, text) in judged_pairs(Path(args.words[0]), names).items():
            arrays[f"{name}_image"] = image.astype(np.int32)
            arrays[name], arrays[f"{name}_offset"] = common.ragged(
                [bpe.encode(" " + t) for t in text]
            )
        np.savez_compressed(common.BUILD / "pairs.npz", **arrays)
    else:
        _read(args.words)


def _read(names: list[str]) -> None:
    from training.batches import Captions, special_tokens

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs = np.load(common.BUILD / "pairs.npz")
    slots = common.config()["data"]["long_tokens"]
    special = special_tokens(device)
    for name in names:
        model = load(name, device)
        arrays: dict[str, Any] = {}
        for domain in DOMAINS:
            images = (
                pictures.decode("test") if domain == "photo" else pictures.styled("test", domain)
            )
            for which in ("expert", "crowd") if domain == "photo" else ("expert",):
                captions = Captions.pad(pairs[which], pairs[f"{which}_offset"], slots, device)
                stems, digits = read_pairs(
                    model, images, pairs[f"{which}_image"], captions.ids, captions.lengths, special
                )
                arrays[f"{which}_{domain}_stem"] = stems.astype(np.float16)
                arrays[f"{which}_{domain}_digits"] = digits.astype(np.float16)
        np.savez_compressed(common.BUILD / f"{name}_test.npz", **arrays)
        print("read", name, flush=True)


if __name__ == "__main__":
    main()
