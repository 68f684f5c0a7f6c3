"""The page of bertjax.visualize shows what the model computes, and works in a browser."""

import base64
import gzip
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from bertjax import load_pretrained, visualize
from bertjax.inference.attention_data import MAX_ATTENTION_BYTES, attention_data, packed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


def unpacked(attention, shape):
    values = gzip.decompress(base64.b64decode(attention["gzip"]))
    dtype = "<u2" if attention["levels"] > 255 else np.uint8
    return np.frombuffer(values, dtype).reshape(shape) / attention["levels"]


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
    place = data["tokens"].index("[MASK]")
    (filled,) = model.fill_mask(texts[0], 8)
    alone = attention_data(model, texts[0])["candidates"][str(place)]
    assert [token for token, _ in alone] == [token for token, _ in filled]
    # A token that is masked by hand has the words of the text with the mask.
    ids, types = model.tokenizer.encode_prompt(texts[0])
    words = texts[0].split()
    by_hand = model.fill_mask(" ".join(["[MASK]", *words[1:]]), 8)
    if len(model.tokenizer.encode_prompt(words[0])[0]) == 3:  # the first word is one token
        found = attention_data(model, texts[0])["candidates"]["1"]
        assert [token for token, _ in found] == [token for token, _ in by_hand[0]]


@pytest.mark.slow
def test_a_page_of_512_tokens_and_144_heads_is_small():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(12, 12, 512, 512)).astype(np.float32) * 2
    attention = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    data = packed(attention)
    assert len(data["gzip"]) <= MAX_ATTENTION_BYTES
    difference = np.abs(unpacked(data, attention.shape) - attention)
    assert difference.max() <= max(data["threshold"], 0.5 / data["levels"]) + 1e-6


@pytest.mark.parametrize("text", ["", "word " * 200])
def test_texts_that_cannot_be_shown_are_refused(model, text):
    with pytest.raises(ValueError, match="The text is empty|tokens, but the model reads at most"):
        attention_data(model, text)


# Uses the page as a reader does, and writes what it shows to the document's title.
HARNESS = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
const timer = setInterval(() => {
  if (document.body.dataset.ready !== "yes") return;
  clearInterval(timer);
  const seen = { errors, values: [] };
  const text = (id) => document.getElementById(id).textContent;
  const press = (key) =>
    document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  for (const [layer, head, from, to] of PAIRS)
    seen.values.push(probability(layer, head, from, to));
  const hover = (n) => document.querySelector(`text[data-side=from][data-n="${n}"]`)
    .dispatchEvent(new MouseEvent("mouseenter"));
  hover(2);
  seen.hovered = text("said");
  seen.lines = document.querySelectorAll("#lines line").length;
  press("Escape");
  seen.all = document.querySelectorAll("#lines line").length;
  press("ArrowRight");
  seen.head = document.getElementById("head").value;
  const select = document.getElementById("head");
  select.value = "0";
  select.dispatchEvent(new Event("change"));
  hover(2);
  seen.again = text("said");
  const canvas = document.getElementById("matrix"), box = canvas.getBoundingClientRect();
  const size = document.querySelectorAll("text[data-side=from]").length;
  const width = cell(), margin = margins(width), scale = box.width / (size * width + margin);
  canvas.dispatchEvent(new MouseEvent("mousemove", {
    clientX: box.left + scale * (margin + 1.5 * width),
    clientY: box.top + scale * (margin + 2.5 * width) }));
  seen.cell = text("said");
  document.querySelectorAll(".chip")[1].click();
  seen.words = [...document.querySelectorAll(".word b")].map((word) => word.textContent);
  document.getElementById("theme").click();
  seen.theme = document.documentElement.dataset.theme;
  seen.requests = performance.getEntriesByType("resource").length;
  document.title = JSON.stringify(seen);
}, 20);
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_works_in_a_browser(model, texts, one_layer, tmp_path):
    output = tmp_path / "attention.html"
    visualize.main([*texts, "--model", str(one_layer), "--output", str(output)])
    page = output.read_text(encoding="utf-8")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    attention = expected(model, texts)
    rng = np.random.default_rng(0)
    pairs = [[int(rng.integers(n)) for n in attention.shape] for _ in range(20)]
    tested = tmp_path / "tested.html"
    tested.write_text(page.replace("</body>", HARNESS.replace("PAIRS", str(pairs)) + "</body>"))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", tested.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stdout[:2000] + done.stderr[-2000:]
    seen = json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    assert not seen["errors"] and not seen["requests"]
    wanted = [attention[tuple(pair)] for pair in pairs]
    assert np.abs(np.array(seen["values"]) - wanted).max() < 1e-5
    data = attention_data(model, *texts)
    best = attention[0, 0, 2].max()
    assert seen["again"].startswith(f"{data['tokens'][2]} attends to ")
    assert f"{100 * best:.1f} %" in seen["again"]
    percent = f"{100 * attention[0, 0, 2, 1]:.1f} %"
    assert seen["cell"] == f"{data['tokens'][2]} → {data['tokens'][1]}: {percent}"
    assert 0 < seen["lines"] <= attention.shape[-1] < seen["all"]
    assert seen["head"] == "1" and seen["hovered"] and seen["theme"] in ("dark", "light")
    assert seen["words"] == [token for token, _ in data["candidates"]["1"]]
