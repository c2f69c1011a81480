"""Evaluate trained models. Three commands:

    python -m training.evaluate pairs FLICKR8K       the judged test pairs, as ids (no judgments)
    python -m training.evaluate read NAME ...        what models say of them: build/NAME_test.npz
    python -m training.evaluate figures FLICKR8K NAME ...   agreement with people, in percent

Models are selected on dev images and pseudo ratings alone; ``figures`` is the only place that
reads human judgments, and nothing is fed back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import discode
from discode.backends.bpe import Bpe
from discode.scales import UNIT
from training import common, pictures
from training.labels import Labels
from training.model import CaptionJudge
from training.packing import Answers, Packed, Special, run

DOMAINS = ("photo", "sketch", "painting", "quickdraw", "clipart", "infograph", "noisy")


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


def decoded(stems: np.ndarray, digits: np.ndarray, method: str) -> np.ndarray:
    """Return the scores of readings, stems (N, 2) and digits behind "0." (N, 10)."""
    answers = np.full((len(digits), 2, 10), np.nan)  # behind "1." there is only 1.0
    answers[:, 0] = digits
    return discode.decode(discode.Readings(UNIT, answers, stems), method).value


def expected(stems: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Return the expected score under the joint reading."""
    return decoded(stems, digits, "smoothing:reading=joint")


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


def judged_pairs(folder: Path) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Return the judged pairs: expert (5,664, own references dropped) and crowd (47,830)."""
    from training.data import read_captions

    captions = read_captions(folder)
    test = {name: i for i, name in enumerate(common.load_json("names.json")["test"])}
    result = {}
    for name, file in (
        ("expert", "ExpertAnnotations.txt"),
        ("crowd", "CrowdFlowerAnnotations.txt"),
    ):
        image, text = [], []
        for line in (folder / file).read_text().splitlines():
            picture, key = line.split("\t")[:2]
            source, _, number = key.partition("#")
            if name == "expert" and source == picture:
                continue
            image.append(test[picture])
            text.append(captions[source][int(number)])
        result[name] = np.array(image), text
    return result


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pairs", "read", "figures"))
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    if args.command == "pairs":
        tokenizer = common.load_json("tokenizer.json")
        bpe = Bpe(tokenizer["tokens"], tokenizer["merges"])
        arrays: dict[str, Any] = {}
        for name, (image, text) in judged_pairs(Path(args.words[0])).items():
            arrays[f"{name}_image"] = image.astype(np.int32)
            arrays[name], arrays[f"{name}_offset"] = common.ragged(
                [bpe.encode(" " + t) for t in text]
            )
        np.savez_compressed(common.BUILD / "pairs.npz", **arrays)
    elif args.command == "read":
        _read(args.words)
    else:
        _figures(Path(args.words[0]), args.words[1:])


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


def _figures(folder: Path, names: list[str]) -> None:
    from scipy.stats import kendalltau

    votes = []
    for line in (folder / "ExpertAnnotations.txt").read_text().splitlines():
        image, caption, *rating = line.split("\t")
        if caption.partition("#")[0] != image:
            votes.append([int(r) for r in rating])
    lines = (folder / "CrowdFlowerAnnotations.txt").read_text().splitlines()
    crowd = np.array([float(line.split("\t")[2]) for line in lines])
    human = np.ravel(votes)
    for name in names:
        data = np.load(common.BUILD / f"{name}_test.npz")

        def scores(part: str, method: str, data: Any = data) -> np.ndarray:
            return decoded(data[f"{part}_stem"], data[f"{part}_digits"], method)

        row = {}
        for method in (
            "raw",
            "smoothing",
            "discode",
            "paper",
            "smoothing:reading=joint",
            "discode:reading=joint",
        ):
            for domain in DOMAINS:
                value = scores(f"expert_{domain}", method)
                row[f"{domain} {method}"] = (
                    100 * kendalltau(np.repeat(value, 3), human, variant="c").statistic
                )
            row[f"crowd tau_b {method}"] = (
                100 * kendalltau(scores("crowd_photo", method), crowd).statistic
            )
        print(
            name, json.dumps({key: round(float(value), 2) for key, value in row.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
