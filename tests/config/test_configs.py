"""The configs that come with bertjax load, build and say what they promise."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bertjax import pretrain
from bertjax.config import (
    DistributedConfig,
    FinetuneConfig,
    OptimizerConfig,
    Phase,
    PrepareConfig,
    PretrainConfig,
    TrainTokenizerConfig,
    config_names,
    differences,
    load_config_file,
)
from bertjax.model import BertConfig, named_config
from bertjax.tasks import TASKS
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.embedding import EmbedOptions
from bertjax.train.optimizer import make_schedule

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "pretrain").glob("[!_]*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_loads_and_has_a_schedule(path):
    config = load_config_file(str(path), PretrainConfig)
    assert isinstance(config, PretrainConfig)
    assert float(make_schedule(config.optimizer, config.phases)(config.num_steps)) == 0.0
    assert len(path.read_text().splitlines()) <= 60
    assert f"--config configs/pretrain/{path.name}" in path.read_text()


@pytest.mark.parametrize("name", ["bert-tiny", "deberta-v3-small"])
def test_a_config_differs_from_others_alone(name):
    fields, others = (
        dataclasses.asdict(named_config(name, num_hidden_layers=layers)) for layers in (2, 3)
    )
    assert differences(fields, fields) == []
    assert differences(fields, others) == ["num_hidden_layers: 3 -> 2"]


@pytest.mark.parametrize(
    ("name", "model"), [("base", "bert-base-uncased"), ("large", "bert-large-uncased")]
)
def test_base_and_large_are_the_recipe_of_the_paper(name, model):
    config = load_config_file(f"configs/pretrain/bert_{name}.py", PretrainConfig)
    assert config.model == named_config(model)
    assert [(p.num_steps, p.max_length, p.batch_size) for p in config.phases] == [
        (900_000, 128, 256),
        (100_000, 512, 256),
    ]
    optimizer = config.optimizer
    assert (optimizer.recipe, optimizer.learning_rate, optimizer.warmup_steps) == (
        "google",
        1e-4,
        10_000,
    )
    assert (optimizer.b1, optimizer.b2, optimizer.weight_decay) == (0.9, 0.999, 0.01)
    assert (config.model.hidden_dropout_prob, config.mlm_probability) == (0.1, 0.15)


def test_an_unknown_config_names_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="Did you mean 'configs/pretrain/bert_base.py'"):
        load_config_file("configs/pretrain/bert_bas.py", PretrainConfig)


def test_packaged_configs_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        load_config_file("configs/pretrain/bert_tiny.py", PretrainConfig).model.hidden_size == 128
    )


def test_a_config_that_comes_with_bertjax_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = load_config_file("configs/pretrain/bert_base.py", PretrainConfig)
    assert load_config_file("bert_base", PretrainConfig) == base
    assert load_config_file("rte", FinetuneConfig).task == "rte"
    (tmp_path / "bert_base").write_text("from bertjax.config import PretrainConfig\n")
    with pytest.raises(ValueError, match="defines no `config`"):
        load_config_file("bert_base", PretrainConfig)  # a file of the user has precedence


def test_the_names_of_configs_are_those_of_the_class():
    assert config_names(PretrainConfig) == [path.stem for path in CONFIGS]
    assert not {*config_names(PretrainConfig)} & {*config_names(FinetuneConfig)}
    names = ", ".join(config_names(FinetuneConfig))
    with pytest.raises(FileNotFoundError, match=f"Did you mean 'rte'.*with bertjax: {names};"):
        load_config_file("rtee", FinetuneConfig)
    with pytest.raises(FileNotFoundError, match="No config file 'rte'.*with bertjax: albert_base,"):
        load_config_file("rte", PretrainConfig)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("PretrainConfig(log_evry=3)", "Did you mean 'log_every'"),
        ("PretrainConfig(model=BertConfig(hiden_size=32))", "Did you mean 'hidden_size'"),
        ("PretrainConfig(model=BertConfig(hidden_size='32'))", "must be an integer"),
        ("3", "defines no `config`"),
    ],
)
def test_a_config_file_with_a_mistake_is_named_with_the_remedy(tmp_path, line, message):
    file = tmp_path / "mine.py"
    file.write_text(
        "from bertjax.config import PretrainConfig\n"
        f"from bertjax.model import BertConfig\nconfig = {line}\n"
    )
    with pytest.raises(ValueError, match=message) as error:
        load_config_file(str(file), PretrainConfig)
    assert "mine.py" in str(error.value)


def parse(*flags):
    return pretrain.parse(["--config", "configs/pretrain/bert_base.py", *flags])[0]


def test_flags_override_nested_and_numbered_fields_in_every_spelling():
    config = parse(
        "--optimizer.learning_rate=3e-4", "--phases.1.num-steps", "5", "--model.hidden_act", "relu"
    )
    assert config.optimizer.learning_rate == 3e-4
    assert config.phases[1] == dataclasses.replace(config.phases[1], num_steps=5)
    assert (config.phases[0].num_steps, config.model.hidden_act) == (900_000, "relu")


def test_an_unknown_field_is_refused_with_the_nearest_name(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse("--optimizer.learning_rat=1")
    assert exit_.value.code == 2
    assert "--optimizer.learning_rate" in "".join(capsys.readouterr())


TASK_CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "finetune").glob("[!_]*.py"))


@pytest.mark.parametrize("path", TASK_CONFIGS, ids=lambda p: p.stem)
def test_the_config_of_a_task_is_of_that_task(path):
    config = load_config_file(str(path), FinetuneConfig)
    if path.stem != "few_shot":  # it is for any task with classes
        assert config.task == path.stem
        assert f"bertjax.finetune --task={path.stem}" in path.read_text()
    assert config.optimizer.warmup_proportion == 0.1
    assert len(path.read_text().splitlines()) <= 60


def test_every_task_that_can_be_trained_has_a_config():
    assert {path.stem for path in TASK_CONFIGS} - {"glue", "few_shot"} == TASKS.keys() - {"ax"}


def test_a_config_of_another_kind_of_run_is_refused():
    with pytest.raises(ValueError, match="defines no `config`"):
        load_config_file("configs/finetune/rte.py", PretrainConfig)


def test_what_a_model_predicts_must_fit_what_it_sees():
    decoder = BertConfig(is_decoder=True)
    with pytest.raises(ValueError, match="predict='next_token' with model.is_decoder=False"):
        PretrainConfig(predict="next_token")
    with pytest.raises(ValueError, match="predict='masked' with model.is_decoder=True"):
        PretrainConfig(model=decoder)
    PretrainConfig(model=decoder, predict="next_token")
    phase = Phase(num_steps=1, max_length=8, batch_size=1, max_predictions=3)
    settings: dict[str, dict[str, Any]] = {
        "max_ngram": {"max_ngram": 3},
        "mlm_probability": {"mlm_probability": 0.2},
        "max_predictions": {"phases": (phase,)},
    }
    for name, given in settings.items():
        with pytest.raises(ValueError, match=f"{name}=.* has no effect"):
            PretrainConfig(model=decoder, predict="next_token", **given)
    with pytest.raises(ValueError, match="max_ngram=0: it must be at least 1"):
        PretrainConfig(max_ngram=0)


CLAIM = "in the grid of Devlin et al. 2018"


@pytest.mark.parametrize("path", TASK_CONFIGS, ids=lambda p: p.stem)
def test_only_a_config_in_the_grid_of_the_paper_claims_to_be(path):
    """Devlin et al. 2018, A.3: batches of 16 and 32, 5e-5 to 2e-5, 2 to 4 epochs."""
    config = load_config_file(str(path), FinetuneConfig)
    in_grid = (
        config.batch_size in (16, 32)
        and config.optimizer.learning_rate in (5e-5, 3e-5, 2e-5)
        and config.num_epochs in (2, 3, 4)
    )
    assert in_grid or CLAIM not in " ".join(path.read_text().split())


def test_some_configs_claim_to_be_in_the_grid_of_the_paper():
    assert any(CLAIM in " ".join(path.read_text().split()) for path in TASK_CONFIGS)


FIELDS: dict[Any, dict[str, Any]] = {
    Phase: {"num_steps": 1, "max_length": 8, "batch_size": 1},
    PrepareConfig: {"input": ("a",), "tokenizer": "t", "output": "o"},
    TrainTokenizerConfig: {"input": ("a",), "output": "o"},
}


@pytest.mark.parametrize(
    ("config_class", "value", "message"),
    [
        (OptimizerConfig, {"recipe": "adam_w"}, "recipe='adam_w' is not known. Did you mean 'adam"),
        (OptimizerConfig, {"decay": "cosine"}, "Known: polynomial, one_minus_sqrt"),
        (OptimizerConfig, {"schedule": "cosine"}, "schedule='cosine' is not known"),
        (
            OptimizerConfig,
            {"learning_rate": float("nan")},
            "=nan: it must be positive",
        ),
        (Phase, {"learning_rate_curve": "restarts"}, "Did you mean 'restart'"),
        (Phase, {"num_steps": 2.5}, "num_steps=2.5: it must be an integer"),
        (PretrainConfig, {"predict": "maskd"}, "Did you mean 'masked'"),
        (PretrainConfig, {"random_words": "some"}, "random_words='some' is not known"),
        (PretrainConfig, {"new_positions": "tiled"}, "Did you mean 'tile'"),
        (PretrainConfig, {"head": "mlm"}, "head='mlm' is not known"),
        (PretrainConfig, {"dtype": "float16"}, "dtype='float16' is not known"),
        (PretrainConfig, {"model": {}}, "model={}: it must be a BertConfig"),
        (FinetuneConfig, {"remat": "all"}, "Known: none, selective, dots, full"),
        (FinetuneConfig, {"attention": ""}, "attention='' is not known"),
        (EmbedOptions, {"pooling": "maxx"}, "pooling='maxx' is not known"),
        (ClassifyOptions, {"class_weights": "balance"}, "Did you mean 'balanced'"),
        (FinetuneConfig, {"seed": True}, "seed=True: it must be an integer"),
        (PrepareConfig, {"objective": "nps"}, "Did you mean 'nsp'"),
        (PrepareConfig, {"errors": "ignore"}, "Known: strict, replace"),
        (TrainTokenizerConfig, {"kind": "wordpeice"}, "Did you mean 'wordpiece'"),
    ],
)
def test_values_that_nobody_knows_are_refused_from_python(config_class, value, message):
    with pytest.raises(ValueError, match=message):
        config_class(**FIELDS.get(config_class, {}) | value)


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":80", "h:99999", "h:0", "h:-1", "h:٣", "h:1_0", "h:x"]
)
def test_the_address_of_the_coordinator_has_a_port(address):
    with pytest.raises(ValueError, match="has no port from 1 to 65535"):
        DistributedConfig(coordinator_address=address, num_processes=2, process_id=0)
    DistributedConfig(coordinator_address="[::1]:65535", num_processes=2, process_id=0)
