"""CRC-32C, from the `crc32c` package's compiled module, without what importing the package costs.

The package's own `__init__` asks `importlib.metadata` for its version and loads a command line: 12 to 20 ms of a start
that should take 200. Its one compiled function is loaded here by itself; where a release is laid out differently, the
package is imported as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

_PACKAGE, _MODULE = "crc32c", "crc32c._crc32c"

Crc32c = Callable[..., int]
"""(data, value so far = 0) -> the checksum."""


def load_compiled(package: str = _PACKAGE, module: str = _MODULE) -> Crc32c | None:
    """The compiled function, or None when it is not where it is looked for."""
    found = PathFinder.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec(module, found.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    compiled: Any = spec.loader.create_module(spec)
    if compiled is None:
        return None
    spec.loader.exec_module(compiled)
    function: Crc32c | None = getattr(compiled, "crc32c", None)
    return function


def _load() -> Crc32c:
    compiled = load_compiled()
    if compiled is not None:
        return compiled
    import crc32c as package

    function: Crc32c = package.crc32c
    return function


crc32c: Crc32c = _load()
