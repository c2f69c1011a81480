"""Start from a finished file or from kept weights: python -m training.unpack FILE.onnx|FOLDER RUN

Writes the weights of the file, or of the pieces that ``training.quantise`` wrote into the folder,
as build/RUN.pt, so that a run may name RUN as its ``start`` or as a teacher. The vocabulary must be
the file's, or that of the run that was kept: ``training.data ... --vocabulary FILE.onnx``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import common, quantise
from training.look_once import RESTORE


def weights(file: Path) -> dict[str, Tensor]:
    """Return a finished file's weights under the model's names, in float."""
    import onnx

    whole = onnx.load(file).graph
    graphs = [*(a.g for node in whole.node for a in node.attribute if a.HasField("g")), whole]
    arrays = {t.name: onnx.numpy_helper.to_array(t) for graph in graphs for t in graph.initializer}
    restored = [node for graph in graphs for node in graph.node if node.op_type == RESTORE]
    axes = {node.input[0]: node.attribute[0].i for node in restored}
    products = [node for graph in graphs for node in graph.node if "MatMul" in node.op_type]
    whole_numbers = [node.input[1] for node in products if node.op_type == "MatMulInteger"]
    axes |= dict.fromkeys(whole_numbers, 1)
    turned = {name.removesuffix(".q") for node in products for name in node.input}
    found: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        if name in axes:
            name = name.removesuffix(".q")
            scales = np.expand_dims(arrays[f"{name}.s"], [*range(1, value.ndim)])
            value = value.astype(np.float32) * np.moveaxis(scales, 0, axes[f"{name}.q"])
            value = value.T if name in turned else value
        if name.startswith("model.") and not name.endswith((".s", "model.inverse")):
            found[name.removeprefix("model.")] = value
    return {name: torch.from_numpy(np.array(value)) for name, value in found.items()}


def main() -> None:
    """Write the weights as a run."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source = Path(sys.argv[1])
    if source.is_dir():
        kept = quantise.restored("", source)[1]
        found = {name: torch.from_numpy(value) for name, value in kept.items()}
    else:
        found = weights(source)
    layers = 1 + max(int(name.split(".")[1]) for name in found if name.startswith("layers."))
    half = {name: value.half() for name, value in found.items()}
    torch.save({"layers": layers, "weights": half}, common.BUILD / f"{sys.argv[2]}.pt")
    print(f"{sys.argv[2]}: {layers} layers, {len(half)} tensors")


if __name__ == "__main__":
    main()
