"""Measures `load_pretrained` on many texts: compiled programs, peak memory and time (Linux).

    python benchmarks/python_api.py --model DIR [--texts 10000]

A thousand texts of random lengths are passed one by one, and the compiled programs are counted.
Then all texts are passed at once to `embed`, in a process of its own, beside
`python -m bertjax.predict --embed` on the same texts; the two take turns.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from memory import peak_rss
from reporting import parser_of, report

ONE_BY_ONE = 1000
ALL_AT_ONCE = """
import sys
from pathlib import Path
import numpy as np
import bertjax
texts = Path(sys.argv[2]).read_text(encoding="utf-8").split("\\n")[:-1]
np.save(sys.argv[3], bertjax.load_pretrained(sys.argv[1], None).embed(texts))
"""


def make_texts(count: int) -> list[str]:
    """Returns texts of 1 to 300 words, most of them short, as in reviews."""
    rng = np.random.default_rng(0)
    words = "the film was good and long but nobody came to see it in the rain".split()
    lengths = np.minimum(rng.lognormal(3.0, 1.0, count).astype(int) + 1, 300)
    return [" ".join(rng.choice(words, n)) for n in lengths]


def programs(model: str, texts: list[str]) -> int:
    """Returns how many programs are compiled for texts that are passed one by one."""
    import jax

    import bertjax

    compiled: list[str] = []

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    bert = bertjax.load_pretrained(model, None)
    jax.monitoring.register_event_duration_secs_listener(count)
    for text in texts:
        bert([text])
    return len(compiled)


def main() -> None:
    """Reports the number of programs, and peaks and times of both ways."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    texts = make_texts(args.texts)
    start = time.perf_counter()
    count = programs(args.model, texts[:ONE_BY_ONE])
    seconds = time.perf_counter() - start
    figures: dict[str, Any] = {"model": Path(args.model).name, "texts": args.texts}
    figures["one_by_one"] = {"texts": ONE_BY_ONE, "programs": count, "seconds": round(seconds)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.txt"
        source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        outputs = [str(Path(folder) / f"{name}.npy") for name in ("python", "command")]
        commands = {
            "embed": [sys.executable, "-c", ALL_AT_ONCE, args.model, str(source), outputs[0]],
            "predict --embed": [
                *(sys.executable, "-m", "bertjax.predict", "--model", args.model),
                *("--embed", str(source), "--output", outputs[1]),
            ],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(args.repeat):
            for name, command in commands.items():
                found[name].append(peak_rss(command))
        difference = np.abs(np.load(outputs[0]) - np.load(outputs[1])).max()
    medians = {name: np.median(values, axis=0) for name, values in found.items()}
    for name, (seconds, peak) in medians.items():
        figures[name] = {"seconds": round(seconds, 1), "peak_mb": round(peak / 2**20)}
    ratios = medians["embed"] / medians["predict --embed"]
    figures["embed_to_predict"] = {"time": round(ratios[0], 2), "memory": round(ratios[1], 2)}
    report(figures | {"largest_difference": float(difference)}, args.output)


if __name__ == "__main__":
    main()
