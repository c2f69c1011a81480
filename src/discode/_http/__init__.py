"""What both web applications share: checks of the host, headers, static files, the server."""
