"""Reports on one run or compares several as one HTML file: `python -m bertjax.report`."""

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from bertjax.base import command_line, signals
from bertjax.base.progress import file_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Config of `bertjax.report`: the runs and the page."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Workdirs of runs, in progress or not, on a disk or in a gs:// or s3:// bucket; of a workdir
    with several runs (--seeds, --folds), all of them. Several runs are drawn into the same
    charts, and several cross-validations stand side by side."""
    output: str = "report.html"
    """HTML file to write, which needs neither a network nor other files."""
    attribute: bool = False
    """Show which words the first ten mistakes of each split of a finished fine-tuning are made of,
    by integrated gradients (docs/visualize.md). They are kept in the run for later reports."""


def run(config: ReportConfig) -> None:
    """Writes the report of `config.runs`.

    Raises FileNotFoundError if there is no run in one of the folders, OSError if a bucket cannot be
    read, and ValueError if no run is given, or one has logged no metrics yet.
    """
    from bertjax.base.files import write_text
    from bertjax.base.outputs import check_paths
    from bertjax.devices.compilation import start_jax
    from bertjax.record.report import report_page, run_data

    if not config.runs:
        raise ValueError("No run is given: name the --workdir of one or more runs.")
    check_paths(config)
    if config.attribute:
        start_jax()
    folders = [entry for address in config.runs for entry in _runs_at(address)]
    names = _names([address for address, _ in folders])
    runs = [
        run_data(folder, name=name, address=address)
        for name, (address, folder) in zip(names, folders, strict=True)
    ]
    for one, (address, folder) in zip(runs, folders, strict=True):
        if not one["log_lines"]:
            raise ValueError(
                f"The run in {address} has logged no metrics yet: wait for its first log line, "
                "which comes after --log_every steps, or leave this run out."
            )
        print(f"{address}: {one['status']['sentence']}")
        if config.attribute:
            _attribute_mistakes(address, folder, one)
        for note in (*one["hints"], *one["notes"]):
            print(f"  {note}")
    parents = {}
    for address, folder in folders:
        if address not in config.runs:  # it is in a workdir with several runs
            parents[address.rpartition("/")[0]] = folder.parent
    page = report_page(runs, parents)
    write_text(Path(config.output), page)
    print(
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: written to {config.output} "
        f"({file_size(len(page.encode()))}), which any browser opens"
    )


def _attribute_mistakes(address: str, folder: Path, run: dict[str, Any]) -> None:
    """Attributes the first mistakes of a run to their words, and adds that to its summaries.

    `run` is what the report shows of the run, and is changed, too.
    """
    from bertjax.base.workdir_files import MODEL, PREDICTIONS
    from bertjax.inference.pretrained import Pretrained
    from bertjax.record.ledger import FINISHED
    from bertjax.record.predictions import MISTAKES, add_to_summary, read_mistakes
    from bertjax.weights import load_model

    predictions = folder / PREDICTIONS
    splits = [x for x in run["splits"] if (predictions / f"{x['split']}{MISTAKES}").is_file()]
    if run["status"]["state"] != FINISHED or not splits:
        print(f"  --attribute: no mistakes of texts in {address}, or the run is not finished")
        return
    model = Pretrained(load_model(folder / MODEL, None))
    attribute = model.attributor()
    for split in splits:
        mistakes = read_mistakes(predictions / f"{split['split']}{MISTAKES}")
        examples = [example for example, _ in mistakes]
        pairs = model.predictions(attribute.task, examples, shows_progress=False)
        attributed: list[Any] = []
        for pair, (_, options) in zip(pairs, mistakes, strict=True):
            attributed.append(None)
            with contextlib.suppress(ValueError):  # a tagger does not read unknown symbols
                attributed[-1] = attribute(*pair, **options)[0].page_data()
        split["attributions"] = attributed
        add_to_summary(predictions, split["split"], {"attributions": attributed})
        print(f"  {split['split']}: {len(attributed)} mistakes attributed to their words")


def _runs_at(address: str) -> list[tuple[str, Path]]:
    """Returns (address, local folder) of the run at `address`, or of the runs in its subfolders."""
    from bertjax.base.files import is_remote, refuse_links_outside
    from bertjax.cloud.copies import local_copy
    from bertjax.record.report import files_of_report, has_run

    folder = Path(os.path.expanduser(address))
    if is_remote(address):
        folder = Path(local_copy(address, choose=files_of_report))
    if has_run(folder):
        refuse_links_outside(folder)
        return [(address, folder)]
    inside = []
    if folder.is_dir():
        inside = sorted(path for path in folder.glob("*/") if has_run(path))
    if not inside:
        problem = "there is no such folder"
        if folder.is_dir():
            problem = "it has no run.json and no metrics.jsonl"
        raise FileNotFoundError(
            f"There is no run in {address} ({problem}): give the --workdir of a pretraining or a "
            "fine-tuning run."
        )
    refuse_links_outside(folder)
    return [(f"{address.rstrip('/')}/{path.name}", path) for path in inside]


def _names(addresses: Sequence[str]) -> list[str]:
    """Returns names that tell the runs apart: the last parts of their addresses."""
    parts = [os.path.abspath(x).split("/") if "://" not in x else x.split("/") for x in addresses]
    parts = [[part for part in one if part] for one in parts]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if max(Counter(names).values()) == 1:
            return names
    return ["/".join(one[-1:]) for one in parts]


parse, main = command_line.command_of(
    ReportConfig,
    run,
    "report",
    "Writes curves, scores and facts of one run as one HTML file, or compares several runs.",
    "Report fewer runs at a time.",
)


if __name__ == "__main__":
    signals.leave(main())
