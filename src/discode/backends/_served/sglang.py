"""SGLang's own route, /generate, which returns the log-probabilities of requested token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Template(NamedTuple):
    """A question about an image as the server's chat template writes it."""

    before: str
    after: str
    trims: bool  # whether spaces around the question are removed

    def render(self, question: str, begun: str) -> str:
        return f"{self.before}{question.strip() if self.trims else question}{self.after}{begun}"


def generate_body(
    prompt: str, image: str, options: Mapping[str, Any], limit: int, logprobs: int
) -> dict[str, Any]:
    return {
        "image_data": image,
        "text": prompt,
        "modalities": ["image"],
        "sampling_params": {"temperature": 0, "max_new_tokens": limit},
        "return_logprob": True,
        "top_logprobs_num": logprobs,
        "token_ids_logprob": options["logprob_token_ids"],
        "return_text_in_logprobs": True,
    }


def completion_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an answer of /generate to a chat completion.

    >>> place = [[-0.1, 20, "5"]]
    >>> reply = {"text": "5", "meta_info": {"output_token_logprobs": place,
    ...     "output_top_logprobs": [place], "output_token_ids_logprobs": [[[-3.0, 19, "4"]]]}}
    >>> content = completion_of(reply)["choices"][0]["logprobs"]["content"]
    >>> [top["token"] for top in content[0]["top_logprobs"]]
    ['5', '4']
    """
    meta = reply["meta_info"]
    lists = (meta["output_top_logprobs"], meta["output_token_ids_logprobs"])
    content = [
        {"token": token, "logprob": logp, "top_logprobs": [
            {"token": text, "logprob": p} for places in lists for p, _, text in places[number] or ()
        ]}
        for number, (logp, _, token) in enumerate(meta["output_token_logprobs"])
    ]  # fmt: skip
    choice = {"message": {"content": reply["text"]}, "logprobs": {"content": content}}
    return {"choices": [choice], "usage": meta}
