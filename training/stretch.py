"""One stretch on a machine with a GPU: python -m training.stretch RUN END [SHARE ...]

Everything after ``training.data``, in one process: the run is trained until END (in seconds since
1970: date +%s), then it and the mixes of that SHARE of it with the former file's weights are
measured, as RUN_50 for 0.5. Parcels of images may arrive until it trains, ``python -m
training.images`` decodes and renders them beside it; weights are saved as it goes. build/judged
holds Flickr8k's text files.
"""

from __future__ import annotations

import sys

import torch

from training import common, evaluate, mix, questions, teachers
from training.train import World, measure, train


def main() -> None:
    """Run the stretch."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    run, end, *shares = sys.argv[1:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world = World(common.config(run), device)
    train(world, run, end=float(end))
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    if not questions.complete():
        questions.add(teachers.questions_of(evaluate.load("former", device), world.special))
    names = [run]
    for share in map(float, shares):
        names.append(f"{run}_{100 * share:.0f}")
        mix.write(names[-1], ["former", run], [1 - share, share])
    for name in names:
        measure(world, name)
        evaluate.test(name, world.special)
        world.log(name, "is measured")


if __name__ == "__main__":
    main()
