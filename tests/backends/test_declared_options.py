"""The options that backends declare are the keywords that their classes take."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from discode.backends.local.backend import Local, LocalOptions
from discode.backends.served.backend import Served, ServedOptions


@pytest.mark.parametrize(("backend", "options"), [(Local, LocalOptions), (Served, ServedOptions)])
def test_options_are_the_keywords(backend: type, options: Any) -> None:
    declared = get_type_hints(options, include_extras=True)
    hints = get_type_hints(backend.__init__)  # type: ignore[misc]  # of the class itself
    keywords = {
        name: parameter
        for name, parameter in inspect.signature(backend).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert list(declared) == list(keywords)
    for name, annotated in declared.items():
        (help_text,) = annotated.__metadata__
        assert 0 < len(help_text) < 80
        assert hints[name] in (annotated.__origin__, annotated.__origin__ | None)
        default = keywords[name].default
        assert default is not inspect.Parameter.empty
        assert (default is None) == (hints[name] != annotated.__origin__)


def test_declaring_options_imports_no_extra() -> None:
    code = (
        "import sys, discode.backends.local.backend, discode.backends.served.backend; "
        "print({'torch', 'transformers', 'huggingface_hub', 'accelerate'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
