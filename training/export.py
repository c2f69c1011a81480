"""Make the artefact: python -m training.export RUN FILE VERSION

Reads the int8 weights RUN.w0, RUN.w1, ... of the build folder and writes one ONNX file: an image
and its N captions go in, log-probabilities and hidden states come out. Weights are stored once, in
int8; those of products that need only the image multiply so, for captions they are turned to float
when the file is loaded (an operation that the runtime folds away). The instruction's keys and
values are constants. What captions need of the image comes out, too, and may go in again
(``training/look_once.py``). Tokenizer and version are metadata.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discode._prompts import CAPTION_LAST
from training import common, parts, quantise
from training.batches import special_tokens
from training.images import seen
from training.look_once import RESTORE, depending, look_once
from training.model import HEAD, IMAGE, SIDE, WIDTH, CaptionJudge, Layer, rms
from training.packing import Special

GROUP = parts.HEADS // parts.KV_HEADS
MINIMUM = 4096  # smaller tensors stay float


def load(name: str) -> CaptionJudge:
    """Return a trained model with its int8 weights turned back to float."""
    layers, weights = quantise.restored(name, common.BUILD)
    model = CaptionJudge(layers)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return model.eval()


def attend(q: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor | None) -> Tensor:
    """Attend from (N, 9, T, 64) to several blocks of (M, 3, S, 64), M being 1 or N.

    Blocks that all rows share are not copied: a query head group meets them by broadcasting.
    The mask (1, 1, T, S) is for the last block.
    """
    n, heads, t, _ = q.shape
    grouped = q.reshape(n, parts.KV_HEADS, GROUP * t, HEAD) / 8.0
    scores = [grouped @ k.transpose(-1, -2) for k in keys]
    if mask is not None:
        last = scores[-1].reshape(n, parts.KV_HEADS, GROUP, t, -1) + mask
        scores[-1] = last.reshape(n, parts.KV_HEADS, GROUP * t, -1)
    weights = torch.cat(scores, dim=-1).softmax(-1)
    sizes = [k.shape[-2] for k in keys]
    out = torch.zeros(())
    start = 0
    for size, v in zip(sizes, values, strict=True):
        out = out + weights[..., start : start + size] @ v
        start += size
    return out.reshape(n, heads, t, HEAD).transpose(1, 2).reshape(n, t, WIDTH)


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """Return rows ``at`` (N, K) of x (N, T, W): (N, K, W)."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))


class Graph(nn.Module):
    """The model as it runs: one image, N captions, the instruction already computed."""

    def __init__(self, model: CaptionJudge, special: Special) -> None:
        super().__init__()
        self.model, self.special = model, special
        with torch.no_grad():
            x = model.embedding(special.instruction)[None]
            length = x.shape[1]
            causal = torch.full((length, length), -1e4).triu(1)[None, None]
            cos, sin = model.angles(torch.arange(length)[None], x.dtype)
            for number, layer in enumerate(self.layers()):
                q, (k, v) = layer.queries(x, cos, sin), layer.keys(x, cos, sin)
                self.register_buffer(f"key{number}", k)
                self.register_buffer(f"value{number}", v)
                x = layer.finish(x, attend(q, [k], [v], causal))
            self.start = length

    def layers(self) -> list[Layer]:
        """Return the model's layers, typed."""
        return [layer for layer in self.model.layers if isinstance(layer, Layer)]

    def forward(self, pixels: Tensor, ids: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Judge captions.

        ``pixels`` (1, 3, 224, 224) floats 0 ... 255, ``ids`` (N, T + 3) captions with room for END
        and both stems, ``lengths`` (N,). Returns log P of the stems (N, 2), of the digits after
        "0." and "1." (N, 2, 10), and the hidden state at "0." (N, 576).
        """
        model, depth = self.model, len(self.model.layers)
        image, e = model.image(seen(pixels / 255))
        image_at = self.start + torch.arange(IMAGE)[None]
        i_cos, i_sin = model.angles(image_at, image.dtype)
        i_mask = torch.full((IMAGE, IMAGE), -1e4).triu(1)[None, None]

        slots = ids.shape[1]
        slot = torch.arange(slots)[None]
        length = lengths[:, None]
        special = self.special
        for offset, token in enumerate((special.end, *special.stems)):
            ids = torch.where(slot == length + offset, token, ids)
        steps = torch.where(slot == length + 2, length + 1, slot)
        cos, sin = model.angles(self.start + IMAGE + steps, image.dtype)
        order = torch.arange(slots)
        causal = torch.where(order[:, None] >= order[None, :], 0.0, -1e4)
        rival = (slot == length + 2)[:, :, None] & (slot == length + 1)[:, None, :]
        mask = (causal[None] + rival * -1e4)[:, None, None]  # (N, 1, 1, T, T)

        x = model.embedding(ids)
        at = torch.arange(3)[None] + length  # (N, 3): END, "0.", "1."
        for number, layer in enumerate(self.layers()):
            if number == depth - 2:
                end = _rows(x, length)
                added, _ = model.adapt(end, e.expand(end.shape[0], -1))
                answered = (slot >= length) & (slot <= length + 2)
                x = x + added * answered[..., None]
            key, value = getattr(self, f"key{number}"), getattr(self, f"value{number}")
            ik, iv = layer.keys(image, i_cos, i_sin)
            k, v = layer.keys(x, cos, sin)
            keys, values = [key, ik, k], [value, iv, v]
            if number == depth - 1:  # only the three answers are read: nothing else is computed
                x, mask = _rows(x, at), _rows(mask[:, 0, 0], at)[:, None, None]
                cos, sin = _rows(cos[:, 0], at)[:, None], _rows(sin[:, 0], at)[:, None]
            else:
                iq = layer.queries(image, i_cos, i_sin)
                shown = attend(iq, [key, ik], [value, iv], i_mask[:, :, None])
                image = layer.finish(image, shown)
            x = layer.finish(x, attend(layer.queries(x, cos, sin), keys, values, mask))
        hidden = rms(x, model.norm)  # (N, 3, 576)
        logits = F.linear(hidden, model.embedding.weight)
        logp = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        stems = logp[:, 0, list(special.stems)]
        digits = logp[:, 1:, special.digits]
        return stems, digits, hidden[:, 1]


def _along(weight: np.ndarray, axis: int) -> tuple[int, np.ndarray, np.ndarray, float]:
    """Quantise with one scale per slice of ``axis``; the last result is the largest error."""
    q, scale = quantise.quantise(np.moveaxis(weight, axis, 0))
    scale = scale.astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    stored = np.ascontiguousarray(np.moveaxis(q, 0, axis))
    return axis, stored, scale, float(np.abs(stored * scale.reshape(shape) - weight).max())


def store_turned(graph: Any) -> None:
    """Store matrices as products read them: turned when a file is opened, both would be kept."""
    from onnx import numpy_helper

    matrices = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    uses = Counter(name for node in graph.node for name in node.input)
    for node in [node for node in graph.node if node.op_type == "Transpose"]:
        name, turned = node.input[0], node.output[0]
        if name in matrices and uses[name] == 1:
            weight = np.ascontiguousarray(numpy_helper.to_array(matrices[name]).T)
            matrices[name].CopyFrom(numpy_helper.from_array(weight, name))
            graph.node.remove(node)
            for reader in graph.node:
                reader.input[:] = [name if read == turned else read for read in reader.input]


def name_weights(graph: Any, model: CaptionJudge) -> None:
    """Give weights that the exporter turned or renamed the model's own names again."""
    from onnx import numpy_helper

    names: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, weight in model.state_dict().items():
        if weight.dim() == 2:
            for way in (weight, weight.T):
                names[tuple(way.shape), way.contiguous().numpy().tobytes()] = f"model.{name}"
    known: dict[str, str] = {}
    for tensor in graph.initializer:
        if not tensor.name.startswith("model."):
            weight = numpy_helper.to_array(tensor)
            name = names.get((weight.shape, weight.tobytes()), tensor.name)
            known[tensor.name] = tensor.name = name
    for node in graph.node:
        node.input[:] = [known.get(name, name) for name in node.input]


def multiply_in_int8(graph: Any, *part: str) -> None:
    """Let an image's products with restored weights of parts of the model multiply in int8.

    What is multiplied is rounded to 255 steps between its least and largest value in the image;
    weights have one scale per column. Products of captions stay those of floats: rounded together,
    a caption's score would depend on the others.
    """
    from onnx import TensorProto, helper

    of_text = depending(graph, "ids", "lengths")
    restored = {node.output[0]: node for node in graph.node if node.op_type == RESTORE}
    rounded: dict[str, str] = {}  # three products may share what they multiply
    nodes = []
    for node in graph.node:
        x, weight = node.input[0], node.input[1] if len(node.input) > 1 else ""
        if node.op_type != "MatMul" or not weight.startswith(part) or node.output[0] in of_text:
            nodes.append(node)
            continue
        if x not in rounded:
            rounded[x] = f"{x}.rounded"
            outputs = [f"{x}.{name}" for name in ("rounded", "step", "zero")]
            nodes.append(helper.make_node("DynamicQuantizeLinear", [x], outputs))
        name = node.output[0]
        product = [f"{x}.rounded", f"{weight}.q", f"{x}.zero"]
        nodes += [
            helper.make_node("MatMulInteger", product, [f"{name}.whole"]),
            helper.make_node("Cast", [f"{name}.whole"], [f"{name}.cast"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{x}.step", f"{weight}.s"], [f"{name}.scale"]),
            helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], [name]),
        ]
    read = {name for node in nodes for name in node.input}
    unread = restored.keys() - read
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.output[0] not in unread)


def to_int8(graph: Any) -> None:
    """Replace large float initialisers by int8 ones and the operation that restores them."""
    import onnx
    from onnx import helper, numpy_helper

    nodes = []
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        weight = numpy_helper.to_array(tensor)
        if weight.size < MINIMUM or weight.ndim < 2:
            continue
        name = tensor.name
        # The exporter may store W or its transpose; the axis it was quantised along fits exactly.
        axis, q, scale, error = min(
            (_along(weight, axis) for axis in range(1 if weight.ndim > 2 else 2)),
            key=lambda way: way[-1],
        )
        if error > 1e-6 * np.abs(weight).max():
            continue  # never was int8: positions, the instruction's keys and values
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(q, f"{name}.q"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{name}.s"))
        nodes.append(helper.make_node(RESTORE, [f"{name}.q", f"{name}.s"], [name], axis=axis))
    for node in reversed(nodes):
        graph.node.insert(0, node)


def forget_origin(proto: Any) -> None:
    """Remove what the exporter wrote about this machine: stack traces with the names of folders."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    for tensor in graph.initializer:
        del tensor.metadata_props[:]
        tensor.doc_string = ""


def export(
    model: CaptionJudge, special: Special, path: Path, version: str, *, rounded: bool = True
) -> None:
    """Write the ONNX file; unless ``rounded``, products are those of floats."""
    import onnx

    module = Graph(model, special).eval()
    n, slots = torch.export.Dim("n", min=1, max=4096), torch.export.Dim("slots", min=4, max=512)
    example = (
        torch.zeros(1, 3, SIDE, SIDE),
        torch.ones(3, 12, dtype=torch.long),
        torch.tensor([3, 9, 5]),
    )
    with torch.no_grad():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=20,  # which has Gelu
            input_names=["pixels", "ids", "lengths"],
            output_names=["stems", "digits", "hidden"],
            dynamic_shapes={"pixels": None, "ids": {0: n, 1: slots}, "lengths": {0: n}},
        )
    assert program is not None
    proto = program.model_proto
    forget_origin(proto)
    store_turned(proto.graph)
    name_weights(proto.graph, model)
    to_int8(proto.graph)
    if rounded:
        multiply_in_int8(proto.graph, "model.vision.blocks.", "model.layers.")
    look_once(proto.graph)
    tokenizer = common.load_json("tokenizer.json")
    ids = {token: i for i, token in enumerate(tokenizer["tokens"])}
    metadata = {
        "version": version,
        "prompt": CAPTION_LAST.digest,
        "tokens": json.dumps(tokenizer["tokens"]),
        # a merge is two ids: the strings stand in "tokens" already
        "merges": json.dumps([ids[part] for pair in tokenizer["merges"] for part in pair]),
        "limit": str(common.config()["data"]["long_tokens"]),
    }
    for key, value in metadata.items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=value))
    # The head's rows for the digits, so that solvers that move the head can start from it.
    head = model.embedding.weight[special.digits].detach().numpy().astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))
    proto.graph.node.append(onnx.helper.make_node("Identity", ["head"], ["answers"]))
    shape = [len(head), WIDTH]
    proto.graph.output.append(
        onnx.helper.make_tensor_value_info("answers", onnx.TensorProto.FLOAT, shape)
    )
    onnx.save(proto, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, sha256 {digest}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    torch.set_grad_enabled(False)
    export(load(sys.argv[1]), special_tokens("cpu"), Path(sys.argv[2]), sys.argv[3])
