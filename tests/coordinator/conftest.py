"""`--rewrite`: write down what transcripts say now; read the difference before committing it."""

from __future__ import annotations

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # another part's transcripts have the same option
        parser.addoption("--rewrite", action="store_true", help="rewrite the transcripts with what happens now")
