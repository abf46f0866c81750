"""`python -m kmirror.protocol show Fetch 12`: the generated source of a request and its response, both directions."""

from __future__ import annotations

import sys

from kmirror.protocol import registry
from kmirror.protocol.compile import source_text

USAGE = "usage: python -m kmirror.protocol show API VERSION"


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[0] != "show" or not arguments[2].isdigit():
        print(USAGE, file=sys.stderr)
        return 2
    api, version = registry.by_name.get(arguments[1]), int(arguments[2])
    if api is None or not api.min_version <= version <= api.max_version:
        known = f"{api.name} has versions {api.min_version}-{api.max_version}" if api else ", ".join(registry.by_name)
        print(f"no {arguments[1]} v{version}: {known}", file=sys.stderr)
        return 2
    for cls in (api.request, api.response):
        print(f"# --- {cls.__name__} v{version} ---\n{source_text(cls, version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
