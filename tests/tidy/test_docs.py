"""The documents stay in step with the code: commands, options, files, defaults, words."""

from __future__ import annotations

import re
import shlex
from functools import cache

import click
import pytest

from kmirror.broker import config_table
from kmirror.cli import commands
from tests.tidy.test_tree import ROOT, texts

DOCUMENTS = ("README.md", "docs/OPERATIONS.md", "docs/ARCHITECTURE.md", "docs/DEVIATIONS.md", "docs/GLOSSARY.md")
SHOWS_COMMANDS = ("README.md", "docs/OPERATIONS.md")
SERVE_OPTIONS = {"--config", "--set", "--data-dir", "--listen", "--ready-file"}


@cache
def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def command_lines(text: str) -> list[str]:
    """Everything that is written as a kmirror command: lines of code blocks, and code in sentences.

    `kmirror ready ...` is what serve prints.
    """
    found = []
    inside = False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside and line.startswith("kmirror "):
            found.append(line)
        elif not inside:
            found += re.findall(r"`(kmirror [^`]+)`", line)
    return [line for line in found if not line.startswith("kmirror ready ")]


def wrong_with(line: str) -> str | None:
    """Why this is no command of ours; None when it is one. Metavariables and values are not looked at."""
    words = shlex.split(line.split("#")[0])[1:]
    node: click.Command = commands.group
    while words and isinstance(node, click.Group):
        found = node.get_command(click.Context(node), words.pop(0))
        if found is None:
            return "no such command"
        node = found
    if isinstance(node, click.Group):
        return None if not words else "a command is missing"
    known = {name for parameter in node.params for name in parameter.opts} | {"--help"}
    if node.name == "serve":
        known = SERVE_OPTIONS
    unknown = [word for word in words if word.startswith("--") and word not in known]
    return f"no option {unknown[0]}" if unknown else None


def leaves(group: click.Group, path: str) -> list[str]:
    found = []
    for name in group.list_commands(click.Context(group)):
        node = group.get_command(click.Context(group), name)
        found += leaves(node, f"{path} {name}") if isinstance(node, click.Group) else [f"{path} {name}"]
    return found


@pytest.mark.parametrize("path", SHOWS_COMMANDS)
def test_every_command_shown_exists(path: str) -> None:
    lines = command_lines(read(path))
    assert len(lines) > 5
    wrong = [f"{line}: {why}" for line in lines if (why := wrong_with(line))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kmirror mirorr list", "no such command"),
        ("kmirror mirror lst", "no such command"),
        ("kmirror mirror stop x --topic y", "no option --topic"),
        ("kmirror serve --daemon", "no option --daemon"),
        ("kmirror mirror list", None),
        ("kmirror serve --set a=b", None),
    ],
)
def test_the_command_check_can_fail(line: str, why: str | None) -> None:
    assert wrong_with(line) == why


def test_every_command_is_documented() -> None:
    shown = "\n".join(line for path in SHOWS_COMMANDS for line in command_lines(read(path)))
    missing = [leaf for leaf in leaves(commands.group, "kmirror") if leaf not in shown]
    assert not missing, f"in no document: {', '.join(missing)}"


@pytest.mark.parametrize("path", DOCUMENTS)
def test_files_that_documents_name_exist(path: str) -> None:
    named = set(re.findall(r"`((?:kmirror|tests|docs|conformance)/[\w./-]+)`", read(path)))
    named |= {f"docs/{link}" if path.startswith("docs/") else link for link in links(read(path))}
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"{path} names {', '.join(missing)}"


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    named = {target for path in DOCUMENTS for target in re.findall(r"(?:^|`)make ([\w-]+)", read(path), re.MULTILINE)}
    assert named
    assert not named - targets


def table_rows(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]


def test_every_deviation_has_a_reason() -> None:
    rows = [row for row in table_rows(read("docs/DEVIATIONS.md")) if row[0] != "where"]
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 4, row
        assert all(row), f"an empty cell: {row}"
        assert len(row[3]) >= 12, f"no reason: {row}"


def test_defaults_that_differ_are_listed_with_their_values() -> None:
    listed = {row[0].strip("`"): row for row in table_rows(read("docs/DEVIATIONS.md")) if len(row) == 4}
    for name, value, _reason in config_table.DIFFERENT_DEFAULTS:
        assert name in listed, f"{name} is not in DEVIATIONS.md"
        assert f"`{value}`" in listed[name][2], f"{name}: DEVIATIONS.md does not say {value}"


def test_glossary_words_are_used() -> None:
    """Each entry's first word or phrase occurs in the code or in another document."""
    everything = "\n".join(text.lower() for path, text in texts() if path != "docs/GLOSSARY.md")
    everything = re.sub(r"[_\s]+", " ", everything)
    entries = [row for row in table_rows(read("docs/GLOSSARY.md")) if row[0] != "word"]
    assert len(entries) > 30
    for word, meaning in entries:
        assert meaning
        for part in re.sub(r"\([^)]*\)", "", word).split(","):
            assert re.sub(r"[_\s]+", " ", part.strip().lower()) in everything, f"'{part.strip()}' is used nowhere"


def test_the_changelog_begins_with_this_version() -> None:
    from kmirror import __version__

    assert f"## {__version__}" in read("CHANGELOG.md")
    assert f'version = "{__version__}"' in read("pyproject.toml")
