"""The judge as a service: an HTTP API and a page (``discode serve``, extra ``discode[serve]``)."""
