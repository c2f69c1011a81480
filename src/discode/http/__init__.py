"""What both web applications share: hosts and headers, limits, the server, images by URL."""
