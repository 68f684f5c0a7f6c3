"""Every endpoint answers what `bertjax.load_pretrained` computes, or refuses in one line."""

import base64
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bertjax
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.embedder import LINE_CHARACTERS
from bertjax.inference.serving import models as served
from bertjax.inference.serving.batching import work
from bertjax.inference.serving.models import load_served
from tests.cases import others_weekly
from tests.served_models import PROMPTS, few_shapes, write_models, write_tagger

for package in ("uvicorn", "orjson", "pydantic", "prometheus_client"):
    pytest.importorskip(package)
TestClient = pytest.importorskip("starlette.testclient").TestClient
ValidationError = pytest.importorskip("pydantic").ValidationError

from bertjax.inference.serving.application import Service, make_app  # noqa: E402
from bertjax.inference.serving.endpoints import ENDPOINTS, Models  # noqa: E402

TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _few_shapes():
    with few_shapes():
        yield


@pytest.fixture(scope="module")
def directories(tmp_path_factory, one_layer):
    return write_models(tmp_path_factory.mktemp("served"), one_layer)


@pytest.fixture(scope="module")
def loaded(directories):
    return {name: load_served(name, str(path), None) for name, path in directories.items()}


@pytest.fixture(scope="module")
def ours(directories):
    """{name: the model by `load_pretrained`}"""
    return {name: bertjax.load_pretrained(path) for name, path in directories.items()}


@contextlib.contextmanager
def client_of(*models, starts=True, **settings):
    """A client of a server of models; unless it `starts`, nothing is computed."""
    service = Service(ServeConfig(models=("m",), **settings))
    service.models = Models(models)
    thread = threading.Thread(target=work, args=(service.queue, service.metrics.batch))
    if starts:
        thread.start()
    try:
        with TestClient(make_app(service), raise_server_exceptions=False) as client:
            client.service = service
            yield client
    finally:
        service.queue.close()
        if starts:
            thread.join(30)


@pytest.fixture(scope="module")
def client(loaded):
    with client_of(*loaded.values()) as client:
        yield client


def answer_of(client, path, status=200, **fields):
    response = client.post(path, json=fields)
    assert response.status_code == status, response.text
    return response.json()


def test_embed_is_that_of_python(client, ours, sentences):
    texts = [*sentences[:9], "", sentences[3]]
    found = answer_of(client, "/embed", inputs=texts)
    expected = ours["dense"].embed(texts, normalize=True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    raw = answer_of(client, "/embed", inputs=texts[0], normalize=False, dimensions=7)
    np.testing.assert_allclose(raw, ours["dense"].embed(texts[:1])[:, :7], atol=TOLERANCE)
    cut = answer_of(client, "/embed", inputs=texts, dimensions=7)
    expected = ours["dense"].embed(texts, normalize=True, truncate_dim=7)
    np.testing.assert_allclose(cut, expected, atol=TOLERANCE)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_are_asked_for_by_name(client, ours, sentences, prompt):
    found = answer_of(client, "/embed", inputs=sentences[:3], prompt_name=prompt)
    expected = ours["dense"].embed(sentences[:3], prompt=prompt, normalize=True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    tokens = answer_of(client, "/tokenize", inputs="abc", prompt_name=prompt, model="dense")
    ids = ours["dense"].tokenizer.encode_prompt(PROMPTS[prompt] + "abc")[0]
    assert [token["id"] for token in tokens[0]] == ids


def test_openai_embeddings_are_those_of_embed(client, sentences):
    texts = sentences[:4]
    expected = answer_of(client, "/embed", inputs=texts)
    answer = answer_of(client, "/v1/embeddings", input=texts, model="dense")
    assert answer["object"] == "list" and answer["model"] == "dense"
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    np.testing.assert_array_equal([entry["embedding"] for entry in answer["data"]], expected)
    tokens = sum(map(len, answer_of(client, "/tokenize", inputs=texts, model="dense")))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer_of(client, "/v1/embeddings", input=texts, encoding_format=None) == answer
    coded = answer_of(
        client, "/v1/embeddings", input=texts, model="dense", encoding_format="base64"
    )
    for entry, vector in zip(coded["data"], expected, strict=True):
        decoded = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        np.testing.assert_allclose(decoded, vector, atol=1e-6)


def test_similarity_is_the_cosine(client, sentences):
    inputs = {"source_sentence": sentences[0], "sentences": sentences[:4]}
    vectors = np.array(answer_of(client, "/embed", inputs=sentences[:4]))
    for path in ("/similarity", "/models/dense"):
        found = answer_of(client, path, inputs=inputs)
        np.testing.assert_allclose(found, vectors @ vectors[0], atol=TOLERANCE)
    fields = {"prompt_name": "query", "truncate": True}
    inputs["sentences"] = [" ".join(sentences[:20])]
    found = answer_of(client, "/similarity", inputs=inputs, parameters=fields)
    texts = [sentences[0], *inputs["sentences"]]
    one, other = answer_of(client, "/embed", inputs=texts, **fields)
    np.testing.assert_allclose(found, [np.dot(one, other)], atol=TOLERANCE)
    fields["truncation_direction"] = "left"
    error = answer_of(client, "/similarity", 422, inputs=inputs, parameters=fields)
    assert "truncates texts at their right" in error["error"]


def test_a_text_about_sentences_is_no_question_of_similarity(client):
    expected = answer_of(client, "/embed", inputs="source_sentence")
    assert answer_of(client, "/models/dense", inputs="source_sentence") == expected


@pytest.mark.parametrize("prompt", [None, "query", "document"])
def test_sparse_embeddings_are_those_of_python(client, ours, sentences, prompt):
    texts = sentences[:5]
    found = answer_of(client, "/embed_sparse", inputs=texts, prompt_name=prompt)
    expected = ours["sparse"].embed(texts, prompt=prompt).toarray()
    dense = np.zeros_like(expected)
    for row, pairs in enumerate(found):
        for pair in pairs:
            dense[row, pair["index"]] = pair["value"]
    np.testing.assert_allclose(dense, expected, atol=TOLERANCE)
    assert np.count_nonzero(dense)


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_of_tokens_are_those_of_python(client, ours, sentences, role):
    found = answer_of(client, "/embed_all", inputs=sentences[:5], prompt_name=role)
    expected = ours["tokens"].token_vectors(sentences[:5], role=role)
    for vectors, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(vectors, wanted, atol=TOLERANCE)


def test_passages_are_ranked_as_in_python(client, ours, sentences):
    query, *texts = sentences[:9]
    found = answer_of(client, "/rerank", query=query, texts=texts, return_text=True, model="rank")
    expected = ours["rank"].rerank(query, texts)
    assert [rank["index"] for rank in found] == [rank["index"] for rank in expected]
    assert [rank["text"] for rank in found] == [rank["text"] for rank in expected]
    scores = [rank["score"] for rank in found]
    np.testing.assert_allclose(scores, [rank["score"] for rank in expected], atol=TOLERANCE)
    raw = answer_of(client, "/rerank", query=query, texts=texts, raw_scores=True, model="rank")
    sigmoid = 1 / (1 + np.exp([-rank["score"] for rank in raw]))
    np.testing.assert_allclose(sigmoid, scores, atol=TOLERANCE)
    assert "text" not in raw[0]


def test_late_interaction_ranks_by_maxsim(client, ours, sentences):
    query, *texts = sentences[:6]
    found = answer_of(client, "/rerank", query=query, texts=texts, model="tokens")
    of_query = ours["tokens"].token_vectors([query], role="query")[0]
    for rank in found:
        (passage,) = ours["tokens"].token_vectors([texts[rank["index"]]])
        expected = (of_query @ passage.T).max(axis=1).sum()
        np.testing.assert_allclose(rank["score"], expected, atol=1e-4)
    assert [rank["score"] for rank in found] == sorted((r["score"] for r in found), reverse=True)


def test_predictions_are_those_of_python(client, ours, sentences):
    texts = [(sentences[0],), (sentences[1], sentences[2])]
    expected = ours["class"].predict([sentences[0], texts[1]])
    found = answer_of(client, "/models/class/predict", inputs=[list(text) for text in texts])
    for scores, prediction in zip(found, expected, strict=True):
        assert [score["score"] for score in scores] == sorted(
            (score["score"] for score in scores), reverse=True
        )
        probabilities = {score["label"]: score["score"] for score in scores}
        assert probabilities == pytest.approx(prediction["probabilities"], abs=TOLERANCE)
    for text, inputs in ((0, sentences[0]), (1, list(texts[1]))):
        alone = answer_of(client, "/models/class/predict", inputs=inputs)
        assert [score["label"] for score in alone] == [score["label"] for score in found[text]]
        np.testing.assert_allclose(
            [score["score"] for score in alone],
            [score["score"] for score in found[text]],
            atol=TOLERANCE,
        )
    raw = answer_of(client, "/models/class/predict", inputs=sentences[0], raw_scores=True)
    logits = ours["class"]([sentences[0]])["logits"][0]
    assert [score["score"] for score in raw] == pytest.approx(sorted(logits)[::-1], abs=TOLERANCE)
    listed = answer_of(client, "/models/class/", inputs=sentences[0], parameters={"top_k": 2})
    assert [score["label"] for score in listed[0]] == [score["label"] for score in found[0][:2]]
    fields = {"inputs": sentences[0], "parameters": {"function_to_apply": "none"}}
    (listed,) = answer_of(client, "/models/class/", **fields)
    assert [score["score"] for score in listed] == pytest.approx(
        [score["score"] for score in raw], abs=TOLERANCE
    )
    fields["parameters"]["function_to_apply"] = "sigmoid"
    assert "'none'" in answer_of(client, "/models/class/", 422, **fields)["error"]


@pytest.mark.parametrize(
    "endpoint", others_weekly(["embed", "predict", "embed_sparse"], "embed", "predict")
)
def test_a_batch_changes_no_answer(client, sentences, endpoint):
    """Texts of mixed lengths alone, in one request, and among the requests of others."""
    path = "/models/class/predict" if endpoint == "predict" else f"/{endpoint}"
    rng = np.random.default_rng(0)
    texts = []
    for count in rng.integers(1, 6, 40):
        texts.append(" ".join(rng.choice(sentences, count)))

    def ask(text):
        inputs = [[text]] if endpoint == "predict" else [text]
        return answer_of(client, path, inputs=inputs, truncate=True)[0]

    def numbers(answer):
        if isinstance(answer[0], float):
            return answer
        key, value = sorted(answer[0], key=len)[::-1]  # index and value, score and label
        if "label" in answer[0]:
            key, value = "label", "score"
        return [pair[value] for pair in sorted(answer, key=lambda pair: pair[key])]

    alone = [numbers(ask(text)) for text in texts]
    inputs = [[text] for text in texts] if endpoint == "predict" else texts
    together = answer_of(client, path, inputs=inputs, truncate=True)
    with ThreadPoolExecutor(16) as threads:
        among = list(threads.map(ask, texts))
    for one, two, three in zip(alone, together, among, strict=True):
        np.testing.assert_allclose(numbers(two), one, atol=TOLERANCE)
        np.testing.assert_allclose(numbers(three), one, atol=TOLERANCE)


def test_no_request_compiles_a_program(client, loaded, sentences):
    """After the warm-up, whatever lengths come together."""
    programs = [encoder.program for encoder in loaded["dense"]._encoders.values()]
    programs += [loaded["class"]._predictor._program]
    before = [program._cache_size() for program in programs]
    rng = np.random.default_rng(1)
    with ThreadPoolExecutor(8) as threads:

        def ask(seed):
            rng = np.random.default_rng(seed)
            texts = []
            for _ in range(rng.integers(1, 30)):
                words = " ".join(rng.choice(sentences, 9)).split()
                texts.append(" ".join(words[: rng.integers(1, 60)]))
            answer_of(client, "/embed", inputs=texts, truncate=True)
            inputs = [[text] for text in texts]
            answer_of(client, "/models/class/predict", inputs=inputs, truncate=True)

        list(threads.map(ask, rng.integers(0, 10**6, 30).tolist()))
    assert [program._cache_size() for program in programs] == before


def test_tokens_have_their_place_in_the_text(client, ours, sentences):
    text = f"  {sentences[0]} [MASK]"
    (tokens,) = answer_of(client, "/tokenize", inputs=text, model="dense")
    assert [token["id"] for token in tokens] == ours["dense"].tokenizer.encode_prompt(text)[0]
    assert tokens[0]["special"] and tokens[0]["start"] is None
    for token in tokens[1:-1]:
        assert token["text"] == text[token["start"] : token["stop"]] != ""
    (inner,) = answer_of(client, "/tokenize", inputs=[text], add_special_tokens=False)
    assert inner == tokens[1:-1]


def test_what_a_model_does_not_answer_names_what_it_does(loaded):
    asked = {
        "embed": {"inputs": "a"},
        "embed_sparse": {"inputs": "a"},
        "embed_all": {"inputs": "a"},
        "predict": {"inputs": "a"},
        "rerank": {"query": "a", "texts": ["b"]},
        "v1/embeddings": {"input": "a"},
        "similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    }
    for model in loaded.values():
        with client_of(model) as client:
            for endpoint, fields in asked.items():
                status = 200 if endpoint in model.endpoints else 424
                if model.kind == "reranker" and endpoint == "predict":
                    fields = {"inputs": ["a", "b"]}
                answer = answer_of(client, f"/{endpoint}", status, **fields)
                if status == 424:
                    text = json.dumps(answer)
                    assert f"/{model.endpoints[0]}" in text and model.name in text


def test_models_are_asked_for_by_field_and_by_path(client, loaded):
    by_path = answer_of(client, "/models/rank/predict", inputs=["a", "b"])
    assert answer_of(client, "/predict", inputs=["a", "b"], model="rank") == by_path
    error = answer_of(client, "/predict", 404, inputs="a", model="x")
    assert "Known: dense, sparse, tokens, rank, class" in error["error"]
    assert "Known" in answer_of(client, "/models/x/embed", 404, inputs="a")["error"]
    error = answer_of(client, "/models/v1/embed", 404, inputs="a")
    assert "Known" in error["error"] and error["error_type"] == "model_not_found"
    assert client.get("/models/rank/info").json()["model_type"].keys() == {"reranker"}
    assert [x["id"] for x in client.get("/v1/models").json()["data"]] == list(loaded)
    with client_of(loaded["dense"]) as one:  # whatever its name is for the client
        answer_of(one, "/v1/embeddings", input="a", model="text-embedding-3-small")


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("endpoint", ["embed", "embed_sparse", "embed_all", "predict", "rerank"])
def test_long_texts_are_truncated_if_that_is_asked_for(
    client, ours, sentences, endpoint, truncated
):
    text = " ".join(sentences[:20])
    fields = {"inputs": text}
    if endpoint == "rerank":
        fields = {"query": "a", "texts": ["b", text]}
    if not truncated:
        error = answer_of(client, f"/{endpoint}", 413, **fields)
        assert error["error_type"] == "validation"
        where = "texts[1]" if endpoint == "rerank" else "inputs[0]"
        assert f"{where} has more than" in error["error"]
        return
    answer = answer_of(client, f"/{endpoint}", truncate=True, **fields)
    if endpoint == "embed":
        expected = ours["dense"].embed([text], normalize=True)
        np.testing.assert_allclose(answer, expected, atol=TOLERANCE)


def test_the_longest_text_that_fits_is_no_long_text(client, loaded, ours):
    most = loaded["dense"].max_length
    tokenizer = ours["dense"].tokenizer
    text = "a " * (most - 2)
    assert len(tokenizer.encode_prompt(text)[0]) == most == 40
    answer_of(client, "/embed", inputs=text)
    answer_of(client, "/embed", 413, inputs=text + "a")


REFUSED = [
    (400, b"", "no JSON"),
    (400, b"\xff\xfe", "no JSON"),
    (400, b'{"inputs": "\xff"}', "no JSON"),
    (400, b'{"inputs": "a"', "no JSON"),
    (422, b'{"inputs": NaN}', "inputs is nan"),
    (400, b'{"inputs": "\\ud800"}', "no JSON"),
    (400, b"[" * 100_000, "no JSON"),
    (400, b'{"a":' * 100_000, "no JSON"),
    (400, b'{"inputs": []}', "empty list"),
    (422, b"[]", "The body is []: Input should be an object"),
    (422, b"null", "The body is None: Input should be an object"),
    (422, b"{}", "inputs is missing"),
    (422, b'{"inputs": 3}', "inputs is 3: Input should be a valid array"),
    (422, b'{"inputs": [[1, 2]]}', "inputs[0] is [1, 2]: Input should be a valid string"),
    (422, b'{"inputs": ["a", null]}', "inputs[1] is None"),
    (422, b'{"inputs": "a", "truncate": "yes"}', "truncate is 'yes'"),
    (422, b'{"inputs": "a", "normalize": 1}', "normalize is 1"),
    (422, b'{"inputs": "a", "prompt_name": "x"}', "no prompt named 'x'. Known: "),
    (422, b'{"inputs": "a", "dimensions": 0}', "dimensions=0"),
    (422, b'{"inputs": "a", "dimensions": 99999999999999999999}', "dimensions"),
    (422, b'{"inputs": "a", "dimensions": ' + b"9" * 4000 + b"}", "dimensions"),
    (422, b'{"inputs": "a", "truncate": true, "truncation_direction": "Left"}', "at their right"),
    (413, json.dumps({"inputs": ["a"] * 1025}).encode(), "1025 texts, more than 1024"),
    (413, json.dumps({"inputs": "a" * 70_000}).encode(), "70000 characters"),
    (413, b'{"inputs": "' + b"a" * 4_000_000 + b'"}', "more than 4000000 bytes"),
]


@pytest.mark.parametrize(("status", "body", "message"), REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(client, status, body, message):
    headers = {"content-type": "application/json"}
    response = client.post("/embed", content=body, headers=headers)
    assert response.status_code == status, response.text
    error = response.json()
    assert message in error["error"] and "\n" not in error["error"]
    assert len(error["error"]) <= 500
    openai = client.post(
        "/v1/embeddings", content=body.replace(b"inputs", b"input"), headers=headers
    )
    if b"normalize" not in body:  # which OpenAI does not have
        assert openai.status_code == status
        assert openai.json()["error"]["type"] == "invalid_request_error"


def test_other_content_types_methods_and_paths_are_refused(client):
    response = client.post("/embed", content=b'{"inputs": "a"}')
    assert response.status_code == 415 and "application/json" in response.json()["error"]
    response = client.get("/embed")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert client.post("/nothing", json={}).json()["error"].startswith("Not Found")
    assert client.delete("/v1/embeddings").json()["error"]["code"] == "validation"


@pytest.mark.parametrize("inputs", [[["a", "b", "c"]], [[]], [["a"], "b"], [[1]], ["a", "b", "c"]])
def test_predictions_are_of_texts_and_pairs(client, inputs):
    error = answer_of(client, "/predict", 422, inputs=inputs)
    assert error["error"].startswith("inputs")
    assert answer_of(client, "/predict", 400, inputs=[])["error_type"] == "empty"
    error = answer_of(client, "/predict", 422, inputs="a", parameters={"top_k": -1})
    assert error["error"].startswith("parameters.top_k is -1")


@pytest.mark.parametrize("item", ["1", "[]", "[1]"])
@pytest.mark.parametrize("endpoint", ["embed", "predict", "v1/embeddings", "rerank", "similarity"])
def test_a_list_of_mistakes_costs_no_more_than_one(endpoint, item):
    """An error for each of them would fill the memory."""
    body = '{"query": "", "inputs": %s, "input": %s, "texts": %s}'
    items = f"[{','.join([item] * 1000)}]"
    inputs = items
    if endpoint == "similarity":
        inputs = f'{{"source_sentence": "", "sentences": {items}}}'
    try:
        ENDPOINTS[endpoint].model_validate_json(body % (inputs, items, items))
    except ValidationError as error:
        assert error.error_count() < 5
    else:
        assert (endpoint, item) == ("predict", "[]")


def test_a_slash_at_the_end_of_a_path_leads_to_no_other_address(client):
    """A redirection would be to http, also behind a proxy with https."""
    for path in ("/embed", "/models/dense", "/models/dense/embed"):
        for slash in ("", "/"):
            response = client.post(path + slash, json={"inputs": "a"}, follow_redirects=False)
            assert response.status_code == 200
    assert client.get("/health/", follow_redirects=False).status_code == 200


def test_texts_that_a_task_refuses_are_named(client):
    error = answer_of(client, "/models/class/predict", 422, inputs=[["a"], [" "]])
    assert error["error_type"] == "tokenizer" and "inputs[1]: a text is empty" in error["error"]
    error = answer_of(client, "/models/rank/rerank", 422, query="a", texts=[""])
    assert "a text is empty" in error["error"]


def test_a_full_queue_refuses_with_429_and_says_when_to_come_back(loaded):
    with client_of(loaded["dense"], starts=False, max_waiting=4, max_texts=3) as client:
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.post, "/embed", json={"inputs": ["a", "b", "c"]})
            while len(client.service.queue) < 3:
                assert not waiting.done()
                time.sleep(0.01)
            response = client.post("/embed", json={"inputs": ["a", "b"]})
            assert response.status_code == 429 and response.headers["retry-after"] == "1"
            assert "3 of 4 texts wait" in response.json()["error"]
            assert client.get("/health").status_code == 200
            worker = threading.Thread(target=work, args=(client.service.queue, print))
            worker.start()
            assert len(waiting.result().json()) == 3
            assert client.post("/embed", json={"inputs": ["a", "b"]}).status_code == 200
            client.service.queue.close()
            worker.join(30)


def test_a_model_that_fails_refuses_only_what_it_failed_on(loaded, monkeypatch):
    model = loaded["dense"]

    def fails(rows):
        raise RuntimeError("RESOURCE_EXHAUSTED: no memory\nat some place")

    with client_of(model) as client:
        with monkeypatch.context() as patch:
            patch.setattr(model.encoder(None), "of_ids", fails)
            error = answer_of(client, "/embed", 424, inputs="a")
        assert error["error"].endswith("RESOURCE_EXHAUSTED: no memory")
        assert error["error_type"] == "backend"
        nan = np.full(32, np.nan, np.float32)
        with monkeypatch.context() as patch:
            patch.setattr(model.encoder(None), "of_ids", lambda rows: [nan] * len(rows))
            assert "NaN" in answer_of(client, "/embed", 424, inputs="a")["error"]
        answer_of(client, "/embed", inputs="a")


def test_answers_of_too_many_numbers_are_refused(loaded, monkeypatch):
    monkeypatch.setattr(served, "MOST_NUMBERS", 100)
    with client_of(*loaded.values()) as client:
        for endpoint in ("embed", "embed_all", "embed_sparse", "tokenize"):
            error = answer_of(client, f"/{endpoint}", 413, inputs=["abc de"] * 9)
            assert "ask for fewer texts" in error["error"]


def test_truncated_texts_keep_the_side_that_the_model_reads():
    limits = served.Limits(truncate=True)
    text = "first" + " " * LINE_CHARACTERS + "last"
    assert limits.cut(text, 0).startswith("first")
    assert limits.cut(text, 0, "left").endswith("last")


def test_keys_are_needed_if_there_are_any(loaded):
    with client_of(loaded["dense"]) as client:
        client.service.keys = ("first", "second", "clé")
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic first"}):
            response = client.post("/embed", json={"inputs": "a"}, headers=headers)
            assert response.status_code == 401 and "Bearer KEY" in response.json()["error"]
            for path in ("/info", "/metrics", "/v1/models", "/nothing"):
                assert client.get(path, headers=headers).status_code == 401
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert client.head("/health").status_code == 200
        assert client.post("/", json={"inputs": "a"}).status_code == 401
        assert "dense" not in client.get("/").text
        for key in ("first", "second", "clé"):
            headers = {"authorization": f"Bearer {key}".encode()}
            assert client.post("/embed", json={"inputs": "a"}, headers=headers).is_success
        headers = {"authorization": "Bearer é".encode()}
        assert client.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 401


def test_web_pages_of_others_are_refused(loaded):
    cases = {
        ("http://evil.example", "127.0.0.1:8080"): 403,
        ("http://evil.example:8080", "evil.example:8080"): 403,  # whose name was changed later
        ("null", "127.0.0.1:8080"): 403,
        ("http://[", "127.0.0.1:8080"): 403,
        ("http://127.0.0.1:9", "127.0.0.1:8080"): 403,
        ("http://127.0.0.1:8080", "127.0.0.1:8080"): 200,
        ("http://localhost:8080", "localhost:8080"): 200,
        ("http://[::1]:8080", "[::1]:8080"): 200,
    }
    with client_of(loaded["dense"]) as client:
        for (origin, host), status in cases.items():
            headers = {"origin": origin, "host": host}
            response = client.post("/embed", json={"inputs": "a"}, headers=headers)
            assert response.status_code == status, (origin, host)
        client.service.keys = ("key",)
        headers = {"origin": "http://proxy.example", "authorization": "Bearer key"}
        assert client.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 200


def test_nothing_is_answered_before_the_models_are_ready_or_while_it_stops(loaded):
    with client_of(loaded["dense"]) as client:
        models = client.service.models
        client.service.models = None
        for response in (client.get("/health"), client.post("/embed", json={"inputs": "a"})):
            assert response.status_code == 503 and response.headers["retry-after"]
        assert client.get("/metrics").status_code == client.get("/").status_code == 200
        client.service.models = models
        assert client.get("/health").status_code == 200
        client.service.is_stopping = True
        assert client.get("/health").json()["error_type"] == "unhealthy"
        response = client.post("/embed", json={"inputs": "a"})
        assert response.status_code == 200 and response.headers["connection"] == "close"


def test_metrics_count_requests_batches_and_what_waits(loaded):
    with client_of(loaded["dense"]) as client:
        answer_of(client, "/embed", inputs=["a", "b"])
        answer_of(client, "/embed", 422, inputs=3)
        client.get("/nothing")
        text = client.get("/metrics").text
        for line in (
            'te_request_count_total{endpoint="/embed",status="200"} 1.0',
            'te_request_count_total{endpoint="/embed",status="422"} 1.0',
            'te_request_count_total{endpoint="other",status="404"} 1.0',
            'te_request_duration_count{endpoint="/embed"} 2.0',
            "te_request_queue_duration_count 1.0",
            "te_request_inference_duration_count 1.0",
            "te_batch_next_size_sum 2.0",
            "te_queue_size 0.0",
        ):
            assert line in text, line


def test_taggers_give_the_entities_of_python(one_layer, sentences, tmp_path):
    directory = write_tagger(tmp_path / "tag", one_layer)
    expected = bertjax.load_pretrained(directory).predict([*sentences[:6], " ".join(sentences)])
    texts = [*sentences[:6], " ".join(sentences)]
    with client_of(load_served("tag", str(directory))) as client:
        found = answer_of(client, "/predict", inputs=[[text] for text in texts])
        assert sum(map(len, found)) > 10
        for text, prediction, answers in zip(texts, expected, found, strict=True):
            alone = answer_of(client, "/predict", inputs=text, parameters={"stride": 1})
            for entity, *others in zip(prediction["entities"], answers, alone, strict=True):
                for answer in others:
                    assert answer["entity_group"] == entity["type"]
                    assert answer["score"] == pytest.approx(entity["probability"], abs=TOLERANCE)
                    assert text[answer["start"] : answer["end"]] == answer["word"]
                    assert (answer["start"], answer["end"]) == (entity["start"], entity["end"])
        answer_of(client, "/predict", 422, inputs="a", raw_scores=True)
        answer_of(client, "/predict", 422, inputs=["a", "b"])


def test_info_has_the_fields_of_text_embeddings_inference(client, loaded):
    for name, model in loaded.items():
        info = client.get(f"/models/{name}/info").json()
        assert info["model_id"] == name and info["max_input_length"] == model.max_length
        assert info["max_client_batch_size"] == 1024
        (kind,) = info["model_type"]
        assert kind == model.kind
        assert ("label2id" in info["model_type"][kind]) == (name in ("rank", "class"))


def test_models_that_cannot_be_served_are_named(one_layer, tmp_path, tokenizer, written):
    config = bertjax.load_pretrained(one_layer).config
    tagger = written(tmp_path / "tagger", config, "token_classification", tokenizer)
    with pytest.raises(ValueError, match="only embedders, .* taggers of entities are served"):
        load_served("x", str(tagger), None)
    with pytest.raises(ValueError, match="max_length=65"):
        load_served("x", str(one_layer), 65)
    with pytest.raises(FileNotFoundError):
        load_served("x", str(tmp_path / "none"), None)
