"""The page of bertjax.visualize shows what the model computes, and works in a browser."""

import base64
import dataclasses
import gzip
import json
import time

import numpy as np
import pytest

from bertjax import load_pretrained, visualize
from bertjax.inference.attention import attention_data, packed
from bertjax.pages import fill
from tests.browser import needs_chromium, used


def unpacked(attention, shape):
    values = gzip.decompress(base64.b64decode(attention["gzip"]))
    dtype = "<u2" if attention["levels"] > 255 else np.uint8
    stored = np.frombuffer(values, dtype).reshape(shape)
    return (stored / attention["levels"]) ** attention["power"]


@pytest.fixture(scope="module")
def model(one_layer):
    return load_pretrained(str(one_layer))


@pytest.fixture(scope="module")
def texts(sentences):
    return f"{sentences[0]} [MASK]", f"</script><b> {sentences[1]}"


def expected(model, texts):
    ids, _, types = model.encode([texts])
    return model(input_ids=ids, token_type_ids=types, output_attentions=True)["attentions"][:, 0]


def test_the_data_are_those_of_the_model(model, texts):
    data = attention_data(model, *texts)
    attention = expected(model, texts)
    assert np.abs(unpacked(data["attention"], attention.shape) - attention).max() < 1e-5
    length = attention.shape[-1]
    assert len(data["tokens"]) == len(data["segments"]) == len(data["change"][0]) == length
    assert set(data["segments"]) == {0, 1} and data["special"][0]
    assert data["masks"] == [data["tokens"].index("[MASK]")]
    assert data["prediction"] is None and not data["shared_layers"]


def test_long_texts_are_stored_in_less_space(monkeypatch):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 8, 128, 128)).astype(np.float32) * 2
    attention = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert packed(attention)["levels"] == 65535
    monkeypatch.setattr("bertjax.inference.attention.MAX_ATTENTION_BYTES", 100_000)
    stored = packed(attention)
    assert len(stored["gzip"]) <= 100_000 and stored["levels"] == 255
    difference = np.abs(unpacked(stored, attention.shape) - attention)
    assert difference[attention > stored["threshold"]].max() <= 0.004
    assert difference.max() <= stored["threshold"] + 0.004 and stored["threshold"] < 0.05


@pytest.mark.parametrize("text", ["", "word " * 200])
def test_texts_that_cannot_be_shown_are_refused(model, text):
    with pytest.raises(ValueError, match="The text is empty|tokens, but the model reads at most"):
        attention_data(model, text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"output": "a.jpg"}, "the suffix '.jpg' is not supported. Use one of .html, .png"),
        ({"output": "attention"}, "Use one of .html, .png, .svg, .pdf"),
        ({"layer": 0}, "--layer 0: layers are numbered from 1"),
        ({"layer": 2}, "--layer 2: the model has 1 layers, 1 to 1"),
        ({"head": 5, "output": "a.png"}, "--head 5: the model has 4 heads, 1 to 4"),
        ({"plot": "lines"}, "--plot lines: without effect with --output"),
    ],
)
def test_flags_that_cannot_be_followed_are_refused(fields, message, one_layer):
    with pytest.raises(ValueError, match=message):
        visualize.run(visualize.VisualizeConfig(text="a", model=str(one_layer), **fields))


# Uses the page with pointer, keyboard and pickers.
SCRIPT = """
  seen.values = PAIRS.map((pair) => probability(...pair));
  const drawn = () => Number(document.getElementById("links").dataset.lines);
  const from = (n) => document.getElementById(`from-${n}`);
  seen.first = [document.getElementById("layer").value, document.getElementById("head").value];
  seen.all = drawn();
  pointer(from(2), "pointerover");
  seen.hovered = text("said");
  seen.lines = drawn();
  press("Escape");
  seen.escaped = drawn();
  press("ArrowRight");
  seen.head = document.getElementById("head").value;
  const select_ = document.getElementById("head");
  select_.value = "0";
  select_.dispatchEvent(new Event("change"));
  from(2).click();
  seen.tapped = text("said");
  press("ArrowDown", document.getElementById("from"));
  seen.next = document.getElementById("from").getAttribute("aria-activedescendant");
  pointer(document.getElementById("to-1"), "pointerover");
  seen.attended = text("said");
  document.getElementById("all").click();
  seen.cleared = text("said");
  const over = (id, at, row, column) => {
    const canvas = document.getElementById(id), box = canvas.getBoundingClientRect();
    const x = at.left + (column + 0.5) * at.cell[0], y = at.top + (row + 0.5) * at.cell[1];
    return [canvas, box.left + x, box.top + y];
  };
  let [canvas, x, y] = over("matrix", matrix.at, 2, 1);
  pointer(canvas, "pointermove", x, y);
  seen.cell = text("said");
  [canvas, x, y] = over("overview", overview.at, 0, 3);
  canvas.dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y }));
  seen.clicked = document.getElementById("head").value;
  [canvas, x, y] = over("drift", drift.at, 0, 4);
  pointer(canvas, "pointermove", x, y);
  seen.drift = text("drift-said");
  const words = (n) => [...document.querySelectorAll(`#words > :nth-child(${n}) b`)]
    .map((word) => word.firstChild.textContent);
  seen.masks = [...document.querySelectorAll("#words h3")].map((h) => h.textContent);
  document.querySelectorAll(".chip")[1].click();
  seen.words = words(1);
  seen.masked = words(2);
  press("ArrowRight", document.querySelectorAll(".chip")[1]);
  seen.focused = document.activeElement.dataset.n;
  seen.theme = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  seen.other = document.documentElement.dataset.theme;
  seen.width = document.documentElement.scrollWidth - innerWidth;
  const stops = [...document.querySelectorAll("button, select, [tabindex]")]
    .filter((element) => element.tabIndex >= 0);
  seen.stops = stops.map((stop) => stop.id || stop.className.split(" ")[0]);
  seen.unnamed = stops.filter(
    (stop) => !stop.textContent.trim() && !stop.getAttribute("aria-label")).length;
"""


@needs_chromium
def test_the_page_works_in_a_browser(model, texts, one_layer, tmp_path):
    output = tmp_path / "attention.html"
    visualize.main([*texts, "--model", str(one_layer), "--output", str(output), "--head", "2"])
    page = output.read_text(encoding="utf-8")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    attention = expected(model, texts)
    rng = np.random.default_rng(0)
    pairs = [[int(rng.integers(n)) for n in attention.shape] for _ in range(20)]
    seen = used(page, SCRIPT.replace("PAIRS", str(pairs)), tmp_path)
    assert not seen["errors"] and not seen["requests"]
    wanted = [attention[tuple(pair)] for pair in pairs]
    assert np.abs(np.array(seen["values"]) - wanted).max() < 1e-5
    data = attention_data(model, *texts)
    tokens, length = data["tokens"], attention.shape[-1]
    assert seen["first"] == ["0", "1"] and seen["head"] == "2" and seen["clicked"] == "3"
    assert 0 < seen["lines"] <= length < seen["all"] == seen["escaped"]
    for said, head in ((seen["hovered"], 1), (seen["tapped"], 0)):
        assert said.startswith(f"{tokens[2]} attends to ")
        assert f"{100 * attention[0, head, 2].max():.1f} %" in said
    assert seen["next"] == "from-3" and seen["cleared"] == "layer 1, head 1, all tokens"
    assert f"{100 * attention[0, 0, :, 1].max():.1f} %" in seen["attended"]
    percent = f"{100 * attention[0, 0, 2, 1]:.1f} %"
    assert seen["cell"] == f"{tokens[2]} → {tokens[1]}: {percent}"
    assert seen["drift"] == f"{tokens[4]}: layer 1 {data['change'][0][4]:.3f}"
    (mask,) = data["masks"]
    assert seen["masks"] == [f"[MASK] token {mask + 1}"] and seen["focused"] == "2"
    top = [token for token, _ in data["words"]["1"]["top"]]
    assert seen["words"] == (top if tokens[1] in top else [*top, tokens[1]])
    assert seen["masked"] == [token for token, _ in data["words"][str(mask)]["top"]]
    assert {seen["theme"], seen["other"]} == {"dark", "light"} and seen["width"] <= 0
    assert seen["stops"] == ["theme", "layer", "head", "all", "from", "to", "overview", "chip"]
    assert not seen["unnamed"]


REDRAWN = """
  for (let n = 0; n < TIMES; n++) {
    press("ArrowRight");
    select(n, null);
    document.getElementById("lines").scrollTop = 100 * n;
    select(null, null);
  }
  await new Promise((done) => { const wait = setInterval(() => {
    if (document.body.dataset.overview) { clearInterval(wait); done(); } }, 20); });
  seen.note = text("note");
  seen.head = document.getElementById("head").value;
"""


@needs_chromium
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_page_of_512_tokens_and_144_heads_is_small_and_fast(
    tiny_config, tokenizer, sentences, written, tmp_path
):
    config = dataclasses.replace(
        tiny_config,
        vocab_size=tokenizer.vocab_size,
        hidden_size=48,
        num_attention_heads=12,
        num_hidden_layers=12,
        max_position_embeddings=512,
    )
    folder = written(tmp_path / "model", config, "masked_lm", tokenizer)
    ids = tokenizer.encode([" ".join(sentences)])[0][:508]
    text = f"{tokenizer.decode(ids)} [MASK]"
    output = tmp_path / "attention.html"
    assert visualize.main([text, "--model", str(folder), "--output", str(output)]) == 0
    assert 4_000 < output.stat().st_size < 5_000_000
    page = output.read_text(encoding="utf-8")
    seconds = {}
    for times in (0, 30):
        begin = time.monotonic()
        seen = used(page, REDRAWN.replace("TIMES", str(times)), tmp_path)
        seconds[times] = time.monotonic() - begin
        assert not seen["errors"] and not seen["requests"]
        assert "To keep the page small" in seen["note"] and seen["head"] == str(times % 12)
    # The clock of the page is a virtual one. A redraw takes some hundredths of a second.
    assert seconds[30] - seconds[0] < 30 * 0.25
    assert seconds[0] < 20  # with the start of the browser


# The tokens of texts in several scripts, as of WordPiece and byte-level BPE; and whether they run
# from right to left.
SCRIPTS = {
    "Arabic": (["[CLS]", "(", "كتاب", "[MASK]", "##ية", "2026", "[SEP]"], True),
    "Hebrew": (["<s>", "␣שלום", "␣עולם", "<mask>", "␣טוב", "␣BERT", "</s>"], True),
    "Syriac": (["[CLS]", "ܫܠܡܐ", "##ܐ", "[MASK]", "ܥܠܡܐ", ".", "[SEP]"], True),
    "Thaana": (["[CLS]", "ދިވެހި", "##ން", "[MASK]", "ބަސް", ".", "[SEP]"], True),
    "Adlam": (["[CLS]", "𞤀𞤣𞤤𞤢𞤥", "##𞤢", "[MASK]", "𞤺𞤵𞤤", ".", "[SEP]"], True),
    "English": (["[CLS]", "the", "##s", "[MASK]", "word", ".", "[SEP]"], False),
    "Hindi": (["[CLS]", "हिन्दी", "##य", "[MASK]", "भाषा", "।", "[SEP]"], False),
    "Chinese": (["[CLS]", "我", "爱", "[MASK]", "京", "。", "[SEP]"], False),
}

DIRECTIONS = """
  seen.scripts = {};
  const edge = (element) => element.getBoundingClientRect().right;
  for (const [name, tokens] of Object.entries(SCRIPTS)) {
    data.tokens = tokens;
    const top = [[tokens[4], 0.5]];
    data.words = { 2: { top, actual: [tokens[2], 3] }, 4: { top } };
    startWords();
    $("from").replaceChildren();
    startTokens("from");
    draw();
    const chips = [...document.querySelectorAll(".chip")], range = document.createRange();
    chips[2].click();
    chips[2].focus();
    press("ArrowLeft", chips[2]);
    range.selectNodeContents($("from-4"));
    seen.scripts[name] = {
      left: chips.map((chip) => chip.getBoundingClientRect().left),
      focused: document.activeElement.dataset.n,
      directions: [chips[4], document.querySelector(".word b")]
        .map((element) => getComputedStyle(element).direction),
      gap: edge($("from")) - edge(range),
      heading: document.querySelector("#words h3").firstChild.textContent,
    };
  }
"""


@needs_chromium
def test_tokens_of_texts_from_right_to_left_run_from_right_to_left(model, tmp_path):
    data = attention_data(model, "a") | {"first": {"layer": 0, "head": 0}, "model": "m"}
    data["masks"], data["special"] = [3], [n in (0, 6) for n in range(7)]
    data |= {"segments": [0] * 7, "tokens": ["."] * 7, "words": {}}
    data["change"] = [[0.1] * 7 for _ in data["change"]]
    probabilities = np.full((1, data["heads"], 7, 7), 1 / 7, np.float32)
    page = fill("attention.html", data | {"attention": packed(probabilities)})
    rows = {name: tokens for name, (tokens, _) in SCRIPTS.items()}
    seen = used(page, DIRECTIONS.replace("SCRIPTS", json.dumps(rows)), tmp_path)
    assert not seen["errors"]
    for name, (tokens, is_backward) in SCRIPTS.items():
        found = seen["scripts"][name]
        assert found["left"] == sorted(found["left"], reverse=is_backward), name
        assert found["focused"] == "4", name  # the other one of two, in either direction
        assert found["directions"] == ["rtl" if is_backward else "ltr"] * 2, name
        assert 0 <= found["gap"] < 12, name  # attending tokens stand beside the lines
        token = tokens[2] if not is_backward else f"\u2068{tokens[2]}\u2069"
        assert found["heading"] == f"“{token}” ", name


# Looks at the words, their numbers and the other outputs of a page of attributions.
OF_ATTRIBUTIONS = """
  const marks = () => [...document.querySelectorAll(".why .w")];
  seen.words = marks().map((mark) => mark.textContent);
  seen.values = marks().map((mark) => Number(mark.dataset.value));
  seen.titles = marks().map((mark) => mark.title);
  seen.colours = marks().map((mark) => getComputedStyle(mark).backgroundColor);
  seen.texts = [...document.querySelectorAll(".why")].map((p) => p.textContent);
  seen.said = text("said");
  const first = document.querySelector("tbody tr");
  seen.row = [...first.children].map((cell) => cell.textContent);
  seen.options = [...document.getElementById("target").options].map((o) => o.textContent);
  const picker = document.getElementById("target");
  picker.value = String(picker.options.length - 1);
  picker.dispatchEvent(new Event("change"));
  seen.other = marks().map((mark) => Number(mark.dataset.value));
  seen.about = marks().findIndex((mark) => mark.classList.contains("about"));
  seen.width = document.documentElement.scrollWidth - innerWidth;
"""


def classifier(folder, tiny_config, tokenizer, written, head):
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    return written(folder / head, config, head, tokenizer)


@needs_chromium
@pytest.mark.parametrize("head", ["sequence_classification", "token_classification"])
def test_a_page_of_attributions_works_in_a_browser(
    head, tiny_config, tokenizer, written, texts, tmp_path, capsys
):
    folder = classifier(tmp_path, tiny_config, tokenizer, written, head)
    output = tmp_path / "attribution.html"
    of_words = head == "token_classification"
    pair = [] if of_words else [texts[1]]
    flags = ["--attribute", "--model", str(folder), "--output", str(output), "--baseline", "mask"]
    assert visualize.main([texts[0], *pair, *flags]) == 0
    printed = capsys.readouterr().out
    page = output.read_text(encoding="utf-8")
    assert "://" not in page
    seen = used(page, OF_ATTRIBUTIONS, tmp_path)
    assert not seen["errors"] and not seen["requests"] and seen["width"] <= 0
    given = texts[0] if of_words else texts
    shown = load_pretrained(folder).attribute([given], baseline="mask")[0]
    first, last = shown[0], shown[-1]
    assert seen["options"] == [one.target for one in shown]
    assert "".join(seen["texts"]) == "".join(first.words)
    assert seen["words"] == [word.strip() for word in first.words]
    for name, one in (("values", first), ("other", last)):
        np.testing.assert_allclose(np.array(seen[name], float), one.values, rtol=1e-6)
    strongest = int(np.nanargmax(np.abs(np.array(seen["values"], float))))
    assert "0.6)" in seen["colours"][strongest]
    assert seen["row"] == [seen["words"][strongest], seen["titles"][strongest]]
    assert seen["titles"][strongest][0] == ("−" if seen["values"][strongest] < 0 else "+")
    assert "completeness error" in seen["said"] and "completeness error" in printed
    assert f"{first.target}: output {first.output:.4g}" in printed
    assert seen["about"] == (last.word if of_words else -1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attribute": True, "layer": 1}, "--layer"),
        ({"attribute": True, "output": "a.png"}, "a.png"),
        ({"baseline": "mask"}, "--baseline"),
        ({"steps": 8}, "--steps"),
        ({"attribute": True}, "head encoder"),
    ],
)
def test_attributions_that_cannot_be_shown_are_refused(fields, message, one_layer):
    with pytest.raises(ValueError, match=message):
        visualize.run(visualize.VisualizeConfig(text="a", model=str(one_layer), **fields))
