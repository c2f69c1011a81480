"""discode mceval: the verbs of campaigns."""
