"""Checks that the model of quickstart.sh uses context: `python launch/check_quickstart.py OUT`.

Exits with 1 unless, on held-out text, the masked LM loss is at least 0.5 nats below the unigram
entropy, next-sentence accuracy is 3 sigma above the majority class, and the words that fill a mask
depend on the sentence around it.
"""

import json
import sys
from pathlib import Path

from bertjax.data.metadata import open_prepared
from bertjax.inference.fill_mask import fill_mask
from bertjax.weights import load_model

SENTENCES = (
    "if the file does not [MASK], an error is raised.",
    "returns the [MASK] of the array.",
    "this function is the same as [MASK] the method.",
)


def main(out: Path) -> int:
    """Prints each value with its threshold."""
    metrics = [json.loads(line) for line in (out / "run" / "metrics.jsonl").open()]
    last = [line for line in metrics if "eval/mlm_loss" in line][-1]
    entropy, loss = last["eval/unigram_entropy"], last["eval/mlm_loss"]
    checks = [
        (
            f"held-out MLM loss {loss:.3f} nats, unigram entropy {entropy:.3f}: "
            f"{entropy - loss:.3f} below (at least 0.5)",
            entropy - loss >= 0.5,
        )
    ]
    (held_out,) = open_prepared(out / "data").splits["eval"].lengths.values()
    majority = max(held_out.labels.values()) / held_out.sequences
    sigma = (majority * (1 - majority) / held_out.sequences) ** 0.5
    accuracy = last["eval/nsp_accuracy"]
    checks.append(
        (
            f"NSP accuracy {accuracy:.3f}, majority class {majority:.3f} of {held_out.sequences} "
            f"pairs: {(accuracy - majority) / sigma:.1f} sigma above (at least 3)",
            accuracy >= majority + 3 * sigma,
        )
    )
    model = load_model(out / "run")
    best = [[word for word, _ in fill_mask(model, text, top_k=5)[0]] for text in SENTENCES]
    for text, words in zip(SENTENCES, best, strict=True):
        print(f"  {text}  ->  {', '.join(words)}")
    shared = max(len(set(a) & set(b)) for i, a in enumerate(best) for b in best[:i])
    checks.append(
        (
            f"the best five words of two sentences share at most {shared} (fewer than 5), the best "
            f"words are {', '.join(words[0] for words in best)}",
            shared < 5 and len({words[0] for words in best}) == len(best),
        )
    )
    for text, passed in checks:
        print(f"{'ok  ' if passed else 'FAIL'} {text}")
    return 0 if all(passed for _, passed in checks) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
