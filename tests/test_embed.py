"""`bertjax.embed`: the files that it writes, its flags and its errors."""

import numpy as np
import pytest

from bertjax import embed, load_pretrained
from bertjax.embed import EmbedConfig
from tests.lines import json_lines


@pytest.fixture
def texts(tmp_path, sentences):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(sentences[:5]) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_each_text_gets_the_vector_of_the_python_api(
    encoder, texts, sentences, tmp_path, suffix, capsys
):
    output = tmp_path / "new" / f"v{suffix}"
    flags = ["--model", str(encoder), "--input", str(texts), "--output", str(output)]
    changes = ["--pooling", "cls", "--normalize", "--layers", "-1", "0", "--truncate_dim", "9"]
    assert embed.main([*flags, *changes, "--prompt", "abc "]) == 0
    assert f"5 vectors of dimension 9 written to {output}" in capsys.readouterr().out
    if suffix == ".npy":
        vectors = np.load(output)
    else:
        vectors = json_lines(output)
    expected = load_pretrained(encoder, "encoder").embed(
        sentences[:5],
        pooling="cls",
        normalize=True,
        layers=(-1, 0),
        truncate_dim=9,
        prompt="abc ",
    )
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_an_output_of_another_format_is_refused():
    with pytest.raises(ValueError, match="--output v.txt"):
        EmbedConfig(model="m", input="a.txt", output="v.txt")


def test_the_input_is_never_replaced(encoder, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "abc"}\n')
    config = EmbedConfig(model=str(encoder), input=str(source), output=str(source))
    with pytest.raises(ValueError, match="would replace the input"):
        embed.run(config)
    assert source.read_text() == '{"text": "abc"}\n'


@pytest.mark.parametrize("missing", ["--model", "--input", "--output"])
def test_model_input_and_output_are_required(missing, capsys):
    flags = {"--model": "m", "--input": "a.txt", "--output": "v.npy"}
    del flags[missing]
    with pytest.raises(SystemExit, match="2"):
        embed.parse([word for pair in flags.items() for word in pair])
    assert missing in capsys.readouterr().err
