"""The judge over HTTP: an API and a page (``discode serve``, extra ``discode[serve]``)."""
