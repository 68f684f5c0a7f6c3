"""`bertjax.load_pretrained` loads a model that can be called on texts or arrays.

What the files of a model say is read when the model is loaded, and no method reads them again. The
parts, in this order: the model, the task that it was fine-tuned on (`with_task`), and the examples
that its task makes of texts (`from_texts`). Everything is computed in `predictor`.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bertjax.base.checked import Count, Positive, check
from bertjax.base.files import brief, listed, naming_read_errors
from bertjax.base.outputs import keep_apart
from bertjax.base.progress import progress
from bertjax.config.finetune_config import SHORTEST
from bertjax.devices.compilation import refuse_fork, start_jax
from bertjax.inference.embedder import Embedder, following
from bertjax.inference.masks import fill_mask
from bertjax.inference.output_files import file_identity
from bertjax.inference.predictor import (
    Predictor,
    for_inference,
    inference_params,
    model_outputs,
    one_device,
)
from bertjax.model import BertConfig, BertWithHead
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    TextTask,
)
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.question_answering import SAVED_FIELDS, SpanTask
from bertjax.tasks.registry import TASKS
from bertjax.tasks.reranking import ACTIVATIONS, RerankTask, ranking_task
from bertjax.tasks.tagging import TagTask, split_words
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.families import architecture, family_of
from bertjax.weights.fill import part_in_words
from bertjax.weights.hf import model_card
from bertjax.weights.load import head_tensors, with_masked_lm, with_saved_tagger
from bertjax.weights.names import two_biases
from bertjax.weights.sentence_transformers import (
    changed_weights,
    read_cross_encoder,
    transformer_folder,
)

# Where a CrossEncoder of sentence-transformers has its activation in config.json.
CROSS_ENCODER = ("sentence_transformers", "sbert_ce_default_activation_function")
Text = str | tuple[str, str]


def load_pretrained(
    path_or_name: str | Path,
    head: str | None = "auto",
    *,
    num_labels: int | None = None,
    vocab_size: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> "Pretrained":
    """Loads a model, to be called on texts or arrays.

        bert = bertjax.load_pretrained("bert-base-uncased")
        outputs = bert(["one text", ("text a", "text b")])
        outputs["last_hidden_state"]  # float32 [2, L, 768]

    Parts of the model that the loaded weights lack, such as a classifier, are initialised at
    random, and their names are printed. If the model has no tokenizer, it can be called on arrays,
    but not on texts. Compiled programs are kept on disk, in jax's persistent compilation cache.

    Args:
        path_or_name: a Hugging Face directory, a file `.safetensors` or `.bin`, a TF1 checkpoint,
            the workdir of a run (also in a bucket), a name on the Hugging Face Hub, or
            `bertjax:NAME`, a model that comes with bertjax, such as `bertjax:tiny`.
        head: the name of the head, one of `bertjax.model.HEADS`; None: the head of the source;
            "auto": the head of the source if it was fine-tuned for a task, and "encoder", without a
            head, if it was pretrained.
        num_labels: the number of classes; None: as in the source, or 2 if it has no classes.
        vocab_size: the vocabulary size to resize the model to; None: the model is not resized.
        dtype: the dtype of the activations; the parameters are float32.

    Raises:
        FileNotFoundError: there is no model at `path_or_name`, neither locally nor on the Hub.
        ValueError: a file is damaged, transformers lacks the head for the model family, the shapes
            of the weights do not fit the config or `num_labels`, or the tokenizer has more tokens
            than the model.
    """
    check("num_labels", num_labels, Count | None)
    check("vocab_size", vocab_size, Count | None)
    name = getattr(dtype, "__name__", str(dtype))
    check("dtype", name, Literal["float32", "bfloat16", "float16"])
    start_jax()
    loaded = load_model(
        path_or_name,
        head,
        num_labels=num_labels,
        vocab_size=vocab_size,
        dtype=dtype,
        tokenizer_required=False,
    )
    for part in loaded.absent:
        print(
            f"{path_or_name} has no {part_in_words(part)}: it is initialised at random; train it "
            "before use"
        )
    if loaded.left_out:
        print(
            f"{path_or_name} is loaded without its head {loaded.left_out}: it gives hidden states. "
            f'Give head="{loaded.left_out}" for its logits; `save` keeps the head in any case'
        )
    return Pretrained(loaded)


class Pretrained:
    """A model with its parameters, config, tokenizer and labels; call it on texts or arrays.

    Attributes:
        model: the Flax linen module.
        tokenizer: None if the loaded directory has none. Until a tokenizer is assigned, such a
            model can be called on arrays, but not on texts.
        labels: names of the classes; None if the model has no named classes.
        head: the name of the head in `bertjax.model.HEADS`.
        absent: names of parts of the model, such as "classifier" or "bert/pooler", that the loaded
            weights lack; the parameters of these parts are initialised at random.
        identity: JSON values that differ if the files of the model differ.
    """

    def __init__(self, loaded: LoadedModel):
        self.model: BertWithHead = loaded.model
        self.params: Any = loaded.params
        self.config: BertConfig = loaded.config
        self.tokenizer: Tokenizer | None = loaded.tokenizer
        self.labels = loaded.labels
        self.absent = loaded.absent
        self.head = loaded.head
        self.identity = file_identity(transformer_folder(loaded.source.where))
        # A masked LM head that the model lacks may be asked for later; it is copied, because files
        # may be mapped into memory.
        source, wanted = loaded.source, "predictions" not in loaded.model.parts
        names = two_biases(source.tensors, loaded.config)
        names += head_tensors(source, loaded.config) if wanted else []
        source = source._replace(tensors={name: np.array(source.tensors[name]) for name in names})
        self._loaded = loaded._replace(params={}, source=source)
        self._on_device: tuple[Any, Any] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        computed = ("_restored", "_masked_lm")  # with arrays on the device
        state = {name: value for name, value in vars(self).items() if name not in computed}
        return state | {"params": jax.device_get(self.params), "_on_device": (None, None)}

    def __repr__(self) -> str:
        count = sum(x.size for x in jax.tree.leaves(self.params))
        classes = f" ({brief(', '.join(self.labels), 60)})" if self.labels else ""
        return (
            f"<{architecture(self.config, self.head)}{classes}, "
            f"{self.config.num_hidden_layers} layers of size {self.config.hidden_size}, "
            f"{count:,} parameters, from {self.where}>"
        )

    @property
    def where(self) -> Path:
        """The folder or file that the model was loaded from."""
        return self._loaded.source.where

    @property
    def loaded(self) -> LoadedModel:
        """The model on the device as a `LoadedModel`; raises ValueError without a tokenizer."""
        if self.tokenizer is None:
            raise ValueError(
                f"{self.where} has no tokenizer (tokenizer.json), so texts cannot be encoded: "
                "pass input_ids, or assign the tokenizer of the model: "
                "bert.tokenizer = bertjax.tokenization.load_tokenizer(...)."
            )
        return self._loaded._replace(params=self._device_params(), tokenizer=self.tokenizer)

    def _device_params(self) -> Any:
        refuse_fork()
        if self._on_device[0] is not self.params:
            params = inference_params(self.params, self.model)
            self._on_device = (self.params, params)
        return self._on_device[1]

    def __call__(
        self,
        texts: Sequence[Text] | None = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        batch_size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Applies the model without dropout.

        A batch is split and padded to a few shapes, so that calls of different shapes share
        compiled programs; it may be larger than the device memory. The outputs have no padding.

        Args:
            texts: texts or pairs of texts, which are truncated as by `encode` and padded to the
                length of the longest row.
            input_ids: token ids that replace `texts`, int [B, L] as in transformers ([B, C, L] for
                multiple choice with C choices).
            attention_mask: 1 (or True) for tokens and 0 for padding, of the shape of `input_ids`;
                None: no token is padding.
            token_type_ids: the token types, of the shape of `input_ids`; None: all are 0.
            output_hidden_states: whether to also return "hidden_states" [layers + 1, B, L, D].
            output_attentions: whether to also return "attentions" [layers, B, heads, L, L].
            batch_size: maximum number of rows that the device computes at once; None: chosen by the
                length of the rows.

        Returns:
            A dict of arrays, whose keys are the names of the outputs in transformers. They are
            last_hidden_state [B, L, D], pooler_output [B, D] and, depending on the head, logits,
            prediction_logits and seq_relationship_logits, or start_logits and end_logits. Logits
            are float32; hidden states have the dtype that was given to `load_pretrained`.

        Raises:
            ValueError: `texts` and `input_ids` are both set or both None, an array has another
                shape, type or range than described, rows are longer than the maximum length of the
                model, or texts are passed to a model without a tokenizer.
        """
        check("batch_size", batch_size, Count | None)
        check("output_hidden_states", output_hidden_states, bool)
        check("output_attentions", output_attentions, bool)
        arrays = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        if (texts is None) == (input_ids is None):
            raise ValueError("Give either texts or input_ids.")
        if texts is not None:
            if wrong := [name for name, value in arrays.items() if value is not None]:
                raise ValueError(f"{wrong[0]} has no effect on texts: give input_ids with it.")
            input_ids, *others = self.encode(texts)
            arrays = dict(zip(arrays, others, strict=True))
        ids = _array("input_ids", input_ids, self.config)
        choices = ids.shape[1] if ids.ndim == 3 and self.head == "multiple_choice" else None
        if (ids.ndim != 2 and choices is None) or not ids.shape[-1]:
            raise ValueError(
                f"input_ids has the shape {ids.shape}: give an array [rows, tokens], or [rows, "
                "choices, tokens] for multiple choice, with at least one token."
            )
        if ids.shape[-1] > self.config.max_length:
            raise ValueError(
                f"The inputs have {ids.shape[-1]} tokens per row, but the model accepts at most "
                f"{self.config.max_length}: truncate the inputs."
            )
        batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}
        batch["attention_mask"] = np.ones_like(ids)
        batch |= {
            name: _array(name, x, self.config, ids.shape)
            for name, x in arrays.items()
            if x is not None
        }
        outputs = model_outputs(
            *(self.model, self._device_params()),
            {name: x.reshape(-1, ids.shape[-1]) for name, x in batch.items()},
            hidden_states=output_hidden_states,
            attentions=output_attentions,
            batch_size=batch_size,
        )
        if choices is not None:
            outputs["logits"] = outputs["logits"].reshape(-1, choices)
        hf_names = family_of(self.config).outputs
        return {hf_names.get(key, key): value for key, value in outputs.items()}

    def predict(
        self,
        texts: Sequence[str | tuple[str, ...]],
        *,
        batch_size: int | None = None,
        max_length: int | None = None,
        doc_stride: int | None = None,
    ) -> list[Prediction]:
        """Computes the predictions of the model's head for texts, as `bertjax.predict` does.

        Args:
            texts: texts or pairs of texts; (question, passage) for question answering, (text,
                choice, choice, ...) for multiple choice, and texts or lists of words for tagging.
            batch_size: maximum number of rows in one call of the model, where a row may hold
                several short sequences; None: enough rows to keep the device busy.
            max_length: maximum number of tokens per sequence; None: as in fine-tuning.
            doc_stride: maximum number of tokens between the starts of two consecutive windows of a
                text of more tokens; None: as in fine-tuning.

        Returns:
            A dict for each element of `texts`, with the keys of `bertjax.tasks.task.Prediction`.

        Raises:
            ValueError: no task uses the head of the model, a text is empty, an element of `texts`
                has too few or too many texts, or `max_length` or `doc_stride` is out of range.
        """
        task, examples = from_texts(self.task_with(max_length, doc_stride), texts)
        pairs = self.predictions(task, examples, batch_size=batch_size, shows_progress=False)
        return [prediction for _, prediction in pairs]

    def predictions(
        self,
        task: Task,
        examples: Iterable[Example],
        *,
        batch_size: int | None = None,
        report_problems: bool = False,
        shows_progress: bool = True,
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for each of `examples`, in order; see `Predictor.__call__`.

        `task` is that of `task_with`, or another with the same labels in the same order. At the
        end, a message on stderr says how many texts may have been truncated.
        """
        check("batch_size", batch_size, Count | None)
        loaded, restored = self.loaded, self._restored[0]
        model, limit = for_inference(restored.model), task.max_length
        predictor = Predictor(task, model, loaded.tokenizer, limit, one_device(), batch_size)
        params = restored.params | loaded.params
        with progress("predicting", unit="sequences", shown=shows_progress) as state:
            predictor.after_batch = state.advance
            yield from predictor(params, examples, report_problems=report_problems)
        if message := predictor.truncated.message:
            print(
                f"{message}. The model reads up to {self.config.max_length} tokens.",
                file=sys.stderr,
            )

    @functools.cached_property
    def _restored(self) -> tuple[LoadedModel, Task, dict[str, Any]]:
        loaded, task, description = with_task(self._loaded._replace(params=self.params))
        own = {name: part for name, part in loaded.params.items() if name not in self.params}
        return loaded._replace(params=inference_params(own, loaded.model)), task, description

    @property
    def task(self) -> Task:
        """The task that the model was fine-tuned on; `task.source` is None.

        Raises:
            ValueError: no task uses the head of the model.
        """
        return self._restored[1]

    @property
    def description(self) -> Mapping[str, Any]:
        """The content of `task.json`, {} for models of other libraries."""
        return self._restored[2]

    def task_with(self, max_length: int | None = None, doc_stride: int | None = None) -> Task:
        """Returns the task with the limits that `predict` describes; errors are as there."""
        check("max_length", max_length, int | None)
        check("doc_stride", doc_stride, Count | None)
        where, task, longest = self.loaded.source.where, self.task, self.config.max_length
        if doc_stride is not None:
            if not hasattr(task, "doc_stride"):
                raise ValueError(
                    f"doc_stride={doc_stride} has no effect on {where}, whose task {task.name} "
                    "reads no windows: leave it out."
                )
            task = dataclasses.replace(task, **{"doc_stride": doc_stride})
        origin = ""
        if max_length is None:
            origin, max_length = " (of task.json, or model_max_length)", task.max_length
        if not SHORTEST <= max_length <= longest:
            raise ValueError(
                f"max_length={max_length}{origin}, but {where} reads {SHORTEST} to {longest} "
                "tokens: choose a value in this range."
            )
        return dataclasses.replace(task, max_length=max_length)

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        layers: Sequence[int] = (-1,),
        batch_size: int | None = None,
        truncate_dim: int | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Computes a vector for each text: float32 [len(texts), D].

        Args:
            texts: the texts; long texts are truncated as by `encode` or, if `pooling` is None, to
                the length in the files of sentence-transformers.
            pooling: "mean", "cls", or another of `bertjax.model.sentence_embedding.pooled`; None:
                all that the files of sentence-transformers in the model directory say is followed,
                and without such files, it is "mean".
            normalize: whether to divide each vector by its Euclidean length; None: as the files of
                sentence-transformers say, or False if there are none or `pooling` is set.
            layers: indices of the hidden states to pool (0: embeddings, -1: last layer); the
                vectors of several layers are concatenated.
            batch_size: maximum number of rows in one call of the model, where a row may hold
                several short texts; None: enough rows to keep the device busy.
            truncate_dim: number of dimensions to keep of each vector, the first ones, before it is
                normalised; None: as the files of sentence-transformers say, or all.
            prompt: the name of a prompt in these files, or a text to put before each text; None:
                the default prompt of these files, if any.

        Raises:
            ValueError: `texts` is one string, a table or a dictionary, or an element is no text; or
                as in `Embedder`.
        """
        options: dict[str, Any] = {"truncate_dim": truncate_dim, "prompt": prompt}
        embedder = Embedder(self.loaded, pooling, layers, batch_size, normalize, **options)
        return embedder(single_texts(texts))

    def rerank(
        self, query: str, candidates: Sequence[str], *, batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """Ranks passages for a query, the best first, with a model that scores pairs.

        Returns a dict for each of `candidates`: its `index` there, its `score` and its `text`. Of a
        model with two classes, the score is the probability of the one that is named like a match.

        Raises:
            ValueError: the model is no reranker and has no such class, or a text is empty.
        """
        task, _ = ranking_task(self.task_with(), f"rerank() of {self.where}")
        texts = tuple(single_texts(candidates))
        examples = [Example(id="0", where="candidates", text=query, choices=texts)] * bool(texts)
        pairs = self.predictions(task, examples, batch_size=batch_size, shows_progress=False)
        return [row for _, prediction in pairs for row in prediction["ranking"]]

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
        """Predicts the `top_k` most probable tokens for each [MASK] of `text`, most probable first.

        Result and errors are as in `bertjax.inference.masks`. If the model was loaded
        without its masked LM head, the head of the model's files is used.
        """
        return fill_mask(self.masked_lm, text, top_k)

    @property
    def masked_lm(self) -> LoadedModel:
        """The model with the masked LM head of its files, even if it was loaded with another."""
        loaded = self.loaded
        if "predictions" in self.model.parts:
            return loaded
        head, encoder = self._masked_lm, {"bert": loaded.params["bert"]}
        return head._replace(params=head.params | encoder, tokenizer=loaded.tokenizer)

    @functools.cached_property
    def _masked_lm(self) -> LoadedModel:
        loaded = with_masked_lm(self._loaded._replace(params=self.params))
        head = dict(loaded.params)
        del head["bert"]  # the encoder is on the device already
        return loaded._replace(params=inference_params(head, loaded.model))

    def encode(self, texts: Sequence[Text]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenizes texts or pairs of texts.

        They are truncated to the `model_max_length` of the tokenizer, as in transformers, or to the
        maximum length of the model if it is smaller.

        Returns (input_ids, attention_mask, token_type_ids), int32 [B, L] each.
        """
        tokenizer, limit = self.loaded.tokenizer, self.loaded.max_length
        rows = [tokenizer.encode_prompt(*parts, max_length=limit) for parts in text_tuples(texts)]
        length = max((len(ids) for ids, _ in rows), default=1)
        ids = np.full((len(rows), length), tokenizer.pad_token_id, np.int32)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for i, (row, row_types) in enumerate(rows):
            ids[i, : len(row)], types[i, : len(row)], mask[i, : len(row)] = row, row_types, 1
        # A model with one token type uses it for every token, whatever its tokenizer returns.
        return ids, mask, np.minimum(types, max(self.config.type_vocab_size - 1, 0))

    def save(self, directory: str | Path) -> None:
        """Writes a Hugging Face directory: config, weights, labels, model card and tokenizer.

        A head of pretraining that `load_pretrained` left out is written as well. Files that tell
        how the model is used are kept: files of sentence-transformers and, for a fine-tuned model,
        `task.json` with its maximum length and column names.

        Raises:
            ValueError: `directory` holds the model itself, or files that bertjax did not write.
            OSError: the disk is full; the previous content of `directory` remains.
        """
        keep_apart("the directory", directory, "model", self._loaded.source.where)
        kept = ("id2label", "label2id", "num_labels", "problem_type", *CROSS_ENCODER)
        head, params, source = self.head, self.params, self._loaded.source.config
        if self._loaded.left_out:
            whole = with_masked_lm(self._loaded._replace(params=params), self._loaded.left_out)
            head, params = whole.head, whole.params
            if "bert/pooler" in self.absent:
                del params["bert"]["pooler"]
        extra = {key: source[key] for key in kept if key in source}
        usage, tensors = self._loaded.source.usage, self._loaded.source.tensors
        weights = changed_weights(usage.modules, params)
        objectives = self.model.objectives.values()
        if self.labels is None and any(objective.named_classes for objective in objectives):
            extra["id2label"] = {i: f"LABEL_{i}" for i in range(self.model.num_labels)}
            extra["label2id"] = {f"LABEL_{i}": i for i in range(self.model.num_labels)}
            extra.pop("num_labels", None)
        save_hf(
            directory,
            params,
            self.config,
            self.tokenizer,
            head=head,
            extra=extra,
            files=usage.sentence_files.result() | weights | _task_files(self._loaded),
            kept={name: tensors[name] for name in two_biases(tensors, self.config)[:1]},
            card=model_card(
                Path(directory).name,
                head,
                self.config,
                self.tokenizer and self.tokenizer.do_lower_case,
            ),
        )


_SIZES = {"input_ids": "vocab_size", "token_type_ids": "type_vocab_size"}


def _array(
    name: str, value: Any, config: BertConfig, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Returns ids below a size of the model, or a mask of booleans or 0 and 1, as int32."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} has rows of different lengths: pad them.") from error
    if shape not in (None, array.shape):
        raise ValueError(
            f"{name} has the shape {array.shape}, but input_ids has {shape}: give both one shape."
        )
    size = _SIZES.get(name)
    if array.size and array.dtype.kind not in ("iu" if size else "biuf"):
        raise ValueError(f"{name} has the type {array.dtype}: give integers.")
    # Models without token types ignore them, as in transformers.
    end = size and getattr(config, size) or 1 << 31
    inside = (array >= 0) & (array < end) if size else np.isin(array, (0, 1))
    if not inside.all():
        remedy = f"but the model has {size}={end}: use the tokenizer of the model."
        remedy = remedy if size else "give 1 for tokens and 0 for padding."
        raise ValueError(f"{name} range from {array.min()} to {array.max()}, {remedy}")
    return array.astype(np.int32)


def with_task(loaded: LoadedModel) -> tuple[LoadedModel, Task, dict[str, Any]]:
    """Restores the task of a loaded model; returns model, task and the content of `task.json`.

    The content is {} if the model directory has no `task.json`, or if the file describes a head
    other than the loaded one. A `FeatureTagger`, a token classifier trained on hidden states of the
    frozen encoder, replaces the head of the returned model.

    Raises:
        ValueError: no task uses the head of the model.
    """
    where, usage, description = loaded.source.where, loaded.source.usage, _description(loaded)
    files = usage.sentence_files.value or {}
    longest = loaded.config.max_length
    modules = None if description else usage.modules.value
    activation, limit, prompt = "", modules and modules.max_length, ""
    if loaded.head == RerankTask.head:
        with naming_read_errors(where):
            lowers = bool(loaded.tokenizer and loaded.tokenizer.do_lower_case)
            activation, limit, prompt = read_cross_encoder(
                loaded.source.config, files, lowers=lowers
            )
    if not description:  # as for embeddings
        longest = min(limit or loaded.max_length, longest)
    with naming_read_errors(where / "task.json" if description else where):
        loaded = with_saved_tagger(loaded, description)
        task = saved_task(
            loaded.head,
            loaded.labels,
            loaded.model.num_labels,
            loaded.source.config,
            description,
            longest,
            activation,
        )
        task, loaded = following(task, loaded, foreign=not description)
    if prompt and not isinstance(task, RerankTask):
        raise ValueError(
            f"default_prompt_name of {where} puts {prompt[:40]!r} before each text, but "
            "bertjax follows it only for scores of passages: use the logits, or delete it there."
        )
    if isinstance(task, RerankTask):
        task = dataclasses.replace(task, prompt=prompt)
    return loaded, task, description


def _task_files(loaded: LoadedModel) -> dict[str, str]:
    """Returns {"task.json": text} if the model keeps the head of its directory, or {}.

    A `FeatureTagger` is no head of the model, so its `task.json` is not returned.
    """
    description = _description(loaded)
    kind = description.get("label_kind")
    if loaded.head not in {task.head for task in KINDS if task.label_kind == kind}:
        return {}
    return {"task.json": json.dumps(description, indent=2)}


def _description(loaded: LoadedModel) -> dict[str, Any]:
    """Returns the content of `task.json`; {} if it describes another head than the loaded one."""
    # If the directory lacks parts of the loaded head, its task.json describes another head.
    has_head = set(loaded.absent).isdisjoint(loaded.model.parts)
    return loaded.source.usage.description.result() if has_head else {}


KINDS: tuple[type[Task], ...] = (
    *(ClassificationTask, MultiLabelTask, RegressionTask, RerankTask),
    *(TagTask, SpanTask, ChoiceTask, SimilarityTask),
)
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("task", "label_kind"), str),
    **dict.fromkeys(("max_length", "max_query_length", "max_answer_length"), Count),
    "doc_stride": Count | None,  # type: ignore
    **{"with_impossible": bool, "null_threshold": float, "temperature": Positive},
    **dict.fromkeys(("columns", "thresholds"), dict),
    **{"label_separator": str | None, "pairs": bool | None},
}
# Tokens per window with which other libraries usually train question answering.
SPAN_LENGTH = 384


def saved_task(
    head: str,
    labels: Sequence[str] | None,
    num_labels: int,
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    longest: int,
    activation: str = "",
) -> Task:
    """Creates the task that a saved model was fine-tuned on, from the files of the model.

    Args:
        labels: class names in the order of their ids; if None, LABEL_0, LABEL_1 and so on.
        config: the content of config.json, whose problem_type tells the kind of a classifier.
        description: the content of task.json; empty for a model from another library.
        longest: maximum input length of the model, in tokens.
        activation: what sentence-transformers applies to the logits, as `read_cross_encoder` says.

    Raises:
        ValueError: no task uses the head, an entry of task.json has a wrong type or value, the
            problem type or the activation does not fit the number of outputs, the ids of the
            classes are not 0, 1 and so on, or two classes whose probabilities are predicted have
            the same name.
    """
    for name, expected in _TYPES.items():
        if name in description:
            check(name, description[name], expected)
    kind = _kind_of(head, num_labels, config, description, activation)
    default_length = SPAN_LENGTH if kind is SpanTask else longest
    fields: dict[str, Any] = {
        "name": description.get("task", head),
        "max_length": min(description.get("max_length", default_length), longest),
    }
    if kind is SpanTask:
        saved = {k: description[k] for k in SAVED_FIELDS if description.get(k) is not None}
        return SpanTask(**fields, **saved)
    if kind is ChoiceTask:
        # The number of choices is unknown until the inputs to predict are read.
        return ChoiceTask(num_choices=0, **fields)
    if kind is SimilarityTask:
        return SimilarityTask(**fields)
    if kind is RerankTask:
        _check_outputs(kind, num_labels, activation)
        fields["activation"] = activation or "Sigmoid"
        return RerankTask(**fields, pairs=description.get("pairs"))
    # Models of old versions name no stride: taggers read windows, classifiers truncated texts.
    fields["doc_stride"] = description.get("doc_stride")
    if issubclass(kind, TextTask):
        fields["pairs"] = _pairs(description)
    if not description and issubclass(kind, TextTask):
        _check_outputs(kind, num_labels, activation)
    if issubclass(kind, RegressionTask):
        return kind(**fields)
    if kind is ClassificationTask:
        fields["temperature"] = float(description.get("temperature", 1.0))
    names = tuple(labels or (f"LABEL_{i}" for i in range(num_labels)))
    check_class_ids(labels, config)
    if kind is TagTask:
        return TagTask.of_labels(names, **fields)
    if kind is MultiLabelTask and (thresholds := description.get("thresholds")):
        numbers = [x for x in thresholds.values() if isinstance(x, float | int) and 0 <= x <= 1]
        if set(thresholds) != {*names} or len(numbers) < len(names):
            raise ValueError(
                f"thresholds={brief(thresholds)} in task.json should be a probability of each of "
                f"{brief(', '.join(names), 80)}: correct it, or copy or download the model again."
            )
        fields["thresholds"] = thresholds
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"id2label in config.json has {brief(', '.join(repeated), 80)} more than once, so that "
            "predictions would not tell the classes apart: give each id a name of its own there."
        )
    definition = TASKS.get(fields["name"])
    if definition is not None and definition.metric is not None and kind in definition.kinds:
        fields["metric"] = definition.metric
    return kind(labels=names, **fields)


def check_class_ids(labels: Sequence[str] | None, config: Mapping[str, Any]) -> None:
    """Raises ValueError if the ids of the class names `labels` in a config are not 0 to n - 1."""
    if not labels:
        return
    ids, count = sorted({int(i) for i in config.get("id2label") or ()}), len(labels)
    if ids and ids != [*range(count)]:
        raise ValueError(
            f"id2label in config.json has the ids {listed(ids)}, but the outputs of the model are "
            f"0 to {count - 1}, so that their names are unknown: correct the ids there."
        )


def _check_outputs(kind: type[Task], num_labels: int, activation: str) -> None:
    is_regression = issubclass(kind, RegressionTask | RerankTask)
    if is_regression != (num_labels == 1) and kind is not MultiLabelTask:
        raise ValueError(
            f"config.json has problem_type={kind.problem_type!r}, but the model has {num_labels} "
            "outputs: correct it there, or use the logits, load_pretrained(...)(texts)."
        )
    usual = ("Identity", "Softmax" if kind is ClassificationTask else "Sigmoid")
    if activation not in ("", *(ACTIVATIONS if kind is RerankTask else usual)):
        raise ValueError(
            f"sentence-transformers would apply the activation {brief(activation, 60)} to the "
            "outputs of the model, which bertjax does not: use the logits, "
            "load_pretrained(...)(texts), or delete the setting in the files of the model."
        )


def _pairs(description: Mapping[str, Any]) -> bool | None:
    """Returns whether inputs are pairs; old task.json files only have the columns of the file."""
    columns = description.get("columns") or {}
    of_columns = columns.get("pair") is not None if columns.get("text") is not None else None
    return description.get("pairs", of_columns)


def _kind_of(
    head: str,
    num_labels: int,
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    activation: str,
) -> type[Task]:
    """Selects the subclass of `Task` by label_kind in task.json, else by head and problem_type.

    Without both, a model with one output is a reranker, as CrossEncoder saved them before version
    4; transformers writes the problem_type of what it trains.
    """
    kinds = [kind for kind in KINDS if kind.head == head]
    for kind in (*kinds, *KINDS):
        if kind.label_kind == description.get("label_kind"):
            return kind
    problem = config.get("problem_type")
    is_scored = problem is None or (activation and problem == RegressionTask.problem_type)
    if RerankTask in kinds and num_labels == 1 and is_scored:
        return RerankTask
    for kind in kinds:
        if problem is not None and kind.problem_type == problem:
            return kind
    if not kinds:
        raise ValueError(
            f"The model has the head {head}, which no task uses: fine-tune the model "
            "with bertjax.finetune, or use bertjax.fill_mask or bertjax.embed."
        )
    return kinds[0]


def from_text(task: Task, text: str, pair: str | None) -> Example:
    """Creates an example from a text and, perhaps, a second text or passage.

    Raises:
        ValueError: the task is multiple choice, or is question answering and `pair` is None, or is
            tagging and `pair` is not None.
    """
    if isinstance(task, ChoiceTask):
        raise ValueError(
            "The model selects one of several choices: give text and choices in a file (--input)."
        )
    if isinstance(task, TagTask) and pair is not None:
        raise ValueError("The model tags the words of a single text: leave the second text out.")
    if isinstance(task, SpanTask) and pair is None:
        raise ValueError(
            "The model answers questions about a passage: give the passage as the second text "
            "(--pair)."
        )
    words = split_words(text) if isinstance(task, TagTask) else ()
    return Example(
        **{"id": "0", "where": "--text", "text": text, "pair": pair},
        words=tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
    )


def text_tuples(texts: Sequence[str | Sequence[str]], *, choices: bool = False) -> list[list[str]]:
    """Converts each element of `texts` to [text] or [text, pair], or [text, choice, choice, ...].

    Raises:
        ValueError: `texts` is a single string, a table or a dictionary, or no sequence, or an
            element has too few or too many texts.
    """
    tuples: list[list[str]] = []
    for index, element in enumerate(_elements(texts)):
        parts = [element] if isinstance(element, str) else element
        if (
            not isinstance(parts, list | tuple)
            or not (2 < len(parts) if choices else 0 < len(parts) < 3)
            or not all(isinstance(part, str) for part in parts)
        ):
            needed = "a text or a pair of texts"
            if choices:
                needed = "(text, choice, choice), a text and at least two choices"
            raise ValueError(f"texts[{index}] is {brief(repr(element), 60)}: give {needed}.")
        tuples.append(list(parts))
    return tuples


def _elements(texts: Any) -> Iterable[Any]:
    if isinstance(texts, str):
        raise ValueError("texts is one string: put it in a list.")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise ValueError(f"texts is {brief(repr(texts), 60)}: give a list of texts.")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterates over the columns' names
        raise ValueError(
            f"texts is a {type(texts).__name__}: give the list of its texts, such as "
            'list(table["text"]). bertjax.evaluate takes whole tables.'
        )
    return texts


def single_texts(texts: Sequence[str]) -> list[str]:
    """Returns texts, none of which may be a pair, as a list.

    Raises:
        ValueError: `texts` is a single string, a table or a dictionary, or an element is no text.
    """
    tuples = text_tuples(texts)
    for index, parts in enumerate(tuples):
        if len(parts) > 1:
            raise ValueError(f"texts[{index}] is a pair of texts: give one text.")
    return [text for (text,) in tuples]


def from_texts(task: Task, texts: Sequence[str | Sequence[str]]) -> tuple[Task, list[Example]]:
    """Creates one example from each text, pair, or tuple (text, choice, choice, ...) in `texts`.

    In tagging, an element may also be the list of the words of a sentence. For multiple choice, the
    returned task has the number of choices of the example with the most choices.

    Raises:
        ValueError: `texts` is a single string, or an element has too few or too many texts for the
            task.
    """
    if isinstance(task, TagTask):
        return task, [_to_tag(task, element, i) for i, element in enumerate(_elements(texts))]
    tuples = text_tuples(texts, choices=isinstance(task, ChoiceTask))
    if isinstance(task, ChoiceTask):
        task = dataclasses.replace(task, num_choices=max(map(len, tuples), default=1) - 1)
    examples = []
    for index, (text, *others) in enumerate(tuples):
        if isinstance(task, ChoiceTask):
            example = Example(id="", where="", text=text, choices=tuple(others))
        else:
            example = from_text(task, text, *(others or [None]))
        examples.append(dataclasses.replace(example, id=str(index), where=f"texts[{index}]"))
    return task, examples


def _to_tag(task: TagTask, element: Any, index: int) -> Example:
    where = f"texts[{index}]"
    if isinstance(element, str):
        return dataclasses.replace(from_text(task, element, None), id=str(index), where=where)
    words = tuple(element) if isinstance(element, list | tuple) else ()
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(
            f"{where} is {brief(repr(element), 60)}: give a text, or the list of its words."
        )
    return Example(id=str(index), where=where, words=words)
