"""Train models: python -m training.train NAME [NAME ...] [--seed S]

    --minutes M       stop the schedule after M minutes, wherever it is

Several models, of seeds S, S + 1, ..., are trained together and teach each other: each learns from
the labels and from the mean opinion of all their averaged weights on the same crop of the photo.

A run can be stopped and goes on from its checkpoint. The weights are saved before anything is
evaluated: build/NAME.pt (averaged over training, fp16) and build/NAME.json (figures on dev).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import common, evaluate, pictures
from training.batches import Batch, Captions, Sampler, special_tokens
from training.labels import Labels
from training.model import CaptionJudge
from training.packing import Answers, Packed, Special, run

CHECKPOINT_EVERY = 1000


@dataclass
class Pupil:
    """A model, the average of its weights over training, and its optimiser."""

    name: str
    seed: int
    model: CaptionJudge
    average: CaptionJudge
    adam: torch.optim.AdamW

    @classmethod
    def new(cls, name: str, seed: int, layers: int, optim: dict[str, Any], device: str) -> Pupil:
        """Start from the pretrained parts; what is new is drawn with the seed."""
        torch.manual_seed(seed)
        model = CaptionJudge(
            layers, dropout=optim["dropout"], vision_dropout=optim["vision_dropout"]
        ).to(device)
        model.vision.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a known gap in torch's stubs
        average = copy.deepcopy(model).requires_grad_(False).eval()
        if device == "cuda":
            for layer in (*model.layers, *average.layers):
                layer.compile(dynamic=False)
        return cls(name, seed, model.train(), average, optimiser(model, optim, device == "cuda"))

    def learn(self, losses: dict[str, Tensor], keep: float) -> None:
        """Take one step down the loss and move the average."""
        self.adam.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        parameters = list(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), [p.detach() for p in parameters], 1 - keep
            )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "adam": self.adam.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.adam.load_state_dict(state["adam"])

    def save(self) -> None:
        """Write the averaged weights."""
        weights = {name: value.half() for name, value in self.average.state_dict().items()}
        torch.save(
            {"layers": len(self.model.layers), "weights": weights},
            common.BUILD / f"{self.name}.pt",
        )


@torch.no_grad()
def opinion(
    pupils: list[Pupil], x: Tensor, packed: Packed, special: Special
) -> tuple[Tensor, Tensor]:
    """Return the mean answers (B, S, 11) and meanings (B, 384) of the averaged models."""
    said = meant = torch.zeros((), device=x.device)
    with autocast(x.device.type):
        for pupil in pupils:
            says = run(pupil.average, x, replace(packed, written=None), special)
            said = said + says.joint().softmax(-1) / len(pupils)
            meant = meant + says.picture / len(pupils)
    return said, torch.nn.functional.normalize(meant, dim=-1)


def autocast(device: str) -> torch.autocast:
    """Return bf16 on the GPU, nothing on the CPU."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def loss_of(
    answers: Answers, batch: Batch, labels: Labels, weights: dict[str, float], lesson: Tensor | None
) -> dict[str, Tensor]:
    """Return the parts of the loss, weighted; ``lesson`` is the teachers' meaning of a picture."""
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


def main() -> None:
    """Train, save, evaluate on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--no-styles", action="store_true")
    args = parser.parse_args()
    config = common.config()
    optim = config["optim"]
    steps = args.steps or optim["steps"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    began = time.time()

    def log(*words: object) -> None:
        print(f"[{time.time() - began:6.1f}]", *words, flush=True)

    photos = pictures.decode("train").to(device)
    n = len(photos)
    styles = [] if args.no_styles else config["augment"]["styles"]
    sources = [photos]
    dev_images = len(pictures.files("dev"))
    slots = config["data"]["caption_tokens"]
    settings = config["labels"] | {"hard_ranks": config["batch"]["hard_ranks"]}
    labels = Labels(settings, n, dev_images, device)
    captions = Captions.load("train", slots, device)
    sampler = Sampler(config, labels, captions, Captions.load("wrong", slots, device))
    special = special_tokens(device)
    layers = args.layers or config["model"]["layers"]
    pupils = [
        Pupil.new(name, args.seed + i, layers, optim, device) for i, name in enumerate(args.names)
    ]
    size = sum(p.numel() for p in pupils[0].model.parameters())
    log(f"{len(pupils)} x {size / 1e6:.1f} M parameters, {n} images, {steps} steps")

    checkpoint = common.BUILD / f"{'-'.join(args.names)}.checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for pupil, state in zip(pupils, saved["pupils"], strict=True):
            pupil.load(state)
        step = saved["step"]
        torch.set_rng_state(saved["dropout"])
        if device == "cuda":
            torch.cuda.set_rng_state(saved["dropout_cuda"])
        log("goes on from step", step)
    start = time.time()
    while step < steps:
        done = max(step / steps, (time.time() - start) / 60 / args.minutes)
        if done >= 1:
            break
        rate = min(1, (step + 1) / optim["warmup"]) * (0.49 * (1 + math.cos(math.pi * done)) + 0.02)
        if done >= 0.1 and len(sources) == 1:  # photos come first
            sources += [pictures.styled("train", style).to(device) for style in styles]
        batch = sampler.draw(1_000_000 * (args.seed + 1) + step)
        dice = batch.generator.get_state()

        def crop(pixels: Tensor, batch: Batch = batch, dice: Tensor = dice) -> Tensor:
            batch.generator.set_state(dice)  # teachers and pupils see the same crop
            x = pictures.augment(pixels, config["augment"]["crop"], batch.generator)
            return x.contiguous(memory_format=torch.channels_last)

        lesson = None
        trust = config["loss"]["distil"] * min(1, (done - 0.1) / 0.2)
        if trust > 0:  # the first averages know nothing
            said, lesson = opinion(pupils, crop(photos[batch.images]), batch.packed, special)
            batch.target = (1 - trust) * batch.target + trust * said
        for pupil in pupils:
            for group in pupil.adam.param_groups:
                group["lr"] = group["base"] * rate
            pixels = photos[batch.images]
            if len(sources) > 1:
                share = config["augment"]["style"]
                pixels = restyle(sources, batch.images, share, [pupil.seed, step])
            with autocast(device):
                answers = run(pupil.model, crop(pixels), batch.packed, special)
            losses = loss_of(answers, batch, labels, config["loss"], lesson)
            pupil.learn(losses, min(optim["ema"], (step + 1) / (step + 20)))
        step += 1
        if step % 200 == 0 or step == steps:
            log(step, {name: round(value.item(), 3) for name, value in losses.items()})
        if step % CHECKPOINT_EVERY == 0 and step < steps:
            state = {
                "pupils": [pupil.state() for pupil in pupils],
                "step": step,
                "dropout": torch.get_rng_state(),
            }
            if device == "cuda":
                state["dropout_cuda"] = torch.cuda.get_rng_state()
            torch.save(state, checkpoint)
    for pupil in pupils:
        pupil.save()
    log("trained", step, "steps in", round(time.time() - start), "s")
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    for pupil in pupils:
        figures = evaluate.dev(pupil.average, labels, special)
        (common.BUILD / f"{pupil.name}.json").write_text(json.dumps(figures, indent=1))
        log(pupil.name, figures)


if __name__ == "__main__":
    main()
