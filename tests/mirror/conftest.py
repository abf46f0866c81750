"""`--rewrite`: write down what transcripts say now; read the difference before committing it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the mirror transcripts with what happens now")
