"""The rules of `rules.py` over the whole project."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.rules import Finding, Source

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("kmirror", "tests", "conformance")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".cfg", ".properties", ".json", ".java", ".go"}
TEXT_NAMES = {"Makefile", "run"}
PASSED_OVER = {".git", ".venv", "build", "dist", "__pycache__", "node_modules", "kmirror-data"}


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not PASSED_OVER & set(path.parts):
                found.append(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
    return tuple(found)


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """(path, text) of every text file people read: code, docs, scripts."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part != ".ci" for part in relative.parts)
        if hidden or PASSED_OVER & set(relative.parts) or any(p.endswith(".egg-info") for p in relative.parts):
            continue
        if path.is_file() and (path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES):
            found.append((relative.as_posix(), path.read_text(encoding="utf-8", errors="replace")))
    return tuple(found)


def show(findings: list[Finding]) -> str:
    return "\n" + "\n".join(str(finding) for finding in findings)


def test_the_walk_sees_the_project() -> None:
    paths = {source.path for source in sources()}
    assert {"kmirror/errors.py", "tests/tidy/rules.py"} <= paths
    assert {"README.md", "Makefile", ".ci/run", "pyproject.toml"} <= {path for path, _ in texts()}


@pytest.mark.parametrize("rule", rules.PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: rules.Rule) -> None:
    findings = [finding for source in sources() for finding in rule(source)]
    assert not findings, show(findings)


def test_no_foreign_words() -> None:
    findings = [finding for path, text in texts() for finding in rules.foreign_words(path, text)]
    assert not findings, show(findings)


def test_named_documents_exist() -> None:
    known = {Path(path).name for path, _ in texts()}
    findings = [
        finding
        for path, text in texts()
        if not path.startswith("tests/tidy/")
        for finding in rules.unknown_documents(path, text, known)
    ]
    assert not findings, show(findings)


def test_every_limit_has_a_reason() -> None:
    limits = next(source for source in sources() if source.path == "kmirror/limits.py")
    findings = list(rules.limits_have_reasons(limits))
    assert not findings, show(findings)


def test_every_limit_is_used() -> None:
    limits = next(source for source in sources() if source.path == "kmirror/limits.py")
    used: set[str] = set()
    for source in sources():
        if source.in_product and source is not limits:
            used |= rules.names_used(source)
    unused = [name for name in rules.limit_names(limits) if name not in used]
    assert not unused, f"limits that bound nothing: {', '.join(unused)}"
