"""The model that ships with the package, and why a test without it is skipped."""

from __future__ import annotations

from discode.backends._embedded import SHIPPED

NO_MODEL = f"no model at {SHIPPED}; training/README.md says how it is made"
