"""Exports a model for other runtimes, such as ONNX Runtime: `python -m bertjax.export`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertjax.base import command_line, progress, signals
from bertjax.base.checked import check

if TYPE_CHECKING:
    from bertjax.weights import LoadedModel

TOLERANCE = 1e-4
OPSETS = range(18, 24)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Config of `bertjax.export`: the model, the format and the directory to write.

    Raises:
        ValueError: `opset` is too old.
    """

    src: Annotated[str, tyro.conf.Positional]
    """Model to export: a model directory, a hub name, bertjax:tiny, or the workdir of a run."""
    to: Literal["onnx"] = "onnx"
    """Format: onnx writes `onnx/model.onnx`, which ONNX Runtime, OpenVINO and transformers.js read,
    for any number of texts of any length, with the input and output names of optimum."""
    output: str
    """Output directory, a model directory of Hugging Face with the folder `onnx`: a new directory,
    or that of an older model, which is replaced if it holds only what bertjax wrote there."""
    head: str | None = None
    """Head to export, such as masked_lm or encoder; None: what the model was fine-tuned for, and of
    a pretrained model, the encoder."""
    prompt: str | None = None
    """Of an embedder that leaves the tokens of prompts out of the mean: the name of the prompt, or
    its text, that is put before the texts; None: the default prompt."""
    opset: int = 20
    """Version of ONNX's operators, 18 to 23."""

    def __post_init__(self):
        check("opset", self.opset, int)
        if self.opset not in OPSETS:
            raise ValueError(f"--opset {self.opset}: choose {OPSETS[0]} to {OPSETS[-1]}.")


def run(config: ExportConfig) -> None:
    """Exports the model `config.src`, and compares the outputs of ONNX Runtime with bertjax's.

    Raises:
        FileNotFoundError: there is no model.
        ImportError: the extra `onnx` is not installed.
        NotImplementedError: a part of the model cannot be exported.
        ValueError: the files of the model cannot be followed, or the outputs differ.
        OSError: the model cannot be written.
    """
    from bertjax.base.checksums import write_checksums
    from bertjax.base.outputs import check_paths, replacing_folder
    from bertjax.devices.compilation import start_command
    from bertjax.inference.onnx_check import check_package, largest_differences, sample_arrays
    from bertjax.inference.onnx_export import FILES, FOLDER, exported, write_onnx
    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model

    check_paths(config)
    check_package()
    config = start_command(config)
    with progress.progress("reading the weights"):
        loaded = load_model(config.src, config.head or "auto", tokenizer_required=False)
    for part in loaded.absent:
        print(f"{config.src} has no {part}: a newly initialised {part} is exported")
    if config.head is None:
        _check_modules(loaded)
    export = exported(loaded, config.prompt)
    arrays = sample_arrays(loaded, export)
    with replacing_folder(config.output) as folder:
        Pretrained(loaded).save(folder)
        (folder / FOLDER).mkdir()
        file = folder / FOLDER / FILES["float32"]
        with progress.progress(f"writing {file.name}"):
            write_onnx(export, file, config.opset)
        differences = largest_differences(export, file, arrays)
        for name, difference in differences.items():
            print(f"{name}: largest difference from bertjax {difference:.2e}")
        if not max(differences.values()) <= TOLERANCE:
            raise ValueError(
                f"The outputs of ONNX Runtime differ by more than {TOLERANCE:.0e} from bertjax's: "
                "report this model as an issue of bertjax."
            )
        write_checksums(folder)
    size = sum(path.stat().st_size for path in Path(config.output, FOLDER).iterdir())
    print(f"{loaded.head}: inputs {', '.join(export.inputs)}; outputs {', '.join(export.outputs)}")
    print(f"{size / 1e6:,.0f} MB written to {Path(config.output, FOLDER, FILES['float32'])}")


def _check_modules(loaded: "LoadedModel") -> None:
    """Raises ValueError if files of sentence-transformers ask for what bertjax does not do."""
    try:
        loaded.source.usage.modules.result()
    except ValueError as error:
        reason = str(error).partition(": give --pooling")[0]
        raise ValueError(
            f"{reason}: give --head encoder to export the hidden states alone."
        ) from error


parse, main = command_line.command_of(
    ExportConfig,
    run,
    "export",
    "Exports a model for other runtimes, as an ONNX file beside its Hugging Face files, and "
    "compares the outputs of ONNX Runtime with bertjax's.",
)


if __name__ == "__main__":
    signals.leave(main())
