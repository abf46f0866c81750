"""Entry point of the `kmirror` command.

Start-up time is a feature: `kmirror serve` is found before anything of click, rich or the client is imported, and the
other subcommands are imported one by one, each when it is named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 an operation failed, 2 usage or cannot reach."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        from kmirror.cli import serve

        return serve.main(arguments[1:])
    from kmirror.cli import commands

    return commands.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
