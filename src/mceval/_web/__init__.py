"""The web application in which people compare and revise captions."""
