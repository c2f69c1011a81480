"""Adapters for models with their own code and chat interface: CogVLM2, MiniCPM-V 2.6.

An adapter is both model and processor, with the part of transformers' interface that we use
(``tokenizer``, ``apply_chat_template``, a call with ``logits_to_keep``, ``generate``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from discode._extras import require_transformers
from discode.errors import BackendError, InputError, require

Conversation = list[dict[str, Any]]
MARKER = "7dog7"
"""A question that no template contains, used to find CogVLM's template around it."""


class _Adapter:
    """Attributes that both adapters share with transformers' classes."""

    base_model = None

    def __init__(self, model: Any, tokenizer: Any, language: Any) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, language.config
        self.get_output_embeddings, self.modules = language.get_output_embeddings, model.modules


class CogVLM(_Adapter):
    """CogVLM2: ids and token types by ``build_conversation_input_ids``; one forward pass per pair.

    Its code does not accept masks, so captions cannot be packed. Its cache (tuples of keys and
    values) follows its own ``prepare_inputs_for_generation``; that of transformers 5 differs.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model, tokenizer, model)
        ids = self._build(query=MARKER)["input_ids"]
        self.around = tokenizer.decode(ids.tolist()).split(MARKER)
        if len(self.around) != 2:
            raise InputError(f"CogVLM's prompt must contain the question once: {self.around}")

    def _build(self, **asked: Any) -> Any:
        return self.model.build_conversation_input_ids(
            self.tokenizer, history=[], template_version="chat", **asked
        )

    def apply_chat_template(self, conversation: Conversation, *, tokenize: bool, **_: Any) -> Any:
        """Make the prompt as a string, without the image, or as the model's inputs."""
        image, text = (part.get("image", part.get("text")) for part in conversation[0]["content"])
        if not tokenize:
            return str(text).join(self.around)
        inputs = self._build(query=text, images=[image])
        return {
            "input_ids": inputs["input_ids"][None],
            "token_type_ids": inputs["token_type_ids"][None],
            "images": inputs["images"][0][None],
        }

    def __call__(
        self, *, images: Any, past_key_values: Any, logits_to_keep: int, **inputs: Any
    ) -> Any:
        """Run whole prompts (B, L) with images (B, 3, H, W)."""
        if past_key_values is not None:
            raise BackendError("its code cannot continue a shared prompt")
        with _keep_last(self.get_output_embeddings(), logits_to_keep):
            return self.model(images=[[image] for image in images], return_dict=True, **inputs)

    def generate(
        self,
        *,
        input_ids: Any,
        attention_mask: Any,
        token_type_ids: Any,
        images: Any,
        max_new_tokens: int,
        **_: Any,
    ) -> Any:
        """Generate greedily; other options are ignored, as they ask for the same."""
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


class MiniCPMV(_Adapter):
    """MiniCPM-V 2.6: its own processor and vision tower before transformers' Qwen2.

    The language model takes embeddings for the prefix and ids after it, so captions are packed.
    An image is cut into slices of different sizes: their pixels are passed as one row (1, 3, p, ΣL)
    with the ``lengths`` (1, S) at which to cut it.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor.tokenizer, model.llm)
        self.processor = processor

    def apply_chat_template(
        self, conversation: Conversation, *, add_generation_prompt: bool, tokenize: bool, **_: Any
    ) -> Any:
        """Make the prompt as a string with the image's placeholder, or as the model's inputs."""
        torch = require("torch", "hf")
        image, text = (part.get("image", part.get("text")) for part in conversation[0]["content"])
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": f"(<image>./</image>)\n{text}"}],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        if not tokenize:
            return prompt
        inputs = self.processor([prompt], [[image]], return_tensors="pt")
        slices = inputs["pixel_values"][0]
        return {
            "input_ids": inputs["input_ids"].long(),
            "pixel_values": torch.cat(list(slices), dim=-1)[None],
            "lengths": torch.tensor([[part.shape[-1] for part in slices]]),
            "tgt_sizes": torch.as_tensor(inputs["tgt_sizes"][0])[None],
            "image_bound": torch.as_tensor(inputs["image_bound"][0])[None],
        }

    def __call__(self, **inputs: Any) -> Any:
        """Run ids (B, L) with images, or after them over the cache."""
        if "pixel_values" in inputs:
            inputs = self._embed(inputs) | {"input_ids": None}
        return self.model.llm(**inputs)

    def generate(self, **inputs: Any) -> Any:
        return self.model.llm.generate(**self._embed(inputs))

    def _embed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Replace ids and images in the inputs by their embeddings (B, L, D)."""
        rows = zip(inputs.pop("pixel_values"), inputs.pop("lengths").tolist(), strict=True)
        data = {
            "input_ids": inputs["input_ids"],
            "pixel_values": [list(row.split(cut, dim=-1)) for row, cut in rows],
            "tgt_sizes": list(inputs.pop("tgt_sizes")),
            "image_bound": list(inputs.pop("image_bound")),
        }
        return inputs | {"inputs_embeds": self.model.get_vllm_embedding(data)[0]}


class RemoteCodeModel(NamedTuple):
    """How a model with remote code is opened."""

    model: str  # its class in auto_map
    reader: str  # the transformers class that opens its tokenizer or processor
    adapter: Callable[[Any, Any], Any]


REMOTE_CODE_MODELS = {
    "CogVLMForCausalLM": RemoteCodeModel("AutoModelForCausalLM", "AutoTokenizer", CogVLM),
    "MiniCPMV": RemoteCodeModel("AutoModel", "AutoProcessor", MiniCPMV),
}
"""By the first of ``config.architectures``: CogVLM2's configuration does not have a model type."""


def check_complete(name: str, model: Any, missing: Collection[str]) -> None:
    """Raise if weights are missing in a checkpoint: transformers would initialise them randomly."""
    if lost := sorted({key for key, _ in model.named_parameters()}.intersection(missing)):
        raise InputError(f"{name} has no weights that fit {lost[0]} ({len(lost)} missing in all)")


def load_remote_code(
    row: RemoteCodeModel, name: str, config: Any, revision: str | None, options: dict[str, Any]
) -> Any:
    """Load the weights into the model's own class, which was written for an older transformers.

    transformers 5 builds models without storage. It requires a call of ``post_init`` that older
    code does not make, and does not initialise buffers that are not in the checkpoint (tables of
    positions).
    """
    require_transformers()
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    theirs = get_class_from_dynamic_module(config.auto_map[row.model], name, revision=revision)

    def begin(self: Any, config: Any) -> None:
        theirs.__init__(self, config)
        if not hasattr(self, "all_tied_weights_keys"):
            self.post_init()

    begun: Any = type(
        theirs.__name__, (theirs,), {"__init__": begin, "__module__": theirs.__module__}
    )
    model, report = begun.from_pretrained(
        name, config=config, revision=revision, output_loading_info=True, **options
    )
    missing = set(report["missing_keys"])
    check_complete(name, model, missing)
    with require_transformers("accelerate").init_empty_weights(include_buffers=False):
        fresh = dict(theirs(config).named_buffers())
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
