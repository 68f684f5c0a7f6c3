"""The entry point of all commands: `bertjax COMMAND ...` or `python -m bertjax COMMAND ...`."""

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import bertjax
from bertjax.base import signals
from bertjax.base.files import did_you_mean

COMMANDS = {
    "quickstart": "Train a small BERT in minutes, and show each command on the way.",
    "train_tokenizer": "Learn a WordPiece, BPE or unigram vocabulary from text.",
    "prepare": "Turn text into rows of token ids on disk, ready for pretraining.",
    "pretrain": "Pretrain an encoder, on one device or many.",
    "finetune": "Fine-tune a model on a task or on files of your own.",
    "predict": "Predict with a fine-tuned model.",
    "embed": "Compute an embedding for each text of a file.",
    "fill_mask": "Fill the masks of a text.",
    "search": "Search a corpus for the passages that are nearest to queries.",
    "serve": "Serve models over HTTP.",
    "mine": "Find hard negatives for the training of embeddings and rerankers.",
    "visualize": "Show attention, or why a model predicts what it does, as an HTML page.",
    "report": "Show curves, scores and facts of one or more runs as an HTML page.",
    "score": "Compute the official metrics of a task from files of predictions.",
    "convert": "Convert a model to Hugging Face's format or Google's TF1 format.",
    "export": "Export a model to ONNX, for other runtimes.",
    "plan": "Predict the memory and least step time of a pretraining on TPUs or GPUs not at hand.",
    "benchmark": "Measure the speed of a training step on this machine.",
    "completion": "Print a script that completes commands and flags in bash, zsh or fish.",
}


def usage() -> str:
    """Returns the usage message of `bertjax`, which lists all commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {sentence}" for name, sentence in COMMANDS.items()]
    return "\n".join(
        [
            "usage: bertjax COMMAND [OPTIONS]",
            "",
            str(bertjax.__doc__),
            "",
            *lines,
            "",
            "`bertjax COMMAND --help` lists the flags of a command; `bertjax --version` prints the "
            "version. --flag alone means --flag True, and --no_flag means --flag False.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` names and returns its exit status; 2 for an unknown command."""
    name, *flags = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        return signals.run_reporting_errors(lambda: print(usage()))
    if name == "--version":
        return signals.run_reporting_errors(lambda: print(f"bertjax {bertjax.__version__}"))
    command = name.replace("-", "_")
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        print(
            f"error: Unknown command {name!r}. {hint}Known: {', '.join(COMMANDS)}.", file=sys.stderr
        )
        return 2
    return importlib.import_module(f"bertjax.{command}").main(flags)


def command() -> NoReturn:
    """Runs the command that `sys.argv` names, and ends the process with its exit status."""
    signals.leave(main())


if __name__ == "__main__":
    command()
