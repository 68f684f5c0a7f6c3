"""No command prints what could command a terminal, while our own bars and colours still work."""

import json
import re
import sys

import pytest

from bertjax.base import printable
from bertjax.base.printable import printable_output
from bertjax.base.signals import run_reporting_errors
from tests.pseudo_terminal import shown_on_terminal

HOSTILE = [
    *(
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\link",
        "\x9b2J",
        "a\x08\x08b",
        "\x7f",
    ),
    *(
        "one\rtwo",
        "\u202etxt.exe",
        "\u2066",
        "\u200e",
        "\u061c",
        "\udcff",
        "\U000e0041",
        "\0",
        "\x85",
    ),
]
# What rich draws with: colours, movements of the cursor, and whether it is shown.
DRAWN = re.compile(r"\x1b\[(\?25[lh]|[\d;]*[mAKJ])|\r")


@pytest.mark.parametrize("text", HOSTILE)
def test_escapes_stand_for_what_could_command_a_terminal(text):
    shown = printable.printable(f"größe 你好 می‌خواهم 👩‍💻\n\t{text}")
    assert shown.startswith("größe 你好 می‌خواهم 👩‍💻\n\t")
    assert "\\u" in shown or "\\r" in shown or "\\b" in shown
    assert not re.search(
        "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff]", shown
    )
    # In JSON, an escape is the character.
    assert json.loads(printable.printable(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_an_error_is_printable(text, capsys):
    def fail():
        print(text)
        raise ValueError(f"no label {text}")

    before = sys.stdout, sys.stderr
    assert run_reporting_errors(fail) == 1
    assert (sys.stdout, sys.stderr) == before
    captured = capsys.readouterr()
    assert captured.err == f"error: no label {printable.printable(text)}\n"
    assert captured.out == printable.printable(text) + "\n"


@pytest.mark.parametrize("text", [x for x in HOSTILE if x != "\udcff"])
def test_tables_show_texts_as_they_are_but_for_controls(text, capsys):
    from rich.table import Table

    table = Table(f"{text}1", "[bold]x[/bold]", title=f":smile: {text}3")
    table.add_row(f"{text}2", "[/]")
    printable.console(width=100).print(table)
    printed = capsys.readouterr().out
    for n in "123":
        assert printable.printable(text) + n in printed.replace(":smile: ", "")
    assert "[bold]x[/bold]" in printed and "[/]" in printed and ":smile:" in printed
    assert "\x1b" not in printed


_PROGRAM = """
import sys, time, warnings
from bertjax.base import progress, signals
from bertjax.base.printable import console
progress.SILENT_SECONDS = 0.0
texts = sys.argv[1:]
class Odd(Exception): ...
def run():
    with progress.progress(f"reading {texts[0]}", 10) as state:
        time.sleep(0.3)
        for text in texts:
            print(text)
            print(text, file=sys.stderr)
        state.advance(5)
        time.sleep(0.3)
    warnings.warn(texts[0])
    console().print(*texts)
    raise Odd(texts[0])
try:
    signals.run_reporting_errors(run)
except Odd:
    sys.excepthook(*sys.exc_info())
"""


def test_a_terminal_gets_no_commands_of_others_but_our_bars():
    texts = [text for text in HOSTILE if "\0" not in text and text != "\udcff"]
    shown = shown_on_terminal([sys.executable, "-c", _PROGRAM, *texts])
    assert "\x1b[?25l" in shown  # there was a bar
    rest = DRAWN.sub("", shown).replace("\r\n", "\n")
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u061c\u2028-\u202e\u2066-\u206f]", rest)
    assert "[31m" not in re.sub(r"\\u001b\[31m", "", rest), "a colour of others"
    assert "Odd: \\u001b[31mred" in rest and "UserWarning: \\u001b[31mred" in rest
    assert rest.count("\\u202etxt.exe") >= 3


def test_filters_of_libraries_that_draw_end_with_their_errors(capsys):
    with printable_output():
        before = sys.stdout
        with pytest.raises(ValueError), printable_output(wanted=False):
            sys.stdout.write("\x1b[A")
            raise ValueError
        assert sys.stdout is before
    assert capsys.readouterr().out == "\x1b[A"
