"""The rules of the house as functions: source text in, findings out.

Each rule is pure, so `test_rules.py` can show that it is able to fail, and `test_tree.py` runs all of them over the
project. A finding names the file and the line. A rule that needs an exception takes it from a table below, where it
stands with its reason; a comment in the checked file can never switch a rule off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 800
MAX_LINE_LENGTH = 120


@dataclass(frozen=True)
class Source:
    """One Python file: `path` relative to the project, with slashes."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        name = self.path.removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")

    @property
    def in_product(self) -> bool:
        return self.path.startswith("kmirror/")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


Rule = Callable[[Source], Iterator[Finding]]


# --- layers -------------------------------------------------------------------------------------------------------
# The longest matching prefix decides. A module may import its own package and every package of a lower level.
LEVELS: dict[str, int] = {
    "kmirror": 0,
    "kmirror.errors": 0,
    "kmirror.limits": 0,
    "kmirror.clock": 0,
    "kmirror.effects": 0,
    "kmirror.slices": 0,
    "kmirror.protocol": 1,
    "kmirror.coordinator": 2,
    "kmirror.mirror": 2,
    "kmirror.security": 2,
    "kmirror.storage": 2,
    "kmirror.broker": 3,
    "kmirror.server": 4,
    "kmirror.source": 4,
    "kmirror.http": 4,
    "kmirror.workers": 4,
    "kmirror.app": 5,
    "kmirror.cli": 6,
}
ASYNC_LEVEL = 4
"""Trio, `async` and `await` live here and above: below, an invariant checked at entry holds until the call returns."""
STORAGE_MAY_USE = ("records", "compression", "checksum")
"""Of the protocol, storage uses only the batch format: it never sees a request type."""
SEES_NO_PROTOCOL_MESSAGES = ("kmirror.coordinator", "kmirror.mirror")
"""Pure machines know internal records and error codes, never a request, a response or a frame."""
CONCURRENCY_MODULES = ("trio", "asyncio", "outcome", "sniffio", "anyio")


def package_of(module: str) -> str:
    """The longest prefix of `module` that the level table names."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if prefix in LEVELS and (prefix != "kmirror" or module == "kmirror"):
            return prefix
    return ""


def imported_modules(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, inside functions and type-checking blocks too."""
    package = source.module if source.path.endswith("__init__.py") else source.module.rpartition(".")[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def layers(source: Source) -> Iterator[Finding]:
    """Imports point downwards; siblings of one level do not import each other below the async level."""
    if not source.in_product:
        return
    own = package_of(source.module)
    if not own:
        yield Finding(source.path, 1, f"{source.module} is in no layer: add it to the table on purpose")
        return
    for line, name in imported_modules(source):
        if name.split(".")[0] != "kmirror":
            continue
        other = package_of(name) or package_of(name.rpartition(".")[0]) or "kmirror"
        if other == own or other == "kmirror":
            continue
        if LEVELS[other] > LEVELS[own]:
            yield Finding(source.path, line, f"{own} must not import {name}: it lies above")
        elif LEVELS[other] == LEVELS[own] and 0 < LEVELS[own] < ASYNC_LEVEL:
            yield Finding(source.path, line, f"{own} must not import its sibling {name}")
        yield from _protocol_use(source, own, line, name)


def _protocol_use(source: Source, own: str, line: int, name: str) -> Iterator[Finding]:
    if not name.startswith("kmirror.protocol."):
        return
    part = name.removeprefix("kmirror.protocol.").split(".")[0]
    if own == "kmirror.storage" and part not in STORAGE_MAY_USE:
        yield Finding(source.path, line, f"storage may use only {', '.join(STORAGE_MAY_USE)} of the protocol: {name}")
    if own in SEES_NO_PROTOCOL_MESSAGES and part in ("api", "frames", "registry"):
        yield Finding(source.path, line, f"a pure machine never sees a message: {name}")


def async_level(source: Source) -> Iterator[Finding]:
    """Only the upper levels import trio or contain `async`."""
    if not source.in_product or LEVELS.get(package_of(source.module), 0) >= ASYNC_LEVEL:
        return
    for line, name in imported_modules(source):
        if name.split(".")[0] in CONCURRENCY_MODULES:
            yield Finding(source.path, line, f"{name} below the async level")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield Finding(source.path, node.lineno, "async code below the async level")


PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa)\S*$")
"""Does not count, as ruff counts."""


# --- sizes --------------------------------------------------------------------------------------------------------
def sizes(source: Source) -> Iterator[Finding]:
    lines = source.text.splitlines()
    if len(lines) > MAX_MODULE_LINES:
        yield Finding(source.path, len(lines), f"{len(lines)} lines; a module has at most {MAX_MODULE_LINES}")
    for number, line in enumerate(lines, 1):
        if len(PRAGMA.sub("", line)) > MAX_LINE_LENGTH:
            yield Finding(source.path, number, f"{len(line)} characters; a line has at most {MAX_LINE_LENGTH}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield Finding(
                    source.path, node.lineno, f"{node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
                )


# --- names --------------------------------------------------------------------------------------------------------
BANNED_NAMES = ("util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "stuff", "tools")


def module_names(source: Source) -> Iterator[Finding]:
    """A module is named for what it is."""
    for part in Path(source.path.removesuffix(".py")).parts:
        if set(part.lower().split("_")) & set(BANNED_NAMES):
            yield Finding(source.path, 1, f"'{part}' says nothing about what lives in it")


def module_heads(source: Source) -> Iterator[Finding]:
    """A module's head says what may live here. An empty `__init__.py` has nothing to say."""
    if source.text.strip() and not ast.get_docstring(source.tree) and source.in_product:
        yield Finding(source.path, 1, "no module docstring")


# --- banned calls -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ban:
    """`calls` may appear only in files whose path starts with one of `allowed`."""

    calls: tuple[str, ...]
    allowed: tuple[str, ...]
    reason: str


CLOCK_READS = ("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "datetime.now", "datetime.utcnow")
BANS: tuple[Ban, ...] = (
    Ban(
        ("time.sleep",),
        ("conformance/", "kmirror/workers/clean.py"),
        "blocks the event loop, and a test that sleeps is a test that flakes",
    ),
    Ban(
        CLOCK_READS,
        ("kmirror/clock.py", "conformance/", "tests/integration/"),
        "the clock is a port, so that tests own time",
    ),
    Ban(("print",), ("kmirror/cli/", "tests/", "conformance/", "kmirror/protocol/__main__.py"), "log, or hand it back"),
    Ban(
        ("eval", "exec"),
        ("kmirror/protocol/compile.py", "kmirror/protocol/schema.py"),
        "only the codec generates code, from its own schema",
    ),
    Ban(("os.fsync", "os.fdatasync"), ("kmirror/storage/", "kmirror/workers/"), "flushing has one owner"),
    Ban(
        ("os._exit", "os.abort"),
        ("kmirror/workers/clean.py",),
        "the process ends through main, so that logs are closed",
    ),
    Ban(("random.seed",), (), "hand a random.Random down instead of seeding everybody's"),
    Ban(("pytest.skip", "pytest.mark.skip", "pytest.mark.xfail"), ("conformance/",), "a test runs, or does not exist"),
)


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute chain, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def banned_calls(source: Source) -> Iterator[Finding]:
    """Every use counts, not only calls: `sleep = time.sleep` hides the call but not the intent."""
    for node in ast.walk(source.tree):
        name = ""
        if isinstance(node, ast.Attribute):
            name = dotted_name(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield from _banned(source, node.lineno, f"{node.module}.{alias.name}")
        if name:
            yield from _banned(source, node.lineno, name)  # type: ignore[attr-defined]


def _banned(source: Source, line: int, name: str) -> Iterator[Finding]:
    for ban in BANS:
        hit = name in ban.calls or any("." in call and name.endswith("." + call) for call in ban.calls)
        if hit and not source.path.startswith(ban.allowed or ("\0",)):
            yield Finding(source.path, line, f"{name}: {ban.reason}")


# --- exceptions ---------------------------------------------------------------------------------------------------
LOGGING_METHODS = {"exception", "error", "warning", "critical"}
BROAD_EXCEPT_ALLOWED: dict[str, str] = {}
"""path -> why a broad handler there may neither raise nor log. Empty is how it should stay."""


def broad_excepts(source: Source) -> Iterator[Finding]:
    """A bare except never; `except Exception` only when it raises, logs or hands the error object on."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield Finding(source.path, node.lineno, "bare except")
            continue
        names = {dotted_name(part) for part in (node.type.elts if isinstance(node.type, ast.Tuple) else [node.type])}
        if "BaseException" in names and not _raises(node):
            yield Finding(source.path, node.lineno, "except BaseException that swallows cancellation")
        elif "Exception" in names and source.path not in BROAD_EXCEPT_ALLOWED and not _accounts_for(node):
            yield Finding(
                source.path, node.lineno, "except Exception that neither raises, logs nor passes the error on"
            )


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _accounts_for(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING_METHODS:
            return True
        if isinstance(node, ast.Name) and handler.name and node.id == handler.name and isinstance(node.ctx, ast.Load):
            return True
    return False


# --- words --------------------------------------------------------------------------------------------------------
# Spelt in pieces so that this file does not trip over itself.
FOREIGN_WORDS: tuple[tuple[str, str], ...] = (
    (r"\.\./" + "shared", "a folder outside the project"),
    (r"(?<![\w.-])/(?:" + "work|root|home/" + r"\w+|Users)/", "an absolute path of somebody's machine"),
    ("/tmp/" + "plan", "a path of somebody's machine"),
    (r"(?i)\bsub-?" + r"agents?\b", "a word about how the project was made"),
    (
        r"(?i)\b(?:" + "clau" + "de|anth" + "ropic|chat" + r"gpt|open" + r"ai|co" + r"pilot)\b",
        "a word about how it was made",
    ),
    (r"(?i)\blanguage " + r"model\b", "a word about how the project was made"),
    (r"(?i)\bas (?:asked|instructed) (?:in|by) the (?:brief|" + r"prompt|task|note)\b", "a word about how it was made"),
    (r"INTERFACES" + r"\.md", "a file outside the project"),
)


def foreign_words(path: str, text: str) -> Iterator[Finding]:
    """The project stands alone: no machine paths, no words about its making. Any text file."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, reason in FOREIGN_WORDS:
            found = re.search(pattern, line)
            if found:
                yield Finding(path, number, f"'{found.group()}' is {reason}")


def unknown_documents(path: str, text: str, known: set[str]) -> Iterator[Finding]:
    """Every `something.md` that is named exists in the project. `known`: base names."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"(?<![\w/*.-])(?:[\w.-]+/)*([\w-]+\.md)\b", line):
            if name not in known:
                yield Finding(path, number, f"{name} is not in the project")


# --- limits -------------------------------------------------------------------------------------------------------
def limit_names(source: Source) -> list[str]:
    return [name for name, _, _ in _constants(source)]


def limits_have_reasons(source: Source) -> Iterator[Finding]:
    """In limits.py each constant is followed by a string that says why it is that large."""
    for name, line, has_reason in _constants(source):
        if not has_reason:
            yield Finding(source.path, line, f"{name} has no reason string below it")


def _constants(source: Source) -> Iterator[tuple[str, int, bool]]:
    body = source.tree.body
    for position, node in enumerate(body):
        if isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            targets = [node.target.id]
        else:
            continue
        after = body[position + 1] if position + 1 < len(body) else None
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        has_reason = is_text and isinstance(after.value.value, str)  # type: ignore[union-attr]
        for name in targets:
            if name.isupper():
                yield name, node.lineno, has_reason


def names_used(source: Source) -> set[str]:
    """Every name and attribute the file reads or imports."""
    used: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
    return used


PYTHON_RULES: tuple[Rule, ...] = (
    layers,
    async_level,
    sizes,
    module_names,
    module_heads,
    banned_calls,
    broad_excepts,
)
