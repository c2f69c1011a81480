"""A card for any judge: what it sees, what misleads it, how it uses its scale."""
