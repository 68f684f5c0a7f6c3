"""Fine-tuning with a teacher: classes of any order, resumed runs, teachers of another kind."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax import finetune
from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.inference.saved_task import with_task
from bertjax.tasks import finetune_config, make_task
from bertjax.tokenization import train_wordpiece
from bertjax.train import facts
from bertjax.train.distillation import load_task_teacher
from bertjax.weights import load_model, save_hf
from tests.lines import metrics_of
from tests.steps import run_until


@pytest.fixture(scope="module")
def config(encoder, files) -> FinetuneConfig:
    """An epoch of four updates of classification, dropout on."""
    return finetune_config(
        task="classify",
        init=str(encoder),
        **files["classify"],
        max_length=32,
        batch_size=8,
        num_epochs=1,
        optimizer=OptimizerConfig(
            recipe="adamw", learning_rate=3e-3, schedule="hf", warmup_steps=1
        ),
        unroll=1,
        log_every=2,
    )


@pytest.fixture(scope="module")
def encoder_with_head(encoder):
    """(labels, kind of problem) -> parameters of a classifier on the encoder, without training."""
    loaded = load_model(encoder, "encoder")
    rng = np.random.default_rng(0)

    def of(count):
        size = loaded.config.hidden_size
        kernel = rng.normal(size=(size, count)).astype(np.float32)
        classifier = {"kernel": kernel, "bias": rng.normal(size=count).astype(np.float32)}
        return {"bert": loaded.params["bert"], "classifier": classifier}

    return of


@pytest.fixture(scope="module")
def saved_teacher(tmp_path_factory, encoder, encoder_with_head, tokenizer):
    """Writes a model directory that answers by labels."""

    def save(labels, problem="single_label_classification", params=None, tokenizer=tokenizer):
        folder = tmp_path_factory.mktemp("teacher") / "model"
        save_hf(
            folder,
            encoder_with_head(len(labels)) if params is None else params,
            load_model(encoder, "encoder").config,
            tokenizer,
            head="sequence_classification",
            extra={
                "id2label": {str(i): label for i, label in enumerate(labels)},
                "label2id": {label: i for i, label in enumerate(labels)},
                "problem_type": problem,
            },
        )
        return str(folder)

    return save


def loaded_for(config):
    task = make_task(config.task, config.options)
    return task, facts.load_for_task(config, task)


def test_the_classes_of_a_teacher_are_put_in_the_order_of_the_task(config, saved_teacher):
    here = finetune_config(config, teacher={"model": saved_teacher(["low", "high"])})
    task, loaded = loaded_for(here)
    assert task.labels == ("high", "low")
    teacher = load_task_teacher(here, task, loaded)
    saved = with_task(load_model(here.teacher.model, None))[0].params["classifier"]
    for name, values in teacher.params["classifier"].items():
        np.testing.assert_array_equal(values, saved[name][..., ::-1])


def test_teachers_that_do_not_fit_are_refused(config, saved_teacher, files, sentences, tokenizer):
    task, loaded = loaded_for(config)

    def teach(labels, **given):
        max_length = given.pop("max_length", 32)
        teacher = {"model": saved_teacher(labels, **given)}
        here = finetune_config(config, teacher=teacher, max_length=max_length)
        load_task_teacher(here, task, loaded)

    with pytest.raises(ValueError, match="has the classes low, mid, but the task has high, low"):
        teach(["low", "mid"])
    with pytest.raises(ValueError, match="predicts multi_label, but classify needs classes"):
        teach(["low", "high"], problem="multi_label_classification")
    with pytest.raises(ValueError, match="reads at most 64 tokens"):
        teach(["low", "high"], max_length=80)
    foreign = train_wordpiece([s[::-1] for s in sentences], vocab_size=tokenizer.vocab_size)
    with pytest.raises(ValueError, match="must read the same tokens"):
        teach(["low", "high"], tokenizer=foreign)
    numbers = finetune_config(
        config,
        task="regress",
        **files["regress"],
        teacher={"model": "anywhere", "temperature": 3.0},
    )
    with pytest.raises(ValueError, match="--teacher.temperature 3.0: the labels of regress"):
        load_task_teacher(numbers, *loaded_for(numbers))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"weight": 0.0}, r"weight=0.0: choose it in \(0, 1\]"),
    ],
)
def test_values_out_of_range_are_refused(config, fields, message):
    with pytest.raises(ValueError, match=message):
        finetune_config(config, teacher={"model": "t", **fields})


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_taught_student_resumes_and_accumulates_as_if_it_had_not(
    config, saved_teacher, encoder_with_head, tmp_path, monkeypatch
):
    params = encoder_with_head(2)
    teachers = [saved_teacher(["low", "high"], params=params) for _ in range(2)]
    here = finetune_config(config, teacher={"model": teachers[0], "weight": 0.7})
    whole, resumed, micro = (tmp_path / name for name in ("whole", "resumed", "micro"))
    finetune.run(finetune_config(here, workdir=str(whole)))
    lines = [x for x in metrics_of(whole) if "train/loss" in x]
    for line in lines:
        mixed = 0.3 * line["train/hard_loss"] + 0.7 * line["train/soft_loss"]
        np.testing.assert_allclose(line["train/loss"], mixed, rtol=1e-5)
    assert f"| taught by | {teachers[0]} |" in (whole / "model/README.md").read_text()

    # The teacher may have moved meanwhile: it is known by its weights.
    stopped = finetune_config(here, workdir=str(resumed))
    run_until(3, lambda: finetune.run(stopped), monkeypatch)
    finetune.run(finetune_config(here, workdir=str(resumed), teacher={"model": teachers[1]}))
    assert metrics_of(resumed) == metrics_of(whole)
    found, expected = (load_file(w / "model/model.safetensors") for w in (resumed, whole))
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)

    stranger = saved_teacher(["low", "high"])
    other = finetune_config(here, workdir=str(whole), teacher={"model": stranger})
    with pytest.raises(ValueError, match="teacher_weights: '"):
        finetune.run(other)
    without = finetune_config(config, workdir=str(whole))
    with pytest.raises(ValueError, match=r"teacher_weights: '\w+' -> None"):
        finetune.run(without)

    finetune.run(finetune_config(here, workdir=str(micro), accumulation_steps=2))
    for a, b in zip(lines, metrics_of(micro), strict=False):
        np.testing.assert_allclose(a["train/soft_loss"], b["train/soft_loss"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["regress", "qa", "multi", "tag", "choice"])
def test_every_kind_of_task_can_be_taught_and_comes_nearer_to_its_teacher(
    config, files, tmp_path, kind
):
    task = "classify" if kind == "multi" else kind
    here = finetune_config(config, task=task, **files[kind], max_length=60)
    finetune.run(finetune_config(here, workdir=str(tmp_path / "teacher"), num_epochs=8))
    student = finetune_config(
        here,
        teacher={"model": str(tmp_path / "teacher" / "model"), "weight": 1.0},
        workdir=str(tmp_path / "student"),
        num_epochs=8,
    )
    finetune.run(student)
    lines = metrics_of(tmp_path / "student")
    losses = [line["train/soft_loss"] for line in lines if "train/soft_loss" in line]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_tagger_on_a_frozen_encoder_teaches_and_learns(config, files, tmp_path):
    here = finetune_config(config, task="tag", **files["tag"], max_length=60)
    tagger = finetune_config(here, tagger={"layers": -1}, workdir=str(tmp_path / "tagger"))
    finetune.run(tagger)
    teacher = {"model": str(tmp_path / "tagger" / "model")}
    again = finetune_config(tagger, teacher=teacher, workdir=str(tmp_path / "again"))
    finetune.run(again)
    found, encoder = (
        load_file(f"{path}/model.safetensors")
        for path in (tmp_path / "again" / "model", config.init)
    )
    kernels = [
        next(x for name, x in file.items() if name.endswith("layer.0.attention.self.query.weight"))
        for file in (found, encoder)
    ]
    np.testing.assert_array_equal(*kernels)
