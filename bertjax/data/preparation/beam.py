"""Preparation as an Apache Beam pipeline (extra `beam`): on Dataflow, Spark, Flink, or here.

An element is a part, as `--shard i/n` prepares one: it reads the input, cuts it into the same
chunks as always, and prepares those that are its own. So nothing large goes through Beam, memory
does not grow with the corpus, and the examples are those of any other way to prepare.
"""

import shlex
from collections.abc import Callable
from typing import Any


def run_parts(prepare_part: Callable[[int], Any], parts: int, *, runner: str, options: str) -> None:
    """Calls `prepare_part(i)` for i < parts on a runner of Beam, and waits for all of them.

    Args:
        prepare_part: sent to the workers, which must see input and output under their names.
        parts: how many there are; a worker takes one at a time.
        runner: "direct" for this machine, or a name that Beam knows: DataflowRunner, ...
        options: flags of the runner, as Beam's documentation names them, in one string.

    Raises:
        ImportError: Beam is not installed.
        ValueError: the runner is unknown.
        OSError: a part failed.
    """
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options.pipeline_options import (  # pyright: ignore[reportMissingImports]
            PipelineOptions,
        )
        from apache_beam.runners import (  # pyright: ignore[reportMissingImports]
            runner as beam_runner,
        )
    except ImportError as error:
        raise ImportError("--runner needs Apache Beam: pip install 'bertjax[beam]'.") from error
    name = "DirectRunner" if runner == "direct" else runner
    try:
        beam_runner.create_runner(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--runner {runner}: Beam gives no such runner ({error}). Take direct, DataflowRunner, "
            "SparkRunner, FlinkRunner, or what your version of Beam lists."
        ) from error
    try:
        known = PipelineOptions([f"--runner={name}", *shlex.split(options)])
        known.get_all_options()  # parses them
    except SystemExit as error:
        raise ValueError(
            f"--runner_options {options!r}: Beam does not take them, see its usage above."
        ) from error
    try:
        with beam.Pipeline(options=known) as pipeline:
            elements = pipeline | "Parts" >> beam.Create(range(parts))
            # Else the runner would give all of them to one worker.
            spread = elements | "Spread" >> beam.Reshuffle()
            _ = spread | "Prepare" >> beam.Map(prepare_part)
    except Exception as error:  # Beam wraps whatever a worker raised
        gist = str(error).strip().splitlines()
        raise OSError(
            f"A part failed on {name}: {gist[0] if gist else type(error).__name__}. Run the same "
            "command again: finished chunks are kept."
        ) from error
