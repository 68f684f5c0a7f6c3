"""Completion scripts offer what the commands accept, in bash, zsh and fish."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax import completion
from bertjax.__main__ import COMMANDS, main
from bertjax.base import command_line
from bertjax.config import FinetuneConfig, PretrainConfig, config_names

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """{shell: file of its completion script}"""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / shell).write_text(completion.completion_script(shell), encoding="utf-8")
    return {shell: folder / shell for shell in SHELLS}


@pytest.fixture
def complete(scripts, tmp_path, monkeypatch):
    """shell, line -> the words that the shell offers at the end of the line."""
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "bert_mine.py"):
        (tmp_path / name).touch()

    def offered(shell: str, line: str) -> set[str]:
        program = shutil.which(shell)
        if program is None:
            pytest.skip(f"{shell} is not installed")
        # Completing runs the embedded code of tyro in a Python, and imports nothing.
        environment = {"PATH": f"{Path(sys.executable).parent}:/bin:/usr/bin"}
        run = {"cwd": tmp_path, "env": {**environment, "HOME": str(tmp_path)}, "check": True}
        script = shlex.quote(str(scripts[shell]))
        if shell == "bash":
            code = (
                f"source {script}; COMP_LINE=$1 COMP_POINT=${{#1}}; _bertjax; "
                # the option `default` of `complete`
                '[ -n "${COMPREPLY[*]}" ] || COMPREPLY=($(compgen -f -- "${1##*[ =]}")); '
                'printf "%s\\n" "${COMPREPLY[@]}"'
            )
            command = [program, "--norc", "-c", code, "bash", line]
        elif shell == "fish":
            command = [
                program,
                "--no-config",
                "-c",
                f"source {script}; complete -C $argv",
                line,
            ]
        else:
            # The functions of zsh's completion are stand-ins that print what they are given.
            code = (
                "compdef() { :; }; compset() { word=${word#*=}; };"
                "_files() { print -l $words[CURRENT]*; };"
                "_describe() { local -a found=(${(M)${(P)2}:#$words[CURRENT]*});"
                "print -rl -- $found; (( ${#found} )); };"
                f"source {script}; words=(${{(z)1}}); [[ $1 == *' ' ]] && words+=('');"
                "CURRENT=${#words}; _bertjax"
            )
            command = [program, "-f", "-c", code, "zsh", line]
        done = subprocess.run(command, capture_output=True, text=True, **run)
        assert not done.stderr
        ends = r"(?<!\\):" if shell == "zsh" else r"\t"  # where a description begins
        words = (re.split(ends, line)[0] for line in done.stdout.splitlines())
        return {word.replace("\\:", ":") for word in words if word}

    return offered


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_flags_and_values_are_offered(shell, complete):
    assert complete(shell, "bertjax ") >= set(COMMANDS)
    assert {"pretrain", "prepare"} <= complete(shell, "bertjax pre")
    flags = complete(shell, "bertjax pretrain --optimizer.")
    assert {"--optimizer.learning_rate", "--optimizer.recipe"} <= flags
    assert {"float32", "bfloat16"} <= complete(shell, "bertjax pretrain --data d --dtype ")
    configs = complete(shell, "bertjax pretrain --config ")
    assert configs >= {*config_names(PretrainConfig)}
    assert not configs & set(config_names(FinetuneConfig))
    assert {"cola", "mnli"} <= complete(shell, "bertjax finetune --task ")
    assert "bertjax:tiny" in complete(shell, "bertjax predict --model ")
    assert complete(shell, "bertjax completion ") >= set(SHELLS)
    assert complete(shell, "bertjax predict --input t") == {"text.txt"}
    assert complete(shell, "bertjax predict --model tex") == {"text.txt"}


def test_bash_matches_what_is_typed(complete):
    assert complete("bash", "bertjax pre") == {"pretrain", "prepare", "predict"}
    assert complete("bash", "bertjax train-to") == set()
    assert complete("bash", "bertjax pretrain --keep-ch") == {"--keep_checkpoints"}
    assert complete("bash", "bertjax pretrain --config bert_") == {
        name for name in config_names(PretrainConfig) if name.startswith("bert_")
    }
    assert complete("bash", "bertjax pretrain --dtype b") == {"bfloat16"}


def test_bash_completes_after_the_signs_that_separate_its_words(complete):
    """bash replaces only what follows the sign."""
    assert complete("bash", "bertjax pretrain --dtype=") == {"float32", "bfloat16"}
    assert complete("bash", "bertjax predict --model bertjax:t") == {"tiny"}
    assert complete("bash", "bertjax predict --model=bertjax:t") == {"tiny"}


def test_where_no_name_matches_files_are_offered(complete):
    assert complete("bash", "bertjax pretrain --config=bert_m") == {"bert_mine.py"}
    assert complete("bash", "bertjax visualize te") == {"text.txt"}


def test_every_flag_of_the_help_is_completed_and_no_other(complete, capsys):
    for name in ("quickstart", "convert", "visualize", "score"):
        with pytest.raises(SystemExit):
            importlib.import_module(f"bertjax.{name}").parse(["--help"])
        words = capsys.readouterr().out.replace("\n", " ").replace("│", " ").split(" ")
        shown = {word.rstrip(",") for word in words if word.startswith("--")}
        completed = complete("bash", f"bertjax {name} --")
        assert {"--help", "--version"} < completed <= shown | {"--help"}
    plan = complete("bash", "bertjax plan --")
    assert {"--topology", "--optimizer.recipe", "--phases.1.num_steps"} <= plan
    assert "--workdir" not in plan


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_script_is_printed_without_importing_jax():
    code = (
        "import sys; from bertjax.__main__ import main; main(['completion', 'bash']);"
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "complete -o default -F _bertjax bertjax" in done.stdout


def test_completing_imports_nothing_of_bertjax(scripts):
    for script in scripts.values():
        assert not re.search(r"import \w*(bertjax|tyro)", script.read_text(encoding="utf-8"))


def test_an_unknown_shell_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "bash" in "".join(capsys.readouterr())


def test_a_parser_that_is_asked_for_its_flags_does_not_parse():
    with pytest.raises(command_line.Declared) as declared:
        completion.parse(command_line.DECLARED_ONLY)
    assert [box.config for box in declared.value.boxes] == [completion.CompletionConfig]
