"""Building a benchmark as the paper's MCEval: images, captions, people's preferences, a dataset."""
