"""Adapters for models that bring code and a chat interface of their own: CogVLM2, MiniCPM-V 2.6.

An adapter is model and processor in one: it has what :mod:`discode.backends.local.forward` and
:mod:`discode.backends.local.vocabulary` use of transformers' own classes (``tokenizer``,
``apply_chat_template``, a call with ``logits_to_keep``, ``generate``), and nothing else. A new one
is a row in ``REMOTE_CODE_MODELS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from discode.errors import BackendError, InputError, require

Conversation = list[dict[str, Any]]
MARKER = "7dog7"
"""A question that no template contains: what surrounds it is CogVLM's template."""


class CogVLM:
    """CogVLM2: ids and token types by ``build_conversation_input_ids``; one forward pass per pair.

    Its code does not take masks, so captions cannot be packed. Its cache (tuples of keys and
    values) is what its own ``prepare_inputs_for_generation`` needs; that of transformers 5 differs.
    """

    base_model = None

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, model.config
        self.get_output_embeddings, self.modules = model.get_output_embeddings, model.modules
        made = model.build_conversation_input_ids(
            tokenizer, query=MARKER, history=[], template_version="chat"
        )
        self.around = tokenizer.decode(made["input_ids"].tolist()).split(MARKER)
        if len(self.around) != 2:
            raise InputError(f"CogVLM's prompt does not contain its question once: {self.around}")

    def apply_chat_template(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool = False,
        return_tensors: str | None = None,
    ) -> Any:
        """Return the prompt as a string, without the image, or as the model's inputs."""
        image, text = (part.get("image", part.get("text")) for part in conversation[0]["content"])
        if not tokenize:
            return str(text).join(self.around)
        made = self.model.build_conversation_input_ids(
            self.tokenizer, query=text, history=[], images=[image], template_version="chat"
        )
        return {
            "input_ids": made["input_ids"][None],
            "token_type_ids": made["token_type_ids"][None],
            "images": made["images"][0][None],
        }

    def __call__(
        self,
        *,
        input_ids: Any,
        attention_mask: Any,
        past_key_values: Any,
        use_cache: bool,
        logits_to_keep: int,
        token_type_ids: Any,
        images: Any,
    ) -> Any:
        """Run whole prompts (B, L) with images (B, 3, H, W)."""
        if past_key_values is not None:
            raise BackendError("its code does not take masks")
        with _keep_last(self.get_output_embeddings(), logits_to_keep):
            return self.model(
                input_ids=input_ids,
                token_type_ids=token_type_ids,
                attention_mask=attention_mask,
                images=[[image] for image in images],
                use_cache=use_cache,
                return_dict=True,
            )

    def generate(
        self,
        *,
        input_ids: Any,
        attention_mask: Any,
        token_type_ids: Any,
        images: Any,
        max_new_tokens: int,
        **how: Any,
    ) -> Any:
        """Generate greedily; ``how`` could only ask for the same."""
        torch = require("torch", "hf")
        length = input_ids.shape[1]
        cache = None
        while input_ids.shape[1] < length + max_new_tokens:
            inputs = self.model.prepare_inputs_for_generation(
                input_ids,
                token_type_ids=token_type_ids,
                images=[[image] for image in images],
                past_key_values=cache,
                attention_mask=attention_mask,
                use_cache=True,
            )
            with _keep_last(self.get_output_embeddings(), 1):
                out = self.model(**inputs, return_dict=True)
            cache = out.past_key_values
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            input_ids = torch.cat([input_ids, token], dim=1)
            more = torch.zeros_like(token)
            token_type_ids = torch.cat([token_type_ids, more], dim=1)
            attention_mask = torch.cat([attention_mask, more + 1], dim=1)
            if int(token) in self.tokenizer.all_special_ids:
                break
        return SimpleNamespace(sequences=input_ids)


class MiniCPMV:
    """MiniCPM-V 2.6: its own processor and vision tower before transformers' Qwen2.

    The language model takes embeddings for the prefix and ids after it, so captions are packed.
    An image is cut into slices of different sizes: their pixels are passed as one row (1, 3, p, ΣL)
    with the ``lengths`` (1, S) at which to cut it.
    """

    base_model = None

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor, self.tokenizer = model, processor, processor.tokenizer
        self.config = model.llm.config
        self.get_output_embeddings, self.modules = model.llm.get_output_embeddings, model.modules

    def apply_chat_template(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool = False,
        return_tensors: str | None = None,
    ) -> Any:
        """Return the prompt as a string with the image's mark, or as the model's inputs."""
        torch = require("torch", "hf")
        image, text = (part.get("image", part.get("text")) for part in conversation[0]["content"])
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": f"(<image>./</image>)\n{text}"}],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        if not tokenize:
            return prompt
        made = self.processor([prompt], [[image]], return_tensors="pt")
        slices = made["pixel_values"][0]
        return {
            "input_ids": made["input_ids"].long(),
            "pixel_values": torch.cat(list(slices), dim=-1)[None],
            "lengths": torch.tensor([[part.shape[-1] for part in slices]]),
            "tgt_sizes": torch.as_tensor(made["tgt_sizes"][0])[None],
            "image_bound": torch.as_tensor(made["image_bound"][0])[None],
        }

    def __call__(
        self,
        *,
        input_ids: Any,
        attention_mask: Any,
        past_key_values: Any,
        use_cache: bool,
        logits_to_keep: Any,
        position_ids: Any = None,
        pixel_values: Any = None,
        lengths: Any = None,
        tgt_sizes: Any = None,
        image_bound: Any = None,
    ) -> Any:
        """Run ids (B, L) with images, or after them over the cache."""
        embedded = (
            None
            if pixel_values is None
            else self._embed(input_ids, pixel_values, lengths, tgt_sizes, image_bound)
        )
        return self.model.llm(
            input_ids=input_ids if embedded is None else None,
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )

    def generate(
        self,
        *,
        input_ids: Any,
        pixel_values: Any,
        lengths: Any,
        tgt_sizes: Any,
        image_bound: Any,
        **how: Any,
    ) -> Any:
        """Let the language model generate; ``how`` are options of its ``generate``."""
        embedded = self._embed(input_ids, pixel_values, lengths, tgt_sizes, image_bound)
        return self.model.llm.generate(input_ids=input_ids, inputs_embeds=embedded, **how)

    def _embed(
        self, input_ids: Any, pixel_values: Any, lengths: Any, tgt_sizes: Any, image_bound: Any
    ) -> Any:
        """Return the embeddings (B, L, D) of ids and images."""
        slices = [
            list(row.split(cut, dim=-1))
            for row, cut in zip(pixel_values, lengths.tolist(), strict=True)
        ]
        return self.model.get_vllm_embedding(
            {
                "input_ids": input_ids,
                "pixel_values": slices,
                "tgt_sizes": list(tgt_sizes),
                "image_bound": list(image_bound),
            }
        )[0]


@dataclass(frozen=True)
class RemoteCodeModel:
    """How a model with remote code is opened.

    ``model`` names its class in ``auto_map``, ``reader`` the transformers class that opens its
    tokenizer or processor.
    """

    model: str
    reader: str
    adapter: Callable[[Any, Any], Any]


REMOTE_CODE_MODELS = {
    "CogVLMForCausalLM": RemoteCodeModel("AutoModelForCausalLM", "AutoTokenizer", CogVLM),
    "MiniCPMV": RemoteCodeModel("AutoModel", "AutoProcessor", MiniCPMV),
}
"""By the first of ``config.architectures``: CogVLM2's configuration does not have a model type."""


def load_remote_code(
    row: RemoteCodeModel, name: str, config: Any, revision: str | None, options: dict[str, Any]
) -> Any:
    """Load the weights into the model's own class, which was written for an older transformers.

    transformers 5 builds models without storage. It needs a call of ``post_init`` that older code
    leaves out, and does not initialise buffers that the checkpoint does not have (tables of
    positions).
    """
    require("transformers", "hf")
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    own = get_class_from_dynamic_module(config.auto_map[row.model], name, revision=revision)

    def begin(self: Any, config: Any) -> None:
        own.__init__(self, config)
        if not hasattr(self, "all_tied_weights_keys"):
            self.post_init()

    made: Any = type(own.__name__, (own,), {"__init__": begin, "__module__": own.__module__})
    model, found = made.from_pretrained(
        name, config=config, revision=revision, output_loading_info=True, **options
    )
    missing = set(found["missing_keys"])
    if lost := sorted(missing & {key for key, _ in model.named_parameters()}):
        raise InputError(f"{name} has no weights for {lost[0]} ({len(lost)} in all)")
    with require("accelerate", "hf").init_empty_weights(include_buffers=False):
        fresh = dict(own(config).named_buffers())
    stored = model.state_dict().keys() - missing
    for key, buffer in model.named_buffers():
        if key not in stored:
            buffer.copy_(fresh[key])
    return model


@contextmanager
def _keep_last(head: Any, keep: int) -> Iterator[None]:
    """Pass only the last ``keep`` positions to the head: older code passes all."""

    def cut(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0][:, -keep:],)

    hook = head.register_forward_pre_hook(cut, prepend=True)
    try:
        yield
    finally:
        hook.remove()
