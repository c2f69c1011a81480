"""Weights in int8: python -m training.quantise RUN FOLDER

Matrices and kernels become int8 with one scale per row, everything else fp16. The file is cut into
pieces of 15 MiB, RUN.w0, RUN.w1, ...; ``load`` puts them together again.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training import common

PIECE = 15 << 20
SMALLEST = 2.0**-14
"""Below this fp16 has fewer digits: rows would not come back, and would stay float in the file."""


def quantise(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 rows and their scales (rows,) in fp16, w ≈ q·s; done again, it gives the same."""
    rows = weight.reshape(len(weight), -1).astype(np.float32)
    scale = (np.abs(rows).max(axis=1) / 127).clip(SMALLEST).astype(np.float16)
    q = np.round(rows / scale.astype(np.float32)[:, None]).clip(-127, 127).astype(np.int8)
    return q.reshape(weight.shape), scale


def pack(name: str) -> bytes:
    """Return a trained model as one npz with int8 weights."""
    saved = torch.load(common.BUILD / f"{name}.pt", weights_only=True, map_location="cpu")
    arrays: dict[str, Any] = {"layers": np.array(saved["layers"])}
    for key, value in saved["weights"].items():
        weight = value.float().numpy()
        if weight.ndim >= 2 and key != "place":
            arrays[f"{key}|q"], arrays[f"{key}|s"] = quantise(weight)
        else:
            arrays[key] = weight.astype(np.float16)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def load(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the packed arrays of RUN.w0, RUN.w1, ...; of the only run there is for ""."""
    pieces = sorted(folder.glob(f"{name or '*'}.w*"))
    return dict(np.load(io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))))


def restored(name: str, folder: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Return how many layers a packed model has, and its weights in float."""
    arrays = load(name, folder)
    layers, weights = int(arrays.pop("layers")), {}
    for key, value in arrays.items():
        weight = value.astype(np.float32)
        if key.endswith("|q"):
            key = key.removesuffix("|q")
            scale = arrays[f"{key}|s"].astype(np.float32)
            weight *= scale.reshape(-1, *[1] * (weight.ndim - 1))
        if not key.endswith("|s"):
            weights[key] = weight
    return layers, weights


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    whole = pack(sys.argv[1])
    for i in range(0, len(whole), PIECE):
        (Path(sys.argv[2]) / f"{sys.argv[1]}.w{i // PIECE}").write_bytes(whole[i : i + PIECE])
    print(f"{sys.argv[1]}: {len(whole) / 2**20:.1f} MiB")
