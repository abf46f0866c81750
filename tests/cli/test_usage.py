"""The command line itself: help, exit status, start-up, text formats."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from kmirror.cli import commands, display
from kmirror.cli.client_properties import load
from kmirror.cli.failure import BadUsage
from kmirror.cli.group_reset import target
from kmirror.cli.mirror_actions import start_point
from kmirror.cli.property_file import parse_properties
from kmirror.cli.queries import is_pattern, topic_matcher
from kmirror.cli.session import code_name, key_values, refusal
from tests.cli.conftest import Run


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            found += leaves(command, (*path, name))
        else:
            found.append((*path, name))
    return found


ALL = leaves(commands.group)


def test_the_contract_is_there() -> None:
    assert {
        ("mirror", verb)
        for verb in ("create", "start", "stop", "pause", "resume", "recover", "promote", "list", "describe", "delete")
    } <= set(ALL)
    assert {("group", verb) for verb in ("list", "describe", "offsets", "reset", "delete")} <= set(ALL)
    assert {("topic", verb) for verb in ("list", "create", "describe", "alter", "delete")} <= set(ALL)
    assert {("verify",), ("produce",), ("consume",), ("dump",), ("dissect",), ("demo",), ("serve",)} <= set(ALL)


@pytest.mark.parametrize("path", [path for path in ALL if path != ("serve",)], ids=" ".join)
def test_every_command_explains_itself(run: Run, path: tuple[str, ...]) -> None:
    ran = run(*path, "--help")
    assert ran.status == 0
    assert ran.out.startswith("Usage: kmirror ")


def test_no_command_and_an_unknown_one(run: Run) -> None:
    assert run().status == 2
    ran = run("mirorr")
    assert ran.status == 2
    assert "mirorr" in ran.err
    assert "Did you mean 'mirror'?" in ran.err
    assert run("no-such-thing").status == 2


def test_serve_starts_without_the_command_lines_libraries() -> None:
    """Start-up time is a feature: what serve does not need is not imported before it is dispatched."""
    code = (
        "import sys; import kmirror.cli.main as m; import kmirror.cli.serve\n"
        "late = {'click', 'rich', 'construct', 'cramjam', 'cryptography', 'msgpack'} & set(sys.modules)\n"
        "raise SystemExit(f'imported at start: {late}' if late else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c ", {"a": "b c"}),
        ("a: b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("# x\n! y\n\na=1", {"a": "1"}),
        ("a=1,\\\n  2", {"a": "1,2"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
    ],
)
def test_property_files(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_client_properties(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_text("bootstrap.servers=h:1\nclient.id=me\nrequest.timeout.ms=5\nsecurity.protocol=plaintext\nfoo=1\n")
    settings = load(path)
    assert (settings.bootstrap, settings.client_id, settings.request_timeout_ms) == ("h:1", "me", 5)
    assert settings.ignored == ["foo"]
    path.write_text("request.timeout.ms=soon\n")
    with pytest.raises(BadUsage, match="soon"):
        load(path)


def test_lists_of_names_and_expressions() -> None:
    assert [is_pattern(item) for item in ("orders", "a.b-c_d", "orders.*", "(a|b)")] == [False, False, True, True]
    matcher = topic_matcher(["a.b", "x.*"])
    assert [bool(matcher.fullmatch(name)) for name in ("a.b", "aXb", "x", "xyz", "yx")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert topic_matcher([]).fullmatch("") is None
    with pytest.raises(BadUsage):
        topic_matcher(["(*"])


def test_a_time_without_a_zone_is_utc_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        for text in ("2026-11-30T12:00:00", "2026-11-30T12:00:00Z", "2026-11-30T14:00:00+02:00"):
            assert start_point(text) == 1_796_040_000_000, text
            assert target(text).timestamp == start_point(text), text
    finally:
        monkeypatch.undo()
        time.tzset()


def test_key_values() -> None:
    assert key_values(("a=b", "c=d=e", "f=")) == {"a": "b", "c": "d=e", "f": ""}
    with pytest.raises(BadUsage):
        key_values(("a",))


def test_codes_have_names_and_words() -> None:
    assert code_name(3) == "UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert code_name(9999) == "error 9999"
    assert refusal(3, "its own words") == "UNKNOWN_TOPIC_OR_PARTITION (3): its own words"
    assert len(refusal(3, None)) > len(code_name(3))
    assert refusal(9999, None) == "error 9999"


def test_tables_are_plain_columns_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    display.print_table(("NAME", "COUNT"), [("a", 5), ("long name", None), ("b", 100)])
    assert capsys.readouterr().out == "NAME       COUNT\na              5\nlong name      -\nb            100\n"
    display.print_table(("NAME",), [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"


def test_eighty_columns_hold_what_a_mirror_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow terminal breaks headings at their hyphens; numbers and states stay whole."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    names = ("MIRROR", "TOPIC", "PARTITION", "SOURCE-OFFSET", "DESTINATION-OFFSET", "LAG", "STATE", "PHASE")
    display.print_table(names, [("east", "orders.eu", 0, 1234567, 1234567, 0, "MIRRORING", None)])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in capsys.readouterr().out.splitlines()]
    assert ["SOURCE-", "DESTINATION-"] in lines
    assert ["MIRROR", "TOPIC", "PARTITION", "OFFSET", "OFFSET", "LAG", "STATE", "PHASE"] in lines
    assert ["east", "orders.eu", "0", "1234567", "1234567", "0", "MIRRORING", "-"] in lines


def test_bytes_never_reach_the_terminal_raw() -> None:
    assert display.readable(b"plain") == "plain"
    assert display.readable("ü".encode()) == "ü"
    assert display.readable(b"\x1b[31m") == "0x1b5b33316d"
    assert display.readable(b"\xff") == "0xff"
    assert display.readable(None) is None
    assert display.readable(b"") == ""


@pytest.mark.parametrize("options", [("--data-dir", "{file}"), ("--data-dir", "{dir}/d", "--ready-file", "{dir}/no/x")])
def test_serve_says_which_path_cannot_be_used(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    places = {"file": str(tmp_path / "file"), "dir": str(tmp_path)}
    arguments = ["serve", "--listen", "127.0.0.1:0", *(option.format_map(places) for option in options)]
    ran = subprocess.run(
        [sys.executable, "-m", "kmirror.cli.main", *arguments], capture_output=True, text=True, timeout=30
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("kmirror serve: ") and len(ran.stderr.splitlines()) == 1, ran.stderr


def test_a_bad_expression_is_named_as_it_was_written() -> None:
    with pytest.raises(BadUsage, match=r"'\['.* at position 0"):
        topic_matcher(["orders", "["])


@pytest.mark.parametrize("address", ["", ",", "localhost", "localhost:port"])
def test_an_address_that_is_none_is_wrong_usage(run: Run, address: str) -> None:
    """An empty one too: an unset variable must not send a command to the default broker."""
    ran = run("topic", "list", "--bootstrap", address)
    assert (ran.status, ran.out) == (2, "")
    assert "--bootstrap" in ran.err
