"""From (api key, version) to decoder and handler, resolved at the first request and kept. L4."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from kmirror.protocol import registry
from kmirror.protocol.compile import decoder
from kmirror.server.handlers import MIRROR_FEATURE, TABLE


class Route:
    """Everything that a connection needs to answer one API at one version."""

    __slots__ = ("api", "decode", "few_rows", "handle", "is_async", "keeps_nothing", "prepare", "version")

    def __init__(self, api: registry.Api, version: int, module: Any) -> None:
        self.api = api
        self.version = version
        self.decode: Callable[[Any, int, int], tuple[Any, int]] = decoder(api.request, version)
        self.handle: Callable[[Any, Any], Any] = module.handle
        self.is_async = inspect.iscoroutinefunction(module.handle)
        self.keeps_nothing: bool = getattr(module, "KEEPS_NOTHING", False)
        """Whether no view of the request outlives the handler, so that its frame may lie in a reused buffer."""
        self.few_rows: bool = getattr(module, "FEW_ROWS", False)
        """Whether its answers are left uncounted: the busiest APIs, whose rows cost the client more than us."""
        self.prepare: Callable[[Any, Any], Callable[[], None] | None] | None = getattr(module, "prepare", None)
        """Called before `handle`; what it returns is work for a thread, and the connection waits for it."""


class Routes:
    """`mirroring_enabled` says whether the feature mirror.version is above 0 at this moment."""

    def __init__(self, mirroring_enabled: Callable[[], bool]) -> None:
        self._known: dict[int, Route] = {}
        self._mirroring_enabled = mirroring_enabled

    def find(self, api_key: int, version: int) -> Route | None:
        """The route, or None when this server does not answer that API at that version."""
        route = self._known.get(api_key << 16 | version)
        if route is None:
            route = self._resolve(api_key, version)
        if route is not None and route.api.key in _GATED and not self._mirroring_enabled():
            return None
        return route

    def _resolve(self, api_key: int, version: int) -> Route | None:
        served = TABLE.get(api_key)
        if served is None or not served.first_version <= version <= served.max_version:
            return None
        module = importlib.import_module(f"kmirror.server.handlers.{served.module}")
        route = Route(registry.by_key[api_key], version, module)
        self._known[api_key << 16 | version] = route
        return route


_GATED = frozenset(key for key, served in TABLE.items() if served.feature == MIRROR_FEATURE)
