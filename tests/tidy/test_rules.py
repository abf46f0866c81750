"""Each rule is able to fail: a bad snippet is found, the nearest good one is not."""

from __future__ import annotations

import pytest

from tests.tidy import rules
from tests.tidy.rules import Source

BAD = [
    (rules.layers, "kmirror/storage/log.py", "from kmirror.broker import world"),
    (rules.layers, "kmirror/storage/log.py", "from kmirror.mirror import machine"),
    (rules.layers, "kmirror/storage/log.py", "from kmirror.protocol.api import fetch"),
    (rules.layers, "kmirror/storage/log.py", "from kmirror.protocol import registry"),
    (rules.layers, "kmirror/mirror/machine.py", "from kmirror.protocol.api.fetch import FetchRequest"),
    (rules.layers, "kmirror/mirror/machine.py", "import kmirror.storage.log"),
    (rules.layers, "kmirror/errors.py", "from kmirror.protocol import errors"),
    (rules.layers, "kmirror/broker/world.py", "def f():\n    from kmirror.server import dispatch"),
    (rules.layers, "kmirror/broker/world.py", "from ..server import dispatch"),
    (rules.layers, "kmirror/app.py", "from kmirror.cli import main"),
    (rules.layers, "kmirror/elsewhere/thing.py", "import os"),
    (rules.async_level, "kmirror/broker/world.py", "import trio"),
    (rules.async_level, "kmirror/broker/world.py", "from trio import Event"),
    (rules.async_level, "kmirror/storage/log.py", "async def f(): ..."),
    (rules.sizes, "kmirror/x.py", "#" * 121),
    (rules.sizes, "kmirror/x.py", "\n" * 801),
    (rules.sizes, "kmirror/x.py", "def f():\n" + "    pass\n" * 70),
    (rules.module_names, "kmirror/broker/utils.py", ""),
    (rules.module_names, "tests/server/test_helpers.py", ""),
    (rules.module_names, "kmirror/common/thing.py", ""),
    (rules.module_heads, "kmirror/x.py", "import os"),
    (rules.banned_calls, "kmirror/broker/x.py", "import time\ntime.sleep(1)"),
    (rules.banned_calls, "tests/x.py", "import time\nnap = time.sleep"),
    (rules.banned_calls, "kmirror/broker/x.py", "from time import time"),
    (rules.banned_calls, "kmirror/broker/x.py", "import datetime\ndatetime.datetime.now()"),
    (rules.banned_calls, "kmirror/broker/x.py", "print('x')"),
    (rules.banned_calls, "kmirror/broker/x.py", "eval('1')"),
    (rules.banned_calls, "kmirror/server/x.py", "import os\nos.fdatasync(3)"),
    (rules.banned_calls, "tests/x.py", "import pytest\npytest.skip('later')"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept:\n    raise"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept (OSError, Exception):\n    x = 1"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept BaseException as error:\n    log.exception(error)"),
    (rules.limits_have_reasons, "kmirror/limits.py", "MAX_A = 1\nMAX_B = 2\n'why B'"),
]

GOOD = [
    (rules.layers, "kmirror/storage/log.py", "from kmirror.protocol.records import walk\nfrom kmirror import limits"),
    (rules.layers, "kmirror/storage/log.py", "from kmirror.storage import segment\nfrom . import index"),
    (rules.layers, "kmirror/broker/world.py", "from kmirror.storage.log import Log\nimport kmirror.mirror.machine"),
    (rules.layers, "kmirror/cli/demo.py", "import kmirror.app\nfrom kmirror import __version__"),
    (rules.layers, "tests/x.py", "import kmirror.app"),
    (rules.async_level, "kmirror/server/x.py", "import trio\nasync def f(): await trio.sleep(1)"),
    (rules.sizes, "kmirror/x.py", "def f():\n" + "    pass\n" * 69),
    (rules.module_names, "kmirror/broker/commons.py", ""),
    (rules.module_heads, "kmirror/__init__.py", ""),
    (rules.banned_calls, "kmirror/clock.py", "import time\ntime.time_ns()"),
    (rules.banned_calls, "kmirror/cli/x.py", "print('x')"),
    (rules.banned_calls, "kmirror/workers/x.py", "import os\nos.fdatasync(3)"),
    (rules.banned_calls, "kmirror/x.py", "clock.time_ms()\nrecord.timestamp.eval_date"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept Exception:\n    log.exception('f failed')"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept Exception as error:\n    promise.fail(error)"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept BaseException:\n    undo()\n    raise"),
    (rules.broad_excepts, "kmirror/x.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (rules.limits_have_reasons, "kmirror/limits.py", "MAX_B = 2\n'why B'\nsmall = 3"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_a_bad_snippet_is_found(rule: rules.Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_good_snippet_passes(rule: rules.Rule, path: str, text: str) -> None:
    assert [str(finding) for finding in rule(Source(path, text))] == []


@pytest.mark.parametrize(
    "line",
    [
        "see ../" + "shared/docs",
        "/wo" + "rk/main/x",
        "a sub" + "agent wrote it",
        "(/ro" + "ot/.cache)",
        "by Clau" + "de",
    ],
)
def test_foreign_words_are_found(line: str) -> None:
    assert list(rules.foreign_words("README.md", line))


@pytest.mark.parametrize("line", ["a fetch session", "/tmp/data", "framework/main", "https://example.org/root/x"])
def test_ordinary_words_pass(line: str) -> None:
    assert list(rules.foreign_words("README.md", line)) == []


def test_a_document_that_does_not_exist_is_found() -> None:
    known = {"README.md", "ARCHITECTURE.md"}
    assert list(rules.unknown_documents("x", "see docs/ARCHITECTURE.md and README.md", known)) == []
    assert [finding.text for finding in rules.unknown_documents("x", "see gone.md", known)] == [
        "gone.md is not in the project"
    ]


def test_every_banned_call_is_found_somewhere_it_is_not_allowed() -> None:
    for ban in rules.BANS:
        for call in ban.calls:
            text = f"import x\n{call}(1)"
            assert list(rules.banned_calls(Source("kmirror/broker/x.py", text))), call
