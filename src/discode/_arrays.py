"""Arrays of other libraries as numpy's: tensors with a gradient, or in bfloat16, too."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError, require


def is_array(value: Any) -> bool:
    """Return whether something is an array: numpy's, or one of torch, JAX or TensorFlow.

    >>> is_array(np.zeros(3)), is_array([0.0])
    (True, False)
    """
    return hasattr(value, "shape") and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))


def widest_float(device: Any) -> Any:
    """Return torch's float64, or float32 for a device of Apple's (mps), which has no wider one.

    >>> widest_float("mps"), widest_float("cpu")  # doctest: +SKIP
    (torch.float32, torch.float64)
    """
    torch = require("torch", "hf")
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def as_numpy(value: Any) -> NDArray[Any]:
    """Return an array as numpy's; no library is imported for it.

    A tensor is detached from its gradient and copied from its device; 16-bit floats that numpy
    does not have (bfloat16) become float32.

    >>> as_numpy(np.array([1, 2])).tolist()
    [1, 2]
    """
    try:
        if hasattr(value, "detach"):  # torch
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":
                value = value.float()
        array = np.asarray(value)
        # JAX's bfloat16 is a type that numpy computes with and does not know as a float.
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    # Every library has its own error for what it cannot convert.
    except Exception as error:
        raise InputError(
            f"{type(value).__name__} cannot be converted to numpy: {error}; give a numpy array "
            "(of a tensor: tensor.detach().float().cpu().numpy())"
        ) from None
