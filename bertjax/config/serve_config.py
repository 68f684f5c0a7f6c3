"""Settings of the server of models, `bertjax.serve`."""

import dataclasses
from typing import Annotated, Literal

import tyro

from bertjax.base.checked import Checked, Count, Positive

Port = Annotated[int, "[0, 65535]"]
Backend = Literal["jax", "onnx"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig(Checked):
    """Config of `bertjax.serve`: the models, where they are served, and what is refused.

    Raises:
        ValueError: no model is given, a value is not of the type of its field, `onnx_file` is given
            for another backend, or a request of `max_texts` texts would never find room.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Models to serve, each as MODEL or NAME=MODEL: a directory, the workdir of a run, a hub name,
    or bertjax:tiny. Without a name, it is the last part of the path. A request that names no model
    gets the first one that can answer it."""
    host: str = "127.0.0.1"
    """Address to listen at; 127.0.0.1: only programs of this machine, 0.0.0.0: the network."""
    port: Port = 8080
    """Port to listen at; 0: a free one, which is printed."""
    api_key_file: str | None = None
    """File with one key per line, one of which each request has to name (Authorization: Bearer
    KEY); None: all requests are answered."""
    backend: Backend = "jax"
    """What computes: jax, or onnx, ONNX Runtime on the CPU, which needs the extra onnx and compiles
    nothing at the start."""
    onnx_file: str | None = None
    """File of ONNX Runtime in the folder onnx of each model, such as model_quantized.onnx for int8,
    as bertjax export writes it; None: models are exported in float32 at the start."""
    max_length: Count | None = None
    """Maximum number of tokens per text, or pair of texts; None: as the files of the model say."""
    auto_truncate: bool = False
    """Whether longer texts are truncated if the request does not say; off: they are refused."""
    max_body: Count = 4_000_000
    """Maximum number of bytes in the body of a request."""
    max_texts: Count = 1024
    """Maximum number of texts in a request."""
    max_waiting: Count = 4096
    """Maximum number of texts that wait for the model; further requests get the status 429."""
    max_batch_tokens: Count | None = None
    """Maximum number of tokens that the model computes at once, unless one text has more; None:
    2,048 on CPUs, 65,536 on accelerators."""
    read_timeout: Positive = 30.0
    """Seconds in which a request has to arrive, and in which a client has to take its answer."""
    stop_timeout: Count = 30
    """Seconds in which running requests may be finished after SIGTERM or Ctrl-C."""

    def __post_init__(self):
        super().__post_init__()
        if not self.models:
            raise ValueError("No model is given: name a directory, or NAME=DIRECTORY for several.")
        if self.onnx_file is not None and self.backend != "onnx":
            raise ValueError(f"--onnx_file {self.onnx_file} needs --backend onnx: give it, too.")
        if self.max_texts >= self.max_waiting:
            raise ValueError(
                f"--max_texts {self.max_texts} is not below --max_waiting {self.max_waiting}, so "
                "that a query with so many texts would never find room: lower it."
            )
