"""Java's .properties format, as people write it. Imports nothing, since `kmirror serve` uses it at start-up."""

from __future__ import annotations


def parse_properties(text: str) -> dict[str, str]:
    """Java's .properties as people write them: `key=value`, `key: value`, `key value`; comments; `\\` joins lines."""
    properties: dict[str, str] = {}
    joined = ""
    for raw in text.splitlines():
        line = joined + raw.strip()
        joined = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            joined = line[:-1]
            continue
        end = next((at for at, char in enumerate(line) if char in "=: \t"), len(line))
        value = line[end:].strip()
        properties[line[:end]] = value[1:].strip() if value[:1] in ("=", ":") else value
    return properties
