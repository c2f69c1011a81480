"""Local vision-language models, run with transformers (extra ``discode-eval[hf]``)."""
