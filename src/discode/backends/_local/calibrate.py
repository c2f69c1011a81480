"""Two checks of a loaded model: whether its head is a plain product, and packing exact."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.backends._local.forward import Runner
from discode.backends._local.load import short_message
from discode.backends._local.packed import PackedBatch
from discode.backends._local.prefix import CaptionGroup, ProcessedImage
from discode.backends._local.separate import read_separately
from discode.backends._local.vocabulary import TokenizedPrompt
from discode.errors import require

LOG = logging.getLogger("discode")
CAPTIONS = ("a dog", "two men on a red boat", "x")


def calibrate(runner: Runner, prompt: Prompt, scale: Scale) -> bool:
    """Set the model's ``logit_scale``; return whether packed and separate passes agree.

    A synthetic image and captions are read both ways. The scale is 0 if the logits are not a factor
    times the head's rows times the state (a soft cap, a quantised head).
    """
    torch = require("torch", "hf")
    gradient = np.linspace(0, 255, 96 * 64 * 3).astype(np.uint8).reshape(64, 96, 3)
    tokenized = runner.vocabulary.tokenize_prompt(prompt, scale, references=False)
    image = runner.process_image(Image.fromarray(gradient), tokenized)
    pairs = [Pair("", caption) for caption in CAPTIONS]
    with runner.lock, torch.inference_mode():
        whole = ProcessedImage(*runner.process(tokenized.text, Image.fromarray(gradient)))
        states, logits = runner.run(whole.ids, runner.model_inputs([whole]), None, keep=1)
        runner.logit_scale = _factor(runner, states, logits[..., tokenized.wanted], tokenized)
        if image.opened is not None or getattr(runner.text_config, "cross_attention_layers", None):
            # The processor builds each prompt itself, so no prefix is shared; or text attends to
            # the image in separate layers (Mllama), whose cache cannot be cropped.
            return False
        suffixes = tokenized.suffixes(pairs)
        group = CaptionGroup(tokenized, image, pairs, [0, 1, 2], suffixes)
        try:
            # Two captions, then one, over one prefix.
            packed, _ = PackedBatch(runner, [group]).over_prefixes(size=2)()[0]
        # A model's code may fail on a packed sequence in any way; separate passes still work.
        except Exception as error:
            LOG.warning(
                "discode: %s cannot be packed (%s); using one forward pass per pair",
                runner.name,
                short_message(error),
            )
            return False
        separate = read_separately(runner, group)[0]
        apart, allowed = packing_error(runner, packed, separate)
        if apart <= allowed:
            # One pass requires positions that are known before it.
            known = image.positions is not None or runner.rope_delta(1) is None
            plain = runner.attends_to_all() and known
            runner.one_pass = plain and _one_pass_is_exact(runner, group, separate)
            return True
    LOG.warning(
        "discode: packed and separate passes differ by %.2g for %s (%.2g is rounding); using one "
        "forward pass per pair",
        apart,
        runner.name,
        allowed,
    )
    return False


def _one_pass_is_exact(runner: Runner, group: CaptionGroup, separate: NDArray[np.float64]) -> bool:
    # A model's code may fail in one pass in any way; two passes still work.
    try:
        packed, _ = PackedBatch(runner, [group]).at_once()()[0]
        apart, allowed = packing_error(runner, packed, separate)
    except Exception:
        return False
    return apart <= allowed


def packing_error(
    runner: Runner, packed: NDArray[np.float64], separate: NDArray[np.float64]
) -> tuple[float, float]:
    """Compute the RMS difference of log-probabilities, and the largest difference allowed.

    Each of a model's 2 L blocks rounds its sum, so its logits are uncertain by about
    ``eps · sqrt(2 L)`` of their spread; twice that is allowed, and at least 1e-4. A caption that
    attends to its neighbour, or a position that is off by one, shifts them by a large part of the
    spread.
    """
    eps = runner.rounding
    blocks = 2 * runner.text_config.num_hidden_layers
    rounding = 2 * eps * blocks**0.5 * float(separate.std())
    return float(np.sqrt(((packed - separate) ** 2).mean())), max(1e-4, rounding)


def _factor(runner: Runner, states: Any, logits: Any, tokenized: TokenizedPrompt) -> float:
    """Compute f in logits = f · states · rows; 0 if they differ by more than rounding."""
    head = runner.model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if weight is None or not weight.is_floating_point() or getattr(head, "bias", None) is not None:
        return 0.0
    if weight.is_meta:  # accelerate fetches it for each pass
        return 0.0
    product = states.float() @ weight[tokenized.wanted].float().T
    factor = float((product * logits).sum() / (product * product).sum())
    rest = float((factor * product - logits).abs().max() / logits.abs().max())
    exact = logits.dtype == require("torch", "hf").float32
    return factor if rest < (1e-4 if exact else 2e-2) else 0.0
