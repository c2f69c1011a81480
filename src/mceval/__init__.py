"""Build a benchmark like the paper's MCEval: images, captions, human preferences, a dataset."""
