"""The compiled function of the checksum, loaded past its package: the same function, and nothing else to pay for."""

from __future__ import annotations

import random
import subprocess
import sys

import crc32c as package

from kmirror.protocol.checksum import crc32c, load_compiled


def test_it_is_the_same_function(rng: random.Random) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value
    for size in (0, 1, 7, 8, 63, 64, 65, 4096, 100_001):
        data = rng.randbytes(size)
        assert crc32c(memoryview(data)) == package.crc32c(data)
        assert crc32c(data[size // 2 :], crc32c(data[: size // 2])) == package.crc32c(data)


def test_the_shortcut_is_taken_and_may_fail() -> None:
    assert load_compiled() is not None
    assert load_compiled("crc32c_of_another_kind") is None
    assert load_compiled("crc32c", "crc32c._elsewhere") is None
    assert load_compiled("json", "json.decoder") is None, "a module without it"


def test_a_start_does_not_ask_for_versions() -> None:
    program = "import sys, kmirror.app; print('crc32c' in sys.modules, 'importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
                          capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    assert done.stdout.split() == ["False", "False"]
