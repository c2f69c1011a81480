"""One stretch on a machine with a GPU: python -m training.stretch TEACHER_MINUTES END

Everything after ``training.data ... --only images`` and ``--only text``, in one process, so that
images, labels and compiled layers are shared: a teacher is trained, it and the former file teach
the final run, and the final and the former model are measured. Parcels of images may arrive while
it runs, ``python -m training.images`` may render styles beside it; weights are saved as it goes.
END is when the final run is to end, in seconds since 1970 (date +%s).
"""

from __future__ import annotations

import sys

import torch

from training import common, evaluate, questions, teachers
from training.train import World, measure, train


def main() -> None:
    """Run the stretch."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    minutes, end = map(float, sys.argv[1:])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world = World(common.config(), device)
    train(world, "deep", minutes)
    train(world, "final", end=end)
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    questions.add(teachers.questions_of(evaluate.load("former", device), world))
    for name in ("final", "former"):
        measure(world, name)
        evaluate.test(name, world.special)
        world.log(name, "is measured")


if __name__ == "__main__":
    main()
