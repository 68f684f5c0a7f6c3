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
# # Fine-tune your CSV
#
# A table with texts and labels becomes a classifier, in one call. This notebook makes such a table
# itself, so that it runs without a download, and says at the end what you change for your own. It
# takes about a minute on a laptop.
#
# ```bash
# pip install 'bertjax[viz]'       # viz: matplotlib, for the figures
# ```

# %%
import csv
import importlib.util
import json
import os
import random
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import bertjax
from bertjax.data.text.pydocs import module_paragraphs
from bertjax.data.text.sentences import split_sentences

# The small model that comes with bertjax. With a network: MODEL = "bert-base-uncased".
MODEL = os.environ.get("BERTJAX_NOTEBOOK_MODEL", "bertjax:tiny")
# Sentences per topic. Tests set a small number, from which little can be learnt.
PER_TOPIC = int(os.environ.get("BERTJAX_NOTEBOOK_ROWS", "400"))
WORK = Path(os.environ.get("BERTJAX_NOTEBOOK_DIR", "runs/notebooks")) / "finetune_your_csv"

# %% [markdown]
# ## 1. The table
#
# The task: which part of Python's standard library does a sentence of its documentation come from?
# The sentences are in the docstrings and comments of the Python that executes this notebook, and
# the labels come for free.

# %%
TOPICS = {
    "asyncio": ["asyncio"],
    "email": ["email"],
    "logging": ["logging"],
    "numbers": ["_pydecimal", "statistics", "fractions"],
    "web": ["http", "urllib"],
}


def sentences_of(modules, seen):
    """Returns the sentences of the docstrings and long comments of modules, each once."""
    sentences = []
    for name in modules:
        spec = importlib.util.find_spec(name)  # finds the files without importing the module
        folders = spec.submodule_search_locations
        files = sorted(Path(folders[0]).rglob("*.py")) if folders else [Path(spec.origin)]
        for file in files:
            source = file.read_text(encoding="utf-8", errors="replace")
            for paragraph in module_paragraphs(source, seen):
                sentences += split_sentences(paragraph)
    return sentences


rng, seen, rows = random.Random(0), set(), []
for topic, modules in TOPICS.items():
    sentences = sentences_of(modules, seen)
    rng.shuffle(sentences)
    rows += [(sentence, topic) for sentence in sentences[:PER_TOPIC]]
rng.shuffle(rows)
held_out = len(rows) // 5

WORK.mkdir(parents=True, exist_ok=True)
for name, part in (("dev.csv", rows[:held_out]), ("train.csv", rows[held_out:])):
    with open(WORK / name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *part])
    print(f"{name}: {len(part)} rows")
for text, label in rows[:5]:
    print(f"{label:8} | {text}")

# %% [markdown]
# Some of these cannot be told by anybody ("Return True if the object is empty."), so no model will
# reach 100 %.
#
# Two files: the model learns from `train.csv`; `dev.csv` is *held out* to measure it. Without a
# `dev` file, bertjax holds out a tenth of the rows itself.
#
# ## 2. Fine-tuning
#
# One call. The classes are collected from the column `label`. A new matrix on the vector of `[CLS]`
# computes one score per class, and *all* parameters of the model are trained, not only the new ones
# (BERT, sections 3.2 and 4.1).
#
# A model this small bears a learning rate that would destroy BERT-base: use the default of 5e-5 (or
# 2e-5 to 5e-5, as in the paper) there.

# %%
result = bertjax.finetune(
    task="classify",
    train=str(WORK / "train.csv"),
    dev=str(WORK / "dev.csv"),
    init=MODEL,
    workdir=str(WORK / "run"),
    num_epochs=4,
    optimizer={"learning_rate": 5e-4},
    log_every=20,
    overwrite=True,  # a run in this folder with other data is replaced
)
for name, score in result.scores.items():
    print(f"{name:20} {score:.3f}")

# %% [markdown]
# An accuracy means nothing without knowing what a *constant* answer would get: here a fifth, as the
# topics are equally frequent. With rare classes, look at the macro F1 (the mean over the classes)
# rather than at the accuracy.
#
# After each epoch the model was evaluated, and the best one is kept. How did it go?

# %%
train = [(r["step"], r["train/loss"]) for r in result.metrics if "train/loss" in r]
dev = [(r["step"], r["eval/loss"]) for r in result.metrics if "eval/loss" in r]
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.plot(*zip(*train, strict=True), color="0.6", label="training rows")
axis.plot(*zip(*dev, strict=True), "o-", label="held-out rows")
axis.axhline(np.log(len(TOPICS)), linestyle=":", color="C3", label="ln 5: guessing")
axis.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None))
axis.legend()
plt.show()

# %% [markdown]
# If the loss on held-out rows rises while that on training rows falls, the model begins to learn
# the rows by heart: *overfitting*. Fewer epochs, or more rows, help. `patience=2` stops by itself.
#
# ## 3. Which classes are confused?

# %%
with open(WORK / "run" / "predictions" / "dev.confusion.csv", encoding="utf-8") as file:
    header, *body = csv.reader(file)
names = header[1:]
confusion = np.array([[int(number) for number in line[1:]] for line in body])

figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
axis.imshow(confusion, cmap="Blues")
axis.set_xticks(range(len(names)), names, rotation=45)
axis.set_yticks(range(len(names)), names)
axis.set(xlabel="predicted", ylabel="label in the file")
for (i, j), number in np.ndenumerate(confusion):
    color = "white" if number > confusion.max() / 2 else "black"
    axis.text(j, i, number, ha="center", va="center", color=color)
plt.show()

# %% [markdown]
# And the rows in which it is most certain *and wrong* are worth reading. Often it is the label that
# is wrong, or the question has no answer.

# %%
lines = (WORK / "run" / "predictions" / "dev.jsonl").read_text(encoding="utf-8").splitlines()
predictions = [json.loads(line) for line in lines]
wrong = [p for p in predictions if p["label"] != p["input"]["label"]]
wrong.sort(key=lambda p: -max(p["probabilities"].values()))
for p in wrong[:5]:
    print(f"{max(p['probabilities'].values()):.0%} {p['label']}, not {p['input']['label']}:")
    print("   ", p["input"]["text"])

# %% [markdown]
# ## 4. Predictions for new texts

# %%
texts = [
    "Handlers write the records of a program to a file or to the console.",
    "The header of the message is decoded before its body.",
    "Waits until all tasks of the event loop are done.",
    "Rounds the result to the precision of the context.",
    "The server sends the status code of the response.",
]
for text, prediction in zip(texts, result.model.predict(texts), strict=True):
    probability = prediction["probabilities"][prediction["label"]]
    print(f"{prediction['label']:8} {probability:4.0%}  {text}")

# %% [markdown]
# ## 5. Where everything is

# %%
for path in sorted((WORK / "run").rglob("*")):
    inside = path.relative_to(WORK / "run")
    if path.is_file() and inside.parts[0] != "checkpoints":
        print(inside)

# %% [markdown]
# - `model/` is the model, a Hugging Face directory. `bertjax predict --model .../model --input
#   new.csv` predicts files, and `bertjax.load_pretrained(".../model")` loads it in Python.
# - `scores.json`, `predictions/`: what was shown above.
# - `metrics.jsonl` and TensorBoard's events: the losses.
# - `report.html`: the whole run as one page for the browser, rewritten at every evaluation.
#
# In `transformers`, without bertjax:
#
# ```python
# from transformers import pipeline
#
# classifier = pipeline("text-classification", "runs/notebooks/finetune_your_csv/run/model")
# classifier("The header of the message is decoded before its body.")
# ```
#
# ## What to change for your own table
#
# ```python
# result = bertjax.finetune(
#     task="classify",
#     train="my.csv",             # or a pandas DataFrame; TSV, JSON and Parquet work as well
#     text_column="review",       # found by itself if it is called text or sentence
#     label_column="stars",
#     init="bert-base-uncased",   # downloaded from the Hugging Face Hub
#     workdir="runs/reviews",
# )
# ```
#
# - **The model.** `bertjax:tiny` knows the documentation of software and nothing else.
#   `bert-base-uncased` is a hundred times as large, knows English, and is the right start for most
#   tasks. Fine-tuning it on some thousand short texts takes minutes on a GPU and an hour or so on a
#   laptop. A model with fewer layers (`distilbert-base-uncased`) takes half of that.
# - **Learning rate.** Remove `optimizer=...`: the default suits models of this size.
# - **Pairs of texts** (`pair_column`), **numbers** (`task="regress"`), **a label per word**
#   (`task="tag"`), **answers in a passage** (`task="qa"`) and **choices** (`task="choice"`) work in
#   the same way. `docs/data_formats.md` shows a file for each.
# - **Few rows.** With less than a few hundred rows, the result depends on luck: `seeds=5` trains
#   five times and tells mean and standard deviation.
