"""Models for `mteb.evaluate`, the Massive Text Embedding Benchmark (Muennighoff et al. 2023).

MTEB is imported by `mteb_model` alone. Its protocols and its choice of prompts are those of version
2; the classes here have the methods that its protocols name.
"""

import hashlib
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.base.checked import Count, check
from bertjax.base.lock import scratch_folder
from bertjax.inference.embedder import ROLES, Embedder, windows
from bertjax.inference.indexes import encoder_of, index_of
from bertjax.inference.pretrained import Pretrained, load_pretrained
from bertjax.model.recipe import flattened
from bertjax.tasks.embedding import similarities
from bertjax.tasks.reranking import ranking_task
from bertjax.tasks.task import Example
from bertjax.weights import LoadedModel
from bertjax.weights.sentence_transformers import Read, SentenceModules


def mteb_model(
    path_or_name: str | Path,
    *,
    name: str | None = None,
    revision: str | None = None,
    batch_size: int | None = None,
) -> Any:
    """Loads a model that `mteb.evaluate` takes: an embedder of any kind, or a cross-encoder.

        model = bertjax.mteb_model("runs/embed/model", name="me/my-embedder")
        results = mteb.evaluate(model, mteb.get_tasks(tasks=["STSBenchmark", "NFCorpus"]))

    A model with a classifier of pairs is a cross-encoder, any other one an embedder; one with a
    vector per token searches by itself, and has no other tasks than these searches. Prompts are
    those of its files that MTEB chooses by the name and type of a task, and by query or document.

    Args:
        path_or_name: as in `load_pretrained`.
        name: name of the model in MTEB's results, OWNER/NAME; None: `path_or_name` if it has this
            form and is no folder, or else local/FOLDER.
        revision: revision in MTEB's results, which are computed again if it differs; None: a hash
            of the weights and settings.
        batch_size: as in `Pretrained.embed` and `Pretrained.predict`; that of MTEB has no effect.

    Raises:
        ImportError: MTEB is not installed.
        ValueError: the model has a classifier that ranks no pairs, or `name` is not OWNER/NAME.
    """
    try:
        importlib.import_module("mteb")
    except ImportError as error:
        raise ImportError("mteb_model needs MTEB: pip install mteb.") from error
    check("batch_size", batch_size, Count | None)
    if name is not None and name.count("/") != 1:
        raise ValueError(f"name={name!r}: give a name such as me/my-model.")
    model = load_pretrained(path_or_name)
    described = {
        "name": name or _name_of(path_or_name, model),
        "revision": revision or _hash_of(model),
        "framework": ["JAX"],
        "n_parameters": sum(x.size for x in jax.tree.leaves(model.params)),
        "n_embedding_parameters": model.config.vocab_size * model.config.hidden_size,
    }
    if model.head == "sequence_classification":
        return _CrossEncoder(model, batch_size, described)
    kinds = {"late_interaction": _Search, "sparse": _SparseEncoder}
    modules = model.loaded.source.usage.modules.result() or SentenceModules()
    return kinds.get(modules.head, _DenseEncoder)(model, batch_size, described)


def _name_of(path_or_name: str | Path, model: Pretrained) -> str:
    name = str(path_or_name)
    if name.count("/") == 1 and not Path(name).exists():
        return name
    folder = model.where.resolve()
    if folder.name == "model":  # of a run
        folder = folder.parent
    return f"local/{folder.name}"


def _hash_of(model: Pretrained) -> str:
    """Returns a hash of what the results of a model depend on."""
    content = hashlib.sha256()
    for path, array in sorted(flattened(model.params).items()):
        content.update(path.encode())
        content.update(np.asarray(array).tobytes())
    files = model.loaded.source.usage.sentence_files.result()
    for path, text in sorted(files.items()):
        content.update(path.encode())
        content.update(text)
    return content.hexdigest()[:16]


def _meta(**described: Any) -> Any:
    module = importlib.import_module("mteb.models.model_meta")
    if "similarity_fn_name" in described:
        described["similarity_fn_name"] = module.ScoringFunction(described["similarity_fn_name"])
    return module.ModelMeta.create_empty(overwrites=described)


class _CrossEncoder:
    """MTEB's CrossEncoderProtocol: scores of pairs."""

    def __init__(self, model: Pretrained, batch_size: int | None, described: dict[str, Any]):
        self._model = model
        self._batch_size = batch_size
        self._task, _ = ranking_task(model.task_with(), f"mteb_model: a task of {model.where}")
        self.mteb_model_meta = _meta(
            **described, model_type=["cross-encoder"], max_tokens=self._task.max_length
        )

    def predict(self, inputs1: Any, inputs2: Any, **settings: Any) -> np.ndarray:
        """Returns the scores of pairs of texts, float64 [N]; `inputs1` and `inputs2` yield batches
        {"text": texts}."""
        _check_precision(settings)
        examples = []
        for query, passage in zip(_texts(inputs1), _texts(inputs2), strict=True):
            row = len(examples)
            examples.append(Example(id=str(row), where=f"pair {row}", text=query, pair=passage))
        predictions = self._model.predictions(
            self._task, examples, batch_size=self._batch_size, shows_progress=False
        )
        return np.array([prediction["score"] for _, prediction in predictions])


class _Prompts:
    """The prompts of a model's files, of which MTEB chooses one for a task."""

    def __init__(self, modules: SentenceModules | None):
        modules = modules or SentenceModules()
        self._texts = modules.prompts
        self._mteb = importlib.import_module("mteb.models.abs_encoder")
        # MTEB ignores, with a warning, the prompts whose names are no tasks of its own.
        self._known, _ = self._mteb.AbsEncoder.validate_task_to_prompt_name(
            {**modules.prompts}, raise_for_invalid_keys=False
        )

    def name(self, task_metadata: Any, prompt_type: Any) -> str | None:
        """Returns the name of the prompt; None: the default prompt."""
        return self._mteb.get_prompt_name(self._known, task_metadata, prompt_type)

    def of_roles(self, task_metadata: Any) -> dict[str, str]:
        """Returns the texts before queries and documents."""
        types = importlib.import_module("mteb.types").PromptType
        texts = {}
        for role in ROLES:
            name = self.name(task_metadata, types(role))
            texts[role] = self._texts[str(name)]
        return texts


class _Search:
    """MTEB's SearchProtocol: a search of its own, by an exact index."""

    kind = "late-interaction"
    similarity_name = "MaxSim"

    def __init__(self, model: Pretrained, batch_size: int | None, described: dict[str, Any]):
        self._loaded = model.loaded
        self._batch_size = batch_size
        self._prompts = _Prompts(self._loaded.source.usage.modules.result())
        self._corpus: Any = None
        document = index_of(self._loaded).encoders["document"]
        self.mteb_model_meta = _meta(
            **described,
            model_type=[self.kind],
            similarity_fn_name=self.similarity_name,
            max_tokens=document.max_length,
            embed_dim=document.size,
        )

    def index(self, corpus: Any, **settings: Any) -> None:
        """Takes the passages of a task, which `search` encodes."""
        _check_precision(settings["encode_kwargs"])
        self._corpus = corpus

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Any = None,
        num_proc: int | None = None,
        **settings: Any,
    ) -> dict[str, dict[str, float]]:
        """Returns {query id: {passage id: score}} of the best `top_k` passages, or of those that
        `top_ranked` names for each query."""
        ids = list(self._corpus["id"])
        query_ids = list(queries["id"])
        of_task = {"task_metadata": task_metadata, "num_proc": num_proc}
        query_texts = _texts_of_rows(queries, "query", **of_task)
        with scratch_folder() as folder:
            kind = index_of(self._with_prompts(task_metadata), batch_size=self._batch_size)
            index = kind.open(folder, len(ids))
            done = 0
            for texts in windows(_texts_of_rows(self._corpus, "document", **of_task)):
                index.add(np.arange(done, done + len(texts)), texts)
                done += len(texts)
            if top_ranked is None:
                scores, places = index.search(query_texts, top_k)
            else:
                numbers = {id: number for number, id in enumerate(ids)}
                places = []
                for query in query_ids:
                    places.append([numbers[id] for id in top_ranked.get(query, ())])
                scores = index.scores(query_texts, places)
        found = {}
        for query, of_query, best in zip(query_ids, scores, places, strict=True):
            passages = [ids[place] for place in best]
            found[query] = dict(zip(passages, np.asarray(of_query).tolist(), strict=True))
        return found

    def _with_prompts(self, task_metadata: Any) -> LoadedModel:
        source = self._loaded.source
        modules: Any = source.usage.modules.result()
        prompts = {**modules.prompts, **self._prompts.of_roles(task_metadata)}
        usage = source.usage._replace(modules=Read(modules._replace(prompts=prompts)))
        return self._loaded._replace(source=source._replace(usage=usage))


def _texts_of_rows(rows: Any, role: str, **of_task: Any) -> list[str]:
    """Returns the texts that MTEB makes of queries or passages, with titles and instructions."""
    loaders = importlib.import_module("mteb._create_dataloaders")
    types = importlib.import_module("mteb.types").PromptType
    return _texts(loaders.create_dataloader(rows, prompt_type=types(role), **of_task))


class _Compared:
    """How similar two embeddings are, the part of MTEB's EncoderProtocol that encoders share."""

    _similarity: str

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compares vectors [N, D] with [M, D], as the model's files say: float [N, M]."""
        a, b = self._comparable(embeddings1, embeddings2)
        return similarities(a, b, self._similarity)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compares vectors [N, D] with [N, D], row by row: float [N]."""
        a, b = self._comparable(embeddings1, embeddings2)
        if self._similarity in ("cosine", "dot"):
            return np.sum(a * b, axis=-1)
        order = 2 if self._similarity == "euclidean" else 1
        return -np.linalg.norm(a - b, ord=order, axis=-1)

    def _comparable(self, *embeddings: Any) -> list[np.ndarray]:
        arrays = [np.atleast_2d(np.asarray(x, np.float32)) for x in embeddings]
        if self._similarity != "cosine":
            return arrays
        return [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in arrays]


class _SparseEncoder(_Search, _Compared):
    """A search by sparse products, and MTEB's EncoderProtocol for all other tasks."""

    kind = "sparse"

    def __init__(self, model: Pretrained, batch_size: int | None, described: dict[str, Any]):
        modules: Any = model.loaded.source.usage.modules.result()
        self._similarity = self.similarity_name = modules.similarity
        super().__init__(model, batch_size, described)

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **settings: Any
    ) -> np.ndarray:
        """Returns the weights of all words, float32 [N, V], as `_DenseEncoder.encode`."""
        _check_precision(settings)
        loaded = self._loaded
        prompt = self._prompts.name(task_metadata, prompt_type)
        if prompt_type is not None:  # the role may have a way of encoding of its own
            loaded = self._with_prompts(task_metadata)
            prompt = str(prompt_type.value)
        encoder = encoder_of(loaded, prompt=prompt, batch_size=self._batch_size)
        return encoder(_texts(inputs)).toarray()


class _DenseEncoder(_Compared):
    """MTEB's EncoderProtocol: vectors of texts, and how similar they are."""

    def __init__(self, model: Pretrained, batch_size: int | None, described: dict[str, Any]):
        self._model = model
        self._batch_size = batch_size
        self._modules = model.loaded.source.usage.modules.result() or SentenceModules()
        self._prompts = _Prompts(self._modules)
        self._embedders: dict[tuple[str | None, str | None], Embedder] = {}
        embedder = self._embedder(None, None)
        self._similarity = embedder.similarity
        self.mteb_model_meta = _meta(
            **described,
            similarity_fn_name=self._similarity,
            max_tokens=embedder.max_length,
            embed_dim=embedder.size,
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        **settings: Any,
    ) -> np.ndarray:
        """Returns the embeddings of texts, float32 [N, D]; `inputs` yields batches {"text": texts}.

        `task_metadata` and `prompt_type` ("query", "document" or None) choose the prompt.
        """
        _check_precision(settings)
        name = self._prompts.name(task_metadata, prompt_type)
        role = None if prompt_type is None else str(prompt_type.value)
        return self._embedder(role, name)(_texts(inputs))

    def _embedder(self, role: str | None, prompt: str | None) -> Embedder:
        key = (role, prompt)
        if key not in self._embedders:
            lengths = {
                "query": self._modules.query_length,
                "document": self._modules.document_length,
            }
            length = lengths.get(str(role))
            self._embedders[key] = Embedder(
                self._model.loaded,
                batch_size=self._batch_size,
                max_length=length and min(length, self._model.config.max_length),
                prompt=prompt,
            )
        return self._embedders[key]


def _texts(batches: Any) -> list[str]:
    texts = []
    for batch in batches:
        texts.extend(batch["text"])
    return texts


def _check_precision(settings: dict[str, Any]) -> None:
    precision = settings.get("precision", "float32")
    if precision != "float32":
        raise ValueError(
            f"precision={precision!r} in encode_kwargs: bertjax gives vectors and scores as "
            "float32; leave it out."
        )
