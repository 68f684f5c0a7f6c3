"""Data preparation as an Apache Beam pipeline (extra `beam`) on Dataflow, Spark, Flink or locally.

Each element of the pipeline is the index i of one of n parts of the data: a worker reads the whole
input, divides the input into chunks of documents, which are the same on all workers, and prepares
the chunks i, i + n, i + 2n, ..., as `--shard i/n` does. No text goes through Beam, so memory does
not grow with the corpus, and the examples do not depend on the runner.
"""

import shlex
from collections.abc import Callable
from typing import Any


def run_parts(prepare_part: Callable[[int], Any], parts: int, *, runner: str, options: str) -> None:
    """Calls `prepare_part(i)` for each i in range(parts) on a Beam runner, and waits for all calls.

    Args:
        prepare_part: function that prepares part i. The workers call `prepare_part`, so the input
            and the output must have the same paths on the machines of all workers.
        parts: number of parts; a worker prepares one part at a time.
        runner: "direct" for this machine, or the name of a Beam runner: DataflowRunner, ...
        options: the pipeline options of Beam in one string, such as "--project=P --region=R".

    Raises:
        ImportError: Beam is not installed.
        ValueError: Beam has no such runner, or rejects the options.
        OSError: the preparation of a part failed.
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
            f"--runner {runner}: Beam has no such runner ({error}). Use direct, DataflowRunner, "
            "SparkRunner, FlinkRunner, or another runner of your version of Beam."
        ) from error
    try:
        known = PipelineOptions([f"--runner={name}", *shlex.split(options)])
        known.get_all_options()  # parses the options
    except SystemExit as error:
        raise ValueError(
            f"--runner_options {options!r}: Beam rejects them, see Beam's usage message above."
        ) from error
    try:
        with beam.Pipeline(options=known) as pipeline:
            elements = pipeline | "Parts" >> beam.Create(range(parts))
            # Without a reshuffle, the runner could give all parts to one worker.
            spread = elements | "Spread" >> beam.Reshuffle()
            _ = spread | "Prepare" >> beam.Map(prepare_part)
    except Exception as error:  # Beam wraps the exception of a worker
        gist = str(error).strip().splitlines()
        raise OSError(
            f"A part failed on {name}: {gist[0] if gist else type(error).__name__}. Run the same "
            "command again; finished work is kept."
        ) from error
