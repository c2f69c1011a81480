"""Train a model: python -m training.train NAME --kind teacher|student [--seed S]

    --teachers A B    distil from the labels that teachers A and B left (see --label)
    --label           after training, label the numbered batches for students
    --minutes M       stop the schedule after M minutes, wherever it is

A run can be stopped and goes on from its checkpoint. The weights are saved before anything is
evaluated: build/NAME.pt (averaged over training, fp16) and build/NAME.json (figures on dev).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import common, evaluate, pictures
from training.batches import Batch, Captions, Sampler, special_tokens
from training.labels import Labels
from training.model import CaptionJudge
from training.packing import Answers, run

CHECKPOINT_EVERY = 1000


@dataclass
class Lessons:
    """What teachers said of the numbered batches: answers (D, B, S, 11), meanings (D, B, 384)."""

    answers: Tensor
    meaning: Tensor

    @classmethod
    def load(cls, names: list[str], device: str) -> Lessons:
        """Average the labels of several teachers."""
        found = [np.load(common.BUILD / f"{name}_labels.npz") for name in names]

        def mean(key: str) -> Tensor:
            total = torch.from_numpy(found[0][key]).to(device).float()
            for other in found[1:]:
                total += torch.from_numpy(other[key]).to(device)
            return total / len(found)

        meaning = torch.nn.functional.normalize(mean("meaning"), dim=-1)
        return cls(mean("answers").half(), meaning.half())


def loss_of(
    answers: Answers, batch: Batch, labels: Labels, weights: dict[str, float], lesson: Tensor | None
) -> dict[str, Tensor]:
    """Return the parts of the loss, weighted; ``lesson`` is what teachers mean by the pictures."""
    e, target, images, kept = answers.picture, batch.target, batch.images, answers.kept
    values = torch.arange(11, device=target.device)
    score = -(target * answers.joint()).sum(-1) - target[..., 10] * answers.digits_one[..., 0]
    expected = (answers.joint().softmax(-1) * values).sum(-1)
    wanted = (target * values).sum(-1)
    ahead = (wanted[:, :, None] - wanted[:, None] > 0.7) * kept[:, :, None] * kept[:, None]
    rank = (torch.nn.functional.softplus(expected[:, None] - expected[:, :, None]) * ahead).sum()
    known = (batch.true >= 0) * kept
    cosine = (answers.meaning * labels.meaning[batch.true.clamp(min=0)]).sum(-1)
    assert answers.caption_loss is not None
    b = len(images)
    align = torch.zeros((), device=target.device)
    centre = labels.meaning[images[:, None] * 5 + torch.arange(5, device=e.device)].mean(1)
    for _ in range(2):
        pick = torch.randint(0, 5, (b,), device=e.device, generator=batch.generator)
        text = labels.meaning[images * 5 + pick]
        similar = torch.softmax(text @ centre.T * 20, -1)
        sim = text @ e.T * 20
        align = align - (similar * sim.log_softmax(-1)).sum(-1).mean() / 4
        back = torch.softmax((text @ centre.T).T * 20, -1)
        align = align - (back * sim.T.log_softmax(-1)).sum(-1).mean() / 4
    parts = {
        "score": (score * kept).sum() / kept.sum(),
        "caption": weights["caption"] * answers.caption_loss,
        "align": weights["align"] * align,
        "adapter": weights["adapter"] * ((1 - cosine) * known).sum() / known.sum(),
        "rank": weights["rank"] * rank / ahead.sum().clamp(min=1),
    }
    if lesson is not None:
        parts["picture"] = weights["picture"] * (1 - (e * lesson.float()).sum(-1)).mean()
    return parts


def optimiser(model: CaptionJudge, settings: dict[str, Any], fused: bool) -> torch.optim.AdamW:
    """Return AdamW with a learning rate for each part."""
    groups: dict[str, list[Tensor]] = {"vision": [], "language": [], "norms": [], "new": []}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if part == "vision":
            groups["vision"].append(parameter)
        elif part in ("layers", "embedding", "norm"):
            groups["language" if parameter.dim() > 1 else "norms"].append(parameter)
        else:
            groups["new"].append(parameter)
    decay = settings["weight_decay"]
    rows = [
        ("vision", "vision", 0.01),
        ("language", "language", decay),
        ("norms", "language", 0.0),
        ("new", "new", decay),
    ]
    return torch.optim.AdamW(
        [
            {"params": groups[g], "lr": settings[rate], "weight_decay": wd, "base": settings[rate]}
            for g, rate, wd in rows
        ],
        betas=(0.9, 0.98),
        fused=fused,
    )


def restyle(sources: list[Tensor], images: Tensor, share: float, seed: list[int]) -> Tensor:
    """Return the images, a share of them in one of the other sources."""
    rng = np.random.default_rng(seed)
    which = rng.integers(1, len(sources), len(images)) * (rng.random(len(images)) < share)
    chosen = torch.from_numpy(which).to(images.device)[:, None, None, None]
    pixels = sources[0][images]
    for number, source in enumerate(sources[1:], start=1):
        pixels = torch.where(chosen == number, source[images], pixels)
    return pixels


def batch_number(step: int, seed: int, labelled: int) -> int:
    """Return the batch of a step: the labelled ones in an order of the seed's own, or new ones.

    >>> sorted(batch_number(step, 7, 3) for step in range(3, 6))
    [0, 1, 2]
    >>> batch_number(2, 0, 0)
    1000002
    """
    if not labelled:
        return 1_000_000 * (seed + 1) + step
    order = np.random.default_rng([seed, step // labelled]).permutation(labelled)
    return int(order[step % labelled])


@torch.no_grad()
def label(model: CaptionJudge, sampler: Sampler, photos: Tensor, name: str) -> None:
    """Say what the model thinks of the numbered batches, for students to learn from."""
    device, crop = photos.device.type, sampler.config["augment"]["crop"]
    special = special_tokens(device)
    answers, meaning = [], []
    for number in range(sampler.config["student"]["labelled"]):
        batch = sampler.draw(number)
        x = pictures.augment(photos[batch.images], crop, batch.generator)
        batch.packed.written = None
        said = meant = torch.zeros((), device=device)
        for view in (x, x.flip(-1)):  # a mirror image deserves the same answer
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                pixels = view.contiguous(memory_format=torch.channels_last)
                says = run(model, pixels, batch.packed, special)
            said = said + says.joint().softmax(-1) / 2
            meant = meant + says.picture / 2
        answers.append(said.half().cpu().numpy())
        meaning.append(meant.half().cpu().numpy())
    np.savez(
        common.BUILD / f"{name}_labels.npz", answers=np.stack(answers), meaning=np.stack(meaning)
    )


def main() -> None:
    """Train, save, label, evaluate on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", choices=("teacher", "student"), default="student")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--teachers", nargs="*", default=[])
    parser.add_argument("--label", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--no-styles", action="store_true")
    args = parser.parse_args()
    config = common.config()
    kind = config[args.kind]
    steps = args.steps or kind["steps"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    began = time.time()

    def log(*words: object) -> None:
        print(f"[{args.name} {time.time() - began:6.1f}]", *words, flush=True)

    photos = pictures.decode("train").to(device)
    n = len(photos)
    share = 0.0 if args.no_styles else kind["style"]
    styles = config["augment"]["styles"] if share else []
    sources = [photos, *(pictures.styled("train", s).to(device) for s in styles)]
    dev_images = len(pictures.files("dev"))
    slots = config["data"]["caption_tokens"]
    settings = config["labels"] | {"hard_ranks": config["batch"]["hard_ranks"]}
    labels = Labels(settings, n, dev_images, device)
    captions = Captions.load("train", slots, device)
    sampler = Sampler(config, labels, captions, Captions.load("wrong", slots, device))
    lessons = Lessons.load(args.teachers, device) if args.teachers else None
    special = special_tokens(device)
    optim = config["optim"]
    model = CaptionJudge(
        args.layers or kind["layers"],
        dropout=optim["dropout"],
        vision_dropout=optim["vision_dropout"],
    ).to(device)
    model.vision.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a known gap in torch's stubs
    if device == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    adam = optimiser(model, optim, fused=device == "cuda")
    parameters = list(model.parameters())
    average = [p.detach().clone() for p in parameters]
    log(f"{sum(p.numel() for p in parameters) / 1e6:.1f} M parameters, {n} images, {steps} steps")

    checkpoint = common.BUILD / f"{args.name}.checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        average, step = [p.to(device) for p in saved["average"]], saved["step"]
        torch.set_rng_state(saved["dropout"])
        if device == "cuda":
            torch.cuda.set_rng_state(saved["dropout_cuda"])
        log("goes on from step", step)
    start = time.time()
    labelled = len(lessons.answers) if lessons else 0
    model.train()
    while step < steps:
        done = max(step / steps, (time.time() - start) / 60 / args.minutes)
        if done >= 1:
            break
        rate = min(1, (step + 1) / optim["warmup"]) * (0.49 * (1 + math.cos(math.pi * done)) + 0.02)
        for group in adam.param_groups:
            group["lr"] = group["base"] * rate
        number = batch_number(step, args.seed, labelled)
        batch = sampler.draw(number)
        pixels = photos[batch.images]
        if styles:
            pixels = restyle(sources, batch.images, share, [args.seed, step])
        lesson = None
        if lessons:
            distil = config["loss"]["distil"]
            batch.target = (1 - distil) * batch.target + distil * lessons.answers[number].float()
            lesson = lessons.meaning[number]
        x = pictures.augment(pixels, config["augment"]["crop"], batch.generator)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            answers = run(
                model, x.contiguous(memory_format=torch.channels_last), batch.packed, special
            )
        losses = loss_of(answers, batch, labels, config["loss"], lesson)
        adam.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        keep = min(optim["ema"], (step + 1) / (step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - keep)
        step += 1
        if step % 200 == 0 or step == steps:
            log(step, {name: round(value.item(), 3) for name, value in losses.items()})
        if step % CHECKPOINT_EVERY == 0 and step < steps:
            state = {
                "model": model.state_dict(),
                "adam": adam.state_dict(),
                "average": average,
                "step": step,
                "dropout": torch.get_rng_state(),
            }
            if device == "cuda":
                state["dropout_cuda"] = torch.cuda.get_rng_state()
            torch.save(state, checkpoint)
    with torch.no_grad():
        torch._foreach_copy_([p.data for p in parameters], average)
    weights = {
        name.replace("_orig_mod.", ""): value.half() for name, value in model.state_dict().items()
    }
    torch.save({"layers": len(model.layers), "weights": weights}, common.BUILD / f"{args.name}.pt")
    log("trained", step, "steps in", round(time.time() - start), "s")
    model.eval()
    if args.label:
        label(model, sampler, photos, args.name)
        log("labelled", config["student"]["labelled"], "batches")
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    figures = evaluate.dev(model, labels, special)
    (common.BUILD / f"{args.name}.json").write_text(json.dumps(figures, indent=1))
    log(figures)


if __name__ == "__main__":
    main()
