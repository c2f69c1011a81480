"""The judge over HTTP: an API for programs, and a page for people."""
