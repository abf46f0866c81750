"""A broker for the tests of the server.

Time is virtual in a test with `autojump_clock` among its own arguments: pytest-trio looks nowhere else for a clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.server.harness import Broker, serving


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with serving() as running:
        yield running
