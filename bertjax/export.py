"""Exports a model for other runtimes, such as ONNX Runtime: `python -m bertjax.export`."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertjax.base import command_line, progress, signals
from bertjax.base.checked import NonNegative, check
from bertjax.base.files import brief

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bertjax.inference.onnx_check import Scorer
    from bertjax.inference.onnx_export import Exported
    from bertjax.inference.onnx_quantization import Arrays
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
    dtype: tuple[Literal["float32", "float16", "int8"], ...] = ("float32",)
    """Number formats to write, one file each: float32 is model.onnx; float16, for GPUs, is
    model_fp16.onnx; int8, for CPUs, is model_quantized.onnx, whose activations are quantized while
    the model runs, or before (--calibrate)."""
    calibrate: str | None = None
    """File of texts as they are served, one per line (.txt), or examples, as of `predict --input`:
    the first 512 decide how int8 quantizes activations, once for all texts (static quantization);
    None: each text does, while the model runs (dynamic)."""
    check: str | None = None
    """File of labelled examples, as of `predict --input`, on which each file is scored: a table of
    the scores with their intervals, the paired differences from float32, sizes and speeds is
    printed, and written to the model card. None: only the largest differences of the outputs on a
    few texts are printed."""
    max_loss: NonNegative | None = None
    """Loss of score by int8 that is accepted, in points of per cent: as many of the matrices that
    lose most stay in float32 as are needed (needs --check); None: none."""
    opset: int = 20
    """Version of ONNX's operators, 18 to 23."""

    def __post_init__(self):
        check("opset", self.opset, int)
        check("max_loss", self.max_loss, NonNegative | None)
        if self.max_loss is not None and (self.check is None or "int8" not in self.dtype):
            raise ValueError("--max_loss needs --check and --dtype int8: give both.")
        if self.calibrate is not None and "int8" not in self.dtype:
            raise ValueError("--calibrate needs --dtype int8: give both.")
        if not self.dtype:
            raise ValueError("--dtype: give one or more of float32, float16 and int8.")
        if self.opset not in OPSETS:
            raise ValueError(f"--opset {self.opset}: choose {OPSETS[0]} to {OPSETS[-1]}.")


def run(config: ExportConfig) -> None:
    """Exports the model `config.src`, and compares the outputs of ONNX Runtime with bertjax's.

    Raises:
        FileNotFoundError: there is no model, or no file of --check or --calibrate.
        ImportError: the extra `onnx` is not installed.
        ValueError: the model has an operation without a translation, its files cannot be followed,
            the outputs differ, or the examples of --check or --calibrate do not fit the model.
        OSError: the model cannot be written.
    """
    from bertjax.base.checksums import write_checksums
    from bertjax.base.outputs import check_paths, replacing_folder
    from bertjax.devices.compilation import start_command
    from bertjax.inference.onnx_check import Scorer, calibration_batches, sample_arrays
    from bertjax.inference.onnx_export import FOLDER, exported, left_to_readers
    from bertjax.inference.onnx_session import check_package
    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model
    from bertjax.weights.hf import CARD

    check_paths(config)
    check_package()
    config = start_command(config, "check", "calibrate")
    with progress.progress("reading the weights"):
        reads_texts = bool(config.check or config.calibrate)
        loaded = load_model(config.src, config.head or "auto", tokenizer_required=reads_texts)
    for part in loaded.absent:
        print(f"{config.src} has no {part}: a newly initialised {part} is exported")
    if config.head is None:
        _check_modules(loaded)
    export = exported(loaded, config.prompt)
    for line in left_to_readers(loaded):
        print(line)
    score = None
    if config.check is not None:
        score = Scorer(export, loaded, config.check)
    calibration: Sequence[Arrays] = ()
    if config.calibrate is not None:
        calibration = calibration_batches(export, loaded, config.calibrate)
    with replacing_folder(config.output) as folder:
        Pretrained(loaded).save(folder)
        (folder / FOLDER).mkdir()
        arrays = sample_arrays(loaded, export)
        table = _write_files(config, export, arrays, score, calibration, folder / FOLDER)
        if table:
            with (folder / CARD).open("a", encoding="utf-8") as card:
                card.write(f"\n## ONNX\n\n{table}\n")
        write_checksums(folder)
    print(f"{loaded.head}: inputs {', '.join(export.inputs)}; outputs {', '.join(export.outputs)}")
    for file in sorted(Path(config.output, FOLDER).iterdir()):
        print(f"{file.stat().st_size / 1e6:,.0f} MB written to {file}")


def _write_files(
    config: ExportConfig,
    export: "Exported",
    arrays: "Arrays",
    score: "Scorer | None",
    calibration: "Sequence[Arrays]",
    folder: Path,
) -> str:
    """Writes a file for each number format, and compares their outputs for `arrays`.

    Returns the table of --check, or "".
    """
    from bertjax.inference.onnx_check import (
        largest_differences,
        loss_in_percent,
        table_of,
    )
    from bertjax.inference.onnx_export import FILES, write_onnx
    from bertjax.inference.onnx_quantization import quantize, quantize_within

    original = folder / FILES["float32"]
    files: dict[str, Path] = {}
    variants = {}
    for dtype in dict.fromkeys(("float32", *config.dtype)):
        name = dtype
        if dtype == "int8" and calibration:
            name = "int8, static"
        file = files[name] = folder / FILES[dtype]
        with progress.progress(f"writing {file.name}"):
            if dtype == "float32":
                write_onnx(export, file, config.opset)
            elif dtype == "float16":
                write_onnx(export.in_float16(), file, config.opset)
            elif score is None or config.max_loss is None:
                quantize(original, file, calibration)
            else:
                loss = partial(loss_in_percent, score, variants["float32"])
                kept = quantize_within(original, file, calibration, arrays, loss, config.max_loss)
                if kept:
                    names = brief(", ".join(kept), 200)
                    print(f"{name}: {len(kept)} matrices stay in float32: {names}")
        _check_differences(name, largest_differences(export, file, arrays))
        if score is not None:
            variants[name] = score(file)
    table = ""
    if score is not None:
        table = table_of(score, variants, files)
        print(table)
    if "float32" not in config.dtype:
        for file in folder.glob(f"{original.name}*"):
            file.unlink()
    return table


def _check_differences(name: str, differences: "Mapping[str, float]") -> None:
    """Prints the differences of a file from bertjax; raises ValueError if they are too large."""
    import numpy as np

    for output, difference in differences.items():
        print(f"{name}: {output}: largest difference from bertjax {difference:.2e}")
    largest = np.max([*differences.values()])  # NaN if any is NaN
    if name == "float32" and not largest <= TOLERANCE:
        raise ValueError(
            f"The outputs of ONNX Runtime differ by more than {TOLERANCE:.0e} from bertjax's: "
            "report this model as an issue of bertjax."
        )
    if not np.isfinite(largest):
        raise ValueError(
            f"The outputs of the model in {name} are not finite: leave it out of --dtype."
        )


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
