"""Serves models over HTTP: `python -m bertjax.serve DIR --port 8080`."""

from bertjax.base import command_line, signals
from bertjax.config.serve_config import ServeConfig


def run(config: ServeConfig) -> None:
    """Serves the models of `config` until a signal ends the process; see `inference.serving`.

    Raises FileNotFoundError, OSError if the address is in use, ImportError if an extra is missing,
    and ValueError if a model cannot be served.
    """
    from bertjax.devices.compilation import start_command
    from bertjax.inference.onnx_session import check_package

    try:
        from bertjax.inference.serving.server import serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"The server needs {error.name}: pip install 'bertjax[serve]'."
        ) from error
    if config.backend == "onnx":
        check_package()
    serve(start_command(config))


parse, main = command_line.command_of(
    ServeConfig,
    run,
    "serve",
    "Serves embedders, rerankers, classifiers and taggers over HTTP, as text-embeddings-inference "
    "does.",
    "Use a smaller --max_batch_tokens or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
