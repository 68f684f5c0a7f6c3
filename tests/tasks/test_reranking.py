"""Rankings of the passages of a query, and scores as CrossEncoder computes them."""

import itertools
import json

import numpy as np
import pytest

import bertjax
from bertjax.inference.evaluation import from_file
from bertjax.tasks.classification import (
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    softmax,
)
from bertjax.tasks.dataset import Example
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.reranking import RerankOptions, RerankTask, make_reranking
from bertjax.tasks.sources.columns import Columns
from tests.inference.test_pretrained import with_config


def example(query, pair, label=None, *choices):
    return Example(id="", where="row 1", text=query, pair=pair, choices=choices, label=label)


def scored(score, *negatives):
    return {"score": score} | ({"negatives": list(negatives)} if negatives else {})


def test_metrics_are_means_over_queries_of_all_their_rows():
    task = RerankTask(name="rerank")
    pairs = [
        (example("a", "x", 1.0), scored(0.5)),
        (example("a", "y", 0.0), scored(0.9)),
        (example("b", "x", 1.0, "z"), scored(0.3, 0.1)),
        (example("b", "w", 0.0), scored(0.2)),
        (example("a", "y", None), scored(0.0)),
    ]
    second = 1 / np.log2(3)
    assert task.score(pairs) == pytest.approx(
        {"ndcg_at_10": (second + 1) / 2, "mrr_at_10": 0.75, "map": 0.75}
    )
    # The order of rows does not matter, nor that a passage is in several of them.
    repeated = [*pairs[::-1], (example("a", "x", 1.0, "y"), scored(0.5, 0.9))]
    assert task.score(repeated) == pytest.approx(task.score(pairs))
    single = task.score([pairs[0], (example("c", "z", 0.0), scored(0.1))])
    assert single["pearson"] == pytest.approx(1) and "map" not in single


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_query_is_tokenized_once_for_all_its_passages(tokenizer, sentences, monkeypatch, side):
    """Otherwise a long query with many passages would keep a server busy for a minute."""
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    query, passages = " ".join(sentences[:9]), tuple(sentences[9:14])
    task = RerankTask(name="rerank", prompt="de: ")
    usual = tokenizer._ids
    for first, *others in ((query, *passages), ("abc", query, *passages)):
        tokenized = []

        def counted(backend, texts, tokenized=tokenized):
            tokenized.extend(texts)
            return usual(backend, texts)

        with monkeypatch.context() as patch:
            patch.setattr(tokenizer, "_ids", counted)
            features = task.features_to_predict(example(first, None, None, *others), tokenizer, 40)
        assert tokenized == [f"de: {first}", *others]
        for feature, passage in zip(features, others, strict=True):
            ids, types = tokenizer.encode_prompt(f"de: {first}", passage, 40)
            assert feature.input_ids.tolist() == ids and feature.a_lengths == (types.count(0),)


def test_grades_are_gains_of_ndcg_and_any_grade_above_0_is_a_positive():
    task = RerankTask(name="rerank")
    grades = {"x": 1.0, "y": 3.0, "z": 0.0}
    scores = {"x": 0.9, "y": 0.1, "z": 0.5}
    pairs = [(example("q", text, grades[text]), scored(scores[text])) for text in grades]
    ranked = 1 + 3 / np.log2(4)
    ideal = 3 + 1 / np.log2(3)
    assert task.score(pairs) == pytest.approx(
        {"ndcg_at_10": ranked / ideal, "mrr_at_10": 1, "map": (1 + 2 / 3) / 2}
    )
    # Without rankings, scores from 0 to 1 have no errors in the unit of grades.
    singles = [(example(text, "p", grade), scored(grade / 3)) for text, grade in grades.items()]
    assert task.score(singles) == pytest.approx(
        {"pearson": 1, "spearman": 1, "pearson_spearman": 1}
    )


def test_labels_up_to_the_highest_of_the_train_split_are_learned_as_0_to_1(
    tmp_path, tokenizer, capsys
):
    grades = {"train": (0, 1, 3), "dev": (0, 1, 5)}
    files = {}
    for split, labels in grades.items():
        rows = [{"query": "ab", "passage": f"cd {x}", "label": x} for x in labels]
        files[split] = str(rows_file(tmp_path / f"{split}.jsonl", *rows))
    task = make_reranking(RerankOptions(**files), None)
    assert "labels: 0 to 3; the model learns scores of label / 3" in capsys.readouterr().out
    for split, expected in (("train", [0, 1 / 3, 1]), ("dev", [0, 1 / 3, 1])):
        found = []
        for row in task.data.examples(split):
            (feature,) = task.features(row, tokenizer, 16)
            found.append(feature.labels.item())
        assert found == pytest.approx(expected)


def test_candidates_are_ranked_and_the_first_of_equal_ones_is_first():
    task = RerankTask(name="rerank", activation="Identity")
    logits = [{"logits": np.array([x], np.float32)} for x in (1, 3, 3, -2)]
    ranking = task.predict(example("q", None, None, *"abcd"), [], logits)["ranking"]
    assert [(row["index"], row["text"], row["score"]) for row in ranking] == [
        (1, "b", 3), (2, "c", 3), (0, "a", 1), (3, "d", -2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "row", "message"),
    [
        ({}, example("q", "p", -1.0), "the label -1 is below 0"),
        ({}, example("q", "p", float("nan")), "the label nan is below 0"),
        ({"num_texts": 3}, example("q", "p", 1.0, "n"), "has 1 negatives, but the first row has 2"),
        ({}, example("q", " ", 1.0), "a text is empty"),
        ({}, example("q", None, 1.0), "there is only one text: give the passage"),
    ],
)
def test_an_example_that_cannot_be_learned_is_refused(tokenizer, changes, row, message):
    with pytest.raises(ValueError, match=f"^row 1.*{message}"):
        RerankTask(name="rerank", **changes).features(row, tokenizer, 16)


ROW = {"query": "ab bc", "candidates": ["cd de", "ab", "bc ef gh"]}


def rows_file(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        (("not_relevant", "relevant"), 1),
        (("0", "1"), 1),
        (("entailment", "not_entailment"), 0),
        (("No", "YES"), 1),
        (("negative", "Positive"), 1),
        (("irrelevant", "Is-Relevant"), 1),
    ],
)
def test_two_classes_rank_candidates_by_the_probability_of_the_one_that_matches(
    labels, chosen, tmp_path
):
    task = ClassificationTask(name="m", labels=labels, temperature=1.7)
    path = rows_file(tmp_path / "rows.jsonl", ROW)
    ranks, examples, note = from_file(task, path, Columns())
    logits = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    (row,) = examples
    found = ranks.predict(row, [], [{"logits": x} for x in logits])["ranking"]
    expected = softmax(logits / 1.7)[:, chosen]
    assert [x["index"] for x in found] == np.argsort(-expected).tolist()
    assert [x["score"] for x in found] == pytest.approx(sorted(expected, reverse=True))
    assert f"ranked by the probability of the class {labels[chosen]!r}" in note


@pytest.mark.parametrize(
    ("task", "predicts"),
    [
        (ClassificationTask(name="m", labels=("LABEL_0", "LABEL_1")), "LABEL_0, LABEL_1"),
        (ClassificationTask(name="m", labels=("no", "maybe", "yes")), "no, maybe, yes"),
        (ClassificationTask(name="m", labels=("true", "yes")), "true, yes"),
        (ClassificationTask(name="m", labels=("no", "yes"), pairs=False), "no, yes"),
        (MultiLabelTask(name="m", labels=("a", "relevant")), "a, relevant"),
        (RegressionTask(name="m"), "no class"),
        (SimilarityTask(name="m"), "no class"),
    ],
)
@pytest.mark.parametrize("column", ["candidates", "passages", "docs", "hits"])
def test_candidates_are_refused_by_models_that_cannot_rank_them(task, predicts, column, tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", {"query": "a", column: ["b", "c"]})
    message = rf"rows.jsonl has candidates to rank, but the model \(m\) predicts .*{predicts}"
    with pytest.raises(ValueError, match=message):
        from_file(task, path, Columns())
    if isinstance(task, ClassificationTask) and not task.pairs:
        _, examples, _ = from_file(task, path, Columns(text="query"))
        assert next(iter(examples)).text == "a"


def test_choice_columns_are_candidates_and_a_list_in_csv_is_no_candidate(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", {"query": "a", "mine": ["b", "c"]})
    task = ClassificationTask(name="m", labels=("no", "yes"))
    _, (row,), _ = from_file(task, path, Columns(choices=("mine",)))
    assert row.choices == ("b", "c")
    (tmp_path / "rows.csv").write_text('query,candidates\na,"[""b"", ""c""]"\n')
    _, rows, _ = from_file(RerankTask(name="m"), tmp_path / "rows.csv", Columns())
    with pytest.raises(ValueError, match="is a list that was written as a text"):
        list(rows)


def test_a_model_of_two_classes_reranks_as_its_probabilities_say(tmp_path, one_layer):
    folder = tmp_path / "m"
    bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=2).save(folder)
    with_config(folder, id2label={"0": "no", "1": "relevant"})
    model = bertjax.load_pretrained(folder)
    pairs = model.predict([(ROW["query"], text) for text in ROW["candidates"]])
    expected = [pair["probabilities"]["relevant"] for pair in pairs]
    found = model.rerank(ROW["query"], ROW["candidates"])
    assert [row["index"] for row in found] == np.argsort(-np.array(expected)).tolist()
    assert [row["score"] for row in found] == pytest.approx(sorted(expected, reverse=True))
    with_config(folder, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    with pytest.raises(ValueError, match=r"rerank\(\) of .* predicts the classes LABEL_0, LABEL_1"):
        bertjax.load_pretrained(folder).rerank(ROW["query"], ROW["candidates"])


# How versions of sentence-transformers write the activation of a CrossEncoder.
LAYOUTS = ("v2", "v4", "v6")
ACTIVATIONS = (None, "Sigmoid", "Identity", "Tanh")
COVERING = (("v2", None), ("v2", "Tanh"), ("v4", "Sigmoid"), ("v6", "Identity"))


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("layout", "activation"),
    [
        pytest.param(*x, marks=() if x in COVERING else pytest.mark.exhaustive)
        for x in itertools.product(LAYOUTS, ACTIVATIONS)
    ],
)
def test_foreign_cross_encoders_have_equal_scores(
    tmp_path, sentences, one_layer, layout, activation
):
    """Both ways: what we save of them scores as they do, too."""
    library, torch = (pytest.importorskip(x) for x in ("sentence_transformers", "torch"))
    chosen = activation and getattr(torch.nn, activation)()
    model = library.CrossEncoder(str(one_layer), num_labels=1, max_length=24, device="cpu")
    model = library.CrossEncoder(modules=[model[0]], activation_fn=chosen, device="cpu")
    torch.manual_seed(0)
    pairs = [*zip(sentences[:20], sentences[20:40], strict=True), (sentences[0] * 9, "ab " * 99)]
    classifier = model.model.classifier
    torch.nn.init.normal_(classifier.weight, std=0.7)
    logits = model.predict(pairs, activation_fn=torch.nn.Identity())
    with torch.no_grad():  # logits of both signs
        classifier.bias -= float(np.median(logits))
    folder = tmp_path / "theirs"
    if layout == "v6":
        model.save_pretrained(str(folder))
    else:  # files of transformers alone, with a field in config.json
        for part in (model.model, model.tokenizer):
            part.save_pretrained(str(folder))
        module = "linear" if activation == "Identity" else "activation"
        path = activation and f"torch.nn.modules.{module}.{activation}"
        fields = {
            "v2": {"sbert_ce_default_activation_function": path},
            "v4": {"sentence_transformers": {"activation_fn": path, "version": "4.1.0"}},
        }[layout]
        with_config(folder, **(fields if activation else {}))
    theirs = library.CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict(pairs)
    assert theirs.max_seq_length == 24 and np.ptp(expected) > 0.01
    ours = bertjax.load_pretrained(folder)
    found = [prediction["score"] for prediction in ours.predict(pairs)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    ours.save(tmp_path / "saved")
    again = library.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.predict(pairs), expected, atol=1e-5)
    ranked = [row["corpus_id"] for row in theirs.rank(pairs[0][0], list(sentences[:9]))]
    assert [row["index"] for row in ours.rerank(pairs[0][0], sentences[:9])] == ranked


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "abc de: "])
def test_the_default_prompt_of_a_cross_encoder_is_followed(one_layer, tmp_path, sentences, text):
    library = pytest.importorskip("sentence_transformers")
    prompts = {"plain": "", "chosen": text}
    model = library.CrossEncoder(
        str(one_layer), num_labels=1, device="cpu", prompts=prompts, default_prompt_name="chosen"
    )
    model.save_pretrained(str(tmp_path / "model"))
    pairs = list(zip(sentences[:8], sentences[8:16], strict=True))
    expected = library.CrossEncoder(str(tmp_path / "model"), device="cpu").predict(pairs)
    ours = bertjax.load_pretrained(tmp_path / "model")
    found = [prediction["score"] for prediction in ours.predict(pairs)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    ranked = ours.rerank(pairs[0][0], [passage for _, passage in pairs])
    scores = {row["index"]: row["score"] for row in ranked}
    np.testing.assert_allclose(scores[0], expected[0], atol=1e-5)


MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]


def test_a_default_prompt_stands_before_each_query(tmp_path, one_layer):
    folder, scores = tmp_path / "m", []
    bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=1).save(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    for prompts, query in (({"s": ""}, "a"), ({"s": "b "}, "a"), ({}, "b a")):
        content = {"prompts": prompts, "default_prompt_name": "s" if prompts else None}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(content))
        scores.append(bertjax.load_pretrained(folder).predict([(query, "c")])[0]["score"])
    assert scores[0] != scores[1] == scores[2]
    content |= {"prompts": {"s": "b "}, "default_prompt_name": "s"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))
    bertjax.load_pretrained(folder).save(tmp_path / "copy")
    copied = bertjax.load_pretrained(tmp_path / "copy").predict([("a", "c")])
    assert copied[0]["score"] == scores[1]


def test_a_default_prompt_of_classes_is_refused_by_name(tmp_path, one_layer):
    folder = tmp_path / "m"
    bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=2).save(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    content = {"prompts": {"s": "b "}, "default_prompt_name": "s"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="default_prompt_name .* puts 'b ' before each text"):
        bertjax.load_pretrained(folder).predict([("a", "c")])


def test_what_a_cross_encoder_has_and_we_do_not_follow_is_refused_by_name(
    tmp_path, written, one_layer_config, tokenizer
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    scores = module | {"type": "sentence_transformers.models.LogitScore", "path": "1_LogitScore"}
    for name, content, message in (
        ("modules.json", [module, scores], "models.LogitScore"),
        ("modules.json", [module | {"type": "other.models.Transformer"}], "other.models"),
        ("modules.json", [1, None], "1"),
        ("modules.json", [module], None),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length"),
        ("sentence_bert_config.json", [], None),
        ("config_sentence_transformers.json", {"default_prompt_name": "search"}, "default_prompt"),
    ):
        (folder / name).write_text(json.dumps(content))
        if message:
            with pytest.raises(ValueError, match=f"{message}.* in its files .* is not followed"):
                bertjax.load_pretrained(folder).predict([("a", "b")])
