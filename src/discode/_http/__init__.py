"""Shared parts of both web applications: host checks, headers, static files, the server."""
