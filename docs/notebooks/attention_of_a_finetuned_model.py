# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention of a fine-tuned model
#
# What does fine-tuning change inside a model, and do pictures of attention show what an answer
# depends on? To find out, this notebook makes a task of which we *know* what the answer depends on,
# fine-tunes the small model on it, and compares its attention before and after. It takes about a
# minute on a laptop.
#
# ```bash
# pip install 'bertjax[viz]'       # viz: matplotlib, for the figures
# ```
#
# "How BERT works" explains what attention is.

# %%
import html
import importlib.util
import os
import random
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import bertjax
from bertjax import visualize
from bertjax.data.text.pydocs import module_paragraphs
from bertjax.data.text.sentences import split_sentences

MODEL = os.environ.get("BERTJAX_NOTEBOOK_MODEL", "bertjax:tiny")
# Sentences per class. Tests set a small number, from which little can be learnt.
PER_CLASS = int(os.environ.get("BERTJAX_NOTEBOOK_ROWS", "400"))
WORK = Path(os.environ.get("BERTJAX_NOTEBOOK_DIR", "runs/notebooks")) / "attention"
WORK.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## 1. A task with a known reason
#
# Is a sentence of Python's documentation about an error? The label is made by a rule: *yes* if the
# sentence contains a word like "error", "exception", "raises" or "fails". So the label depends on
# these words and on nothing else. The model is not told the rule.

# %%
DECIDING = re.compile(r"\b(errors?|exceptions?|raise[sd]?|raising|fail(s|ed|ure|ures)?)\b", re.I)
MODULES = (
    "asyncio concurrent ctypes email http importlib json logging multiprocessing sqlite3 "
    "unittest urllib xml xmlrpc"
).split()


def sentences_of(module, seen):
    """Returns the sentences of the docstrings and long comments of a package, each once."""
    folder = importlib.util.find_spec(module).submodule_search_locations[0]
    return [
        sentence
        for file in sorted(Path(folder).rglob("*.py"))
        for paragraph in module_paragraphs(file.read_text("utf-8", "replace"), seen)
        for sentence in split_sentences(paragraph)
        if sentence.isascii() and len(sentence) < 120
    ]


seen, rng = set(), random.Random(0)
sentences = [sentence for module in MODULES for sentence in sentences_of(module, seen)]
rng.shuffle(sentences)
about_errors = [s for s in sentences if DECIDING.search(s)][:PER_CLASS]
others = [s for s in sentences if not DECIDING.search(s)][: len(about_errors)]
rows = [{"text": s, "label": "error"} for s in about_errors]
rows += [{"text": s, "label": "other"} for s in others]
rng.shuffle(rows)
dev, train = rows[: len(rows) // 5], rows[len(rows) // 5 :]
print(f"{len(train)} rows for training, {len(dev)} held out")
for row in rows[:4]:
    print(f"{row['label']:6} | {row['text']}")

# %% [markdown]
# ## 2. Before and after

# %%
result = bertjax.finetune(
    task="classify",
    train=train,
    dev=dev,
    init=MODEL,
    workdir=str(WORK / "run"),
    num_epochs=8,
    optimizer={"learning_rate": 5e-4},
    log_every=20,
    overwrite=True,
)
print(f"accuracy on held-out rows: {result.scores['dev/accuracy']:.1%} (guessing: 50 %)")
before, after = bertjax.load_pretrained(MODEL), result.model

# %% [markdown]
# The class is computed from the vector of `[CLS]`. So the first question is what `[CLS]` attends
# to. We measure, in each layer and head, how much of its attention goes to the deciding words, as a
# mean over held-out sentences about errors. To compare: if it attended to all tokens equally, they
# would get their share of the tokens.

# %%
tokenizer = after.tokenizer


def tokens_of(text):
    ids, _ = tokenizer.encode_prompt(text)
    return [tokenizer.tokens[i] for i in ids]


def deciding(text):
    """Returns bool [tokens]: whether a token is a piece of a deciding word."""
    is_deciding = [False]  # [CLS]
    for word in re.findall(r"\w+|[^\w\s]", text):
        (pieces,) = tokenizer.encode([word])
        is_deciding += [bool(DECIDING.fullmatch(word))] * len(pieces)
    return np.array([*is_deciding, False])  # [SEP]


def attention_of(model, text):
    """Returns the attention of one text, [layers, heads, tokens, tokens]."""
    return model([text], output_attentions=True)["attentions"][:, 0]


def share_of_deciding(model, texts):
    """Returns the mean attention of [CLS] to deciding words, [layers, heads]."""
    return np.mean([attention_of(model, t)[:, :, 0, deciding(t)].sum(-1) for t in texts], axis=0)


texts = [
    row["text"]
    for row in dev
    if row["label"] == "error" and len(deciding(row["text"])) == len(tokens_of(row["text"]))
][:40]
uniform = np.mean([deciding(text).mean() for text in texts])
shares = {"before": share_of_deciding(before, texts), "after": share_of_deciding(after, texts)}
print(f"deciding words are {uniform:.1%} of the tokens")
for name, share in shares.items():
    print(f"{name:7} mean over all heads {share.mean():.1%}, largest of a head {share.max():.1%}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
top = max(share.max() for share in shares.values())
for axis, (name, share) in zip(axes, shares.items(), strict=True):
    image = axis.imshow(share, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for (layer, head), number in np.ndenumerate(share):
        color = "white" if number > top / 2 else "black"
        axis.text(head, layer, f"{number:.0%}", ha="center", va="center", color=color)
    axis.set(title=f"{name} fine-tuning", xlabel="head")
    axis.set_xticks(range(share.shape[1]), range(1, share.shape[1] + 1))
    axis.set_yticks(range(share.shape[0]), range(1, share.shape[0] + 1))
axes[0].set_ylabel("layer")
figure.colorbar(image, ax=axes, label="attention of [CLS] to deciding words")
plt.show()

# %% [markdown]
# ## 3. One sentence
#
# The attention of `[CLS]` in the head that changed most:

# %%
layer, head = np.unravel_index(np.argmax(shares["after"] - shares["before"]), shares["after"].shape)
text = "The function raises an exception if the file is closed."
tokens = tokens_of(text)
places = np.arange(len(tokens))
figure, axis = plt.subplots(figsize=(9, 3), layout="constrained")
for shift, (name, model) in ((-0.2, ("before", before)), (0.2, ("after", after))):
    axis.bar(places + shift, attention_of(model, text)[layer, head, 0], 0.4, label=name)
axis.set_xticks(places, tokens, rotation=60)
axis.set(ylabel="attention of [CLS]", title=f"layer {layer + 1}, head {head + 1}")
axis.legend()
plt.show()

# %% [markdown]
# And all tokens of the sentence, not only `[CLS]`:

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes, (("before", before), ("after", after)), strict=True):
    image = axis.imshow(attention_of(model, text)[layer, head], cmap="Blues", vmin=0, vmax=1)
    axis.set(title=f"{name} fine-tuning", xlabel="attends to")
    axis.set_xticks(places, tokens, rotation=90)
    axis.set_yticks(places, tokens)
figure.colorbar(image, ax=axes, shrink=0.7)
plt.show()

# %% [markdown]
# ## 4. What does the answer depend on?
#
# Attention is a step of the computation, not a reason. To find the reason, change the input:
# replace one token at a time by `[MASK]`, and see how much the probability of the answer falls
# (*occlusion*).


# %%
def probability_of_error(rows_of_ids):
    logits = after(input_ids=np.array(rows_of_ids))["logits"].astype(np.float64)
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return (exponentials / exponentials.sum(-1, keepdims=True))[:, after.labels.index("error")]


def occlusion(text):
    """Returns the fall of the probability of "error" if each token is masked, [tokens]."""
    ids, _ = tokenizer.encode_prompt(text)
    masked = [list(ids) for _ in ids]
    for place, row in enumerate(masked):
        if 0 < place < len(ids) - 1:  # [CLS] and [SEP] stay
            row[place] = tokenizer.mask_token_id
    whole, *each = probability_of_error([ids, *masked])
    return whole - np.array(each)


falls = occlusion(text)
received = attention_of(after, text)[:, :, 0].mean((0, 1))  # by [CLS], mean of all heads
figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
colors = ["C3" if is_deciding else "C0" for is_deciding in deciding(text)]
axes[0].bar(places, received, color=colors)
axes[0].set(ylabel="attention of [CLS]\n(mean of all heads)")
axes[1].bar(places, falls, color=colors)
axes[1].set(ylabel="fall of P(error)\nif the token is masked")
axes[1].set_xticks(places, tokens, rotation=60)
axes[0].set_title("red: the words that decide")
plt.show()

# %% [markdown]
# How often does each method point to a deciding word, among the held-out sentences? For occlusion,
# we take the token whose masking costs most; for attention, the token (other than `[CLS]` and
# `[SEP]`) that `[CLS]` attends to most, in the mean of all heads. As a sentence may have two
# deciding words, masking one of them may change nothing: occlusion has blind spots, too.

# %%
hits = {"attention before": [], "attention after": [], "occlusion": []}
for sentence in texts:
    is_deciding = deciding(sentence)
    for name, model in (("attention before", before), ("attention after", after)):
        weights = attention_of(model, sentence)[:, :, 0].mean((0, 1))
        hits[name].append(is_deciding[1 + np.argmax(weights[1:-1])])
    hits["occlusion"].append(is_deciding[np.argmax(occlusion(sentence))])
for name, hit in hits.items():
    print(f"{name:17} points to a deciding word in {np.mean(hit):.0%} of {len(hit)} sentences")
print(f"{'by chance':17} {uniform:.0%}")

# %% [markdown]
# ## 5. What to make of it
#
# Fine-tuning has moved the attention of `[CLS]` towards the words that decide, and after it,
# attention and occlusion point to the same words far more often than before. Do not conclude that
# attention explains answers:
#
# - This task is the simplest case. The answer is in single words, and the shortest way to it is
#   that `[CLS]` fetches the vectors of these words. If an answer depends on *combinations* of
#   words, such as "not" and "bad", no single weight shows it.
# - We knew what to look for. Somebody who does not know the rule sees twelve maps, some of which
#   point to the deciding words and some of which do not, and can find a map for almost any story.
# - From the second layer on, the vector at a token is a mixture of the whole text: "attends to the
#   period" may mean "takes what was collected at the period".
# - A large weight on a short value vector is next to nothing, and the residual connection, the
#   feed-forward networks and the classifier are not in the picture at all.
#
# So use attention to see what a model *could* have used, and changes of the input to see what it
# *did* use. (Jain and Wallace 2019, *Attention is not Explanation*; Wiegreffe and Pinter 2019,
# *Attention is not not Explanation*; Kobayashi et al. 2020, *Attention is Not Only a Weight*.)
#
# ## 6. An interactive page
#
# `bertjax visualize` writes all layers and heads of a model on a text to one HTML file. It needs no
# network, and you can send it to anybody. Hover over the tokens.

# %%
page = WORK / "attention.html"
visualize.run(
    visualize.VisualizeConfig(text=text, model=str(WORK / "run"), output=str(page)),
)
try:
    from IPython.display import HTML, display
except ImportError:
    print(f"open {page} in a browser")
else:
    source = html.escape(page.read_text(encoding="utf-8"))
    frame = f'<iframe srcdoc="{source}" width="100%" height="800" style="border: 0"></iframe>'
    display(HTML(f"<div>{frame}</div>"))

# %% [markdown]
# The same on the command line, also for models of the Hub:
#
# ```bash
# bertjax visualize --model runs/notebooks/attention/run "The function raises an exception." \
#   --output attention.html
# ```
