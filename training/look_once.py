"""The image's part of the artefact in a branch, so that an image is looked at once.

The captions of an image need its keys and values in every layer, 600 KB that do not depend on them.
They are one vector, the output ``states``. Given again as the input ``known`` they are used as they
are; where ``known`` is empty, they are computed from the pixels. Both ways share their weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RESTORE = "DequantizeLinear"
"""The operation that turns weights to float."""


def depending(graph: Any, *names: str) -> set[str]:
    """Return ``names`` and all that is computed from them."""
    known = set(names)
    for node in graph.node:
        if known.intersection(node.input):
            known.update(node.output)
    return known


def _border(graph: Any, of_image: set[str], of_text: set[str]) -> tuple[list[str], set[str]]:
    """Return what captions need of the image, in order, and what is made of it for them alone.

    The latter are transposed keys and values: the runtime joins that to the product that follows.
    """
    made_by = {name: node for node in graph.node for name in node.output}
    border, turned = dict[str, None](), set[str]()
    for node in graph.node:
        for name in node.input if of_text.intersection(node.output) else ():
            if name in of_image - of_text:
                while made_by[name].op_type == "Transpose":
                    turned.add(name)
                    name = made_by[name].input[0]
                border[name] = None
    return list(border), turned


def _needed(graph: Any, border: list[str], of_image: set[str]) -> set[str]:
    """Return all that has to be computed from the image for what is on the border."""
    needed = set(border)
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(of_image.intersection(node.input))
    return needed - {"pixels"}


def _renamed(node: Any, needed: set[str]) -> Any:
    """Return a node of the branch: a name stands for one value, and outside for another."""
    inner = type(node)()
    inner.CopyFrom(node)
    for names in (inner.input, inner.output):
        names[:] = [f"{name}.seen" if name in needed else name for name in names]
    return inner


def _take_weights(graph: Any, others: list[Any]) -> tuple[list[Any], list[Any]]:
    """Take what the ``others`` do not use from the graph: operations that restore, and weights.

    The runtime chooses its fastest convolutions only for weights of the branch itself.
    """
    used = {name for node in others if node.op_type != RESTORE for name in node.input}
    restoring = [node for node in others if node.op_type == RESTORE and node.output[0] not in used]
    for node in restoring:
        others.remove(node)
    used = {name for node in others for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name not in used]
    for tensor in weights:
        graph.initializer.remove(tensor)
    return restoring, weights


def look_once(graph: Any) -> None:
    """Rewrite a graph from pixels, ids and lengths; its results are the same, bit by bit."""
    from onnx import TensorProto, helper, numpy_helper

    of_image, of_text = depending(graph, "pixels"), depending(graph, "ids", "lengths")
    border, turned = _border(graph, of_image, of_text)
    needed = _needed(graph, border, of_image)
    inside = [_renamed(node, needed) for node in graph.node if needed.intersection(node.output)]
    only_inside = of_image - of_text - turned
    others = [node for node in graph.node if not only_inside.intersection(node.output)]
    restoring, weights = _take_weights(graph, others)
    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    shapes = {f"{name}.shape": [size.dim_value for size in declared[name]] for name in border}
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    constants = {"sizes": sizes, "flat": [-1], "nothing": 0, **shapes}
    for name, numbers in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))

    def vector(name: str, size: int | str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])

    make, whole = helper.make_node, sum(sizes)
    flat = [make("Reshape", [f"{name}.seen", "flat"], [f"{name}.flat"]) for name in border]
    joined = make("Concat", [f"{name}.flat" for name in border], ["computed"], axis=0)
    steps = [*restoring, *inside, *flat, joined]
    look = helper.make_graph(steps, "look", [], [vector("computed", whole)], weights)
    copied = [make("Identity", ["known"], ["recalled"])]
    recall = helper.make_graph(copied, "recall", [], [vector("recalled", whole)])
    choice = [
        make("Size", ["known"], ["size"]),
        make("Equal", ["size", "nothing"], ["new"]),
        make("If", ["new"], ["states"], then_branch=look, else_branch=recall),
        make("Split", ["states", "sizes"], [f"{name}.part" for name in border], axis=0),
        *(make("Reshape", [f"{name}.part", f"{name}.shape"], [name]) for name in border),
    ]
    constant = [node for node in others if not (of_image | of_text).intersection(node.output)]
    del graph.node[:]
    graph.node.extend([*constant, *choice, *(node for node in others if node not in constant)])
    del graph.value_info[:]  # the runtime infers them
    graph.input.append(vector("known", "size"))
    graph.output.append(vector("states", whole))
