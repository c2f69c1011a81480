"""How the embedded model is made; see README.md."""
