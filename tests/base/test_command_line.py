"""The command line: light to start, one parser for all flags, help in groups."""

import ast
import dataclasses
import errno
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import bertjax
from bertjax import (
    benchmark,
    config,
    convert,
    embed,
    export,
    fill_mask,
    finetune,
    plan,
    predict,
    pretrain,
    score,
    search,
    train_tokenizer,
)
from bertjax.__main__ import COMMANDS, main
from bertjax.base import signals
from bertjax.config import FinetuneConfig, PrepareConfig, PretrainConfig, TrainTokenizerConfig
from bertjax.config.serve_config import ServeConfig
from bertjax.tasks import TASKS, finetune_config
from bertjax.tasks.registry import options_class
from tests.cases import others_weekly

HEAVY = "jax jaxlib flax orbax grain optax transformers torch sklearn scipy pyarrow".split()
ALL_TASKS = (*TASKS, "glue")
CONFIGS = [
    *(PretrainConfig, FinetuneConfig, PrepareConfig, TrainTokenizerConfig, predict.PredictConfig),
    *dict.fromkeys(options_class(task) for task in ALL_TASKS),
    *(score.ScoreConfig, convert.ConvertConfig, plan.PlanFlags, benchmark.BenchmarkFlags),
    *(embed.EmbedConfig, fill_mask.FillMaskConfig, search.SearchConfig, export.ExportConfig),
    ServeConfig,
    pretrain.PretrainFlags,
]
FILE = "configs/pretrain/bert_base.py"
NESTED = [
    *(config.Phase, config.OptimizerConfig, config.MeshConfig, config.DistributedConfig),
    *(config.DistillationConfig, config.BertConfig, config.TaggerConfig),
    *(config.LoraConfig, config.TeacherConfig),
]


def test_help_and_version_of_commands_load_nothing_heavy():
    code = f"""
import importlib, sys
for command in {[*COMMANDS]}:
    module = importlib.import_module(f"bertjax.{{command}}")
    config = command in ("plan", "pretrain")
    for argv in (["--help"], ["--version"], ["--config", {FILE!r}, "--help"] if config else ["-h"]):
        try:
            module.main(argv)
        except SystemExit as stop:
            assert not stop.code, (command, argv, stop.code)
        else:
            raise AssertionError((command, argv))
    print("loaded by", command, [name for name in {HEAVY} if name in sys.modules])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count(f"bertjax {bertjax.__version__}") == len(COMMANDS)
    loaded = [line for line in lines if line.startswith("loaded by")]
    assert loaded == [f"loaded by {command} []" for command in COMMANDS]


def test_configs_load_nothing_heavy():
    code = f"import sys, bertjax.config; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("task", ALL_TASKS)
def test_no_flag_is_both_of_a_task_and_of_every_fine_tuning(task):
    shared = {field.name for field in dataclasses.fields(FinetuneConfig)}
    own = {field.name for field in dataclasses.fields(options_class(task))}
    assert not own & (shared | {"config", "help", "version"})


@pytest.mark.parametrize(
    "task",
    others_weekly(sorted({*TASKS, "glue"} - {"ax"}), "classify", "embed", "glue", "qa", "tag"),
)
def test_the_help_of_a_task_has_its_flags_and_those_of_all_tasks(task, capsys):
    for words, nested in ((["--help"], False), (["--help", "all"], True)):
        with pytest.raises(SystemExit, match="0"):
            finetune.main([f"--task={task}", *words])
        text = capsys.readouterr().out
        places = [text.index(f"{title} options") for title in (task, "finetune", "training")]
        assert places == sorted(places)
        for field in dataclasses.fields(options_class(task)):
            assert f" --{field.name} " in text
        assert "--batch_size" in text and "--optimizer." in text and "--lora." in text
        assert ("--optimizer.learning_rate" in text) == ("--lora.rank" in text) == nested


def test_the_help_of_finetune_lists_the_tasks_and_no_flag_of_one_task(capsys):
    with pytest.raises(SystemExit, match="0"):
        finetune.main(["--help"])
    text = capsys.readouterr().out
    shared = {field.name for field in dataclasses.fields(FinetuneConfig)}
    for task in sorted({*TASKS, "glue"} - {"ax"}):
        assert f"  {task} " in text
        for field in dataclasses.fields(options_class(task)):
            assert f" --{field.name} " not in text
    assert all(f"--{name}" in text for name in shared - {"options"})
    assert "few_shot " not in text.partition("options")[0]


@pytest.mark.parametrize(("task", "bar"), [(None, 150), ("embed", 220)])
def test_the_help_of_finetune_is_short(task, bar, capsys):
    with pytest.raises(SystemExit, match="0"):
        finetune.main(["--help"] if task is None else ["--task", task, "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= bar


@pytest.mark.parametrize("config_class", [*CONFIGS, *NESTED], ids=lambda c: c.__name__)
def test_every_field_has_a_sentence(config_class):
    for field in dataclasses.fields(config_class):
        docs = (_docs_of(parent).get(field.name) for parent in config_class.__mro__[:-1])
        sentence = next(filter(None, docs), "")
        assert len(sentence) > 10 and sentence.endswith("."), field.name
        if field.default is None:
            assert "None" in sentence, f"{field.name} does not say what None means"


@functools.cache
def _docs_of(config_class: type) -> dict[str, str]:
    """Field -> the string below it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[field.target.id] = str(below.value.value)
    return docs


def test_help_has_the_flags_of_the_command_before_those_of_all_trainings(capsys):
    with pytest.raises(SystemExit, match="0"):
        pretrain.main(["--config", "configs/pretrain/bert_base.py", "--help", "all"])
    text = capsys.readouterr().out
    assert text.index("pretrain options") < text.index("training options")
    for flag in ("--config", "--export", "--data", "--phases.1.num_steps", "--model.hidden_size"):
        assert flag in text
    assert "900000" in text  # the defaults are those of the file


@pytest.mark.parametrize("spelling", [["--config", FILE], [f"--config={FILE}"]])
@pytest.mark.parametrize("last", [False, True])
def test_a_config_file_sets_the_defaults_wherever_its_flag_is(spelling, last):
    flags = [
        "--phases.0.num_steps=5",
        "--optimizer.learning-rate",
        "1e-3",
        "--model.num-hidden_layers=6",
    ]
    run, _ = pretrain.parse([*flags, *spelling] if last else [*spelling, *flags])
    assert [phase.num_steps for phase in run.phases] == [5, 100_000]
    assert run.phases[0].max_predictions == 20 and run.dtype == "bfloat16"
    assert (run.optimizer.learning_rate, run.model.num_hidden_layers) == (1e-3, 6)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--optimizer.decay_all", True),
        ("--optimizer.decay-all True", True),
        ("--optimizer.decay_all=true --seed 1", True),
        ("--no_sweep --optimizer.decay_all --seed 1", True),
        ("--optimizer.no_decay_all", False),
        ("--optimizer.decay_all FALSE", False),
    ],
)
def test_booleans_are_written_with_and_without_a_value(words, expected):
    assert finetune.parse(["--task=rte", *words.split()]).optimizer.decay_all is expected


def test_a_boolean_with_another_value_is_refused(capsys):
    with pytest.raises(SystemExit):
        finetune.parse(["--task=rte", "--optimizer.decay_all=maybe"])
    assert "maybe" in capsys.readouterr().err


def test_flags_of_a_command_and_of_its_run_are_read_together():
    flags = ["--config", FILE, "--seed", "3", "--json=-", "--no-advice"]
    run, asked = plan.parse([*flags, "--topology", "v3:4x4", "--compare=v4:2x2x1,v5e:4x4"])
    assert asked.topologies == ["v3:4x4", "v4:2x2x1", "v5e:4x4"]
    assert (asked.json, asked.advice, asked.config, run.seed) == ("-", False, FILE, 3)
    run, asked = benchmark.parse(["--config", FILE, "--phase=1", "--profile", "d"])
    assert (asked.phase, asked.steps, asked.profile, run.num_steps) == (1, 20, "d", 1_000_000)
    assert pretrain.parse(["--export", "--workdir", "w"])[1].export
    assert not hasattr(run, "config"), "the config of a run holds what the run depends on alone"


def test_booleans_tuples_and_strings_of_nested_fields():
    run, _ = pretrain.parse(
        [
            *(
                "--model.no_add_pooling_layer",
                "--model.sinusoidal_pos_embds",
                "--model.mlm_activation",
            ),
            *("relu", "--model.classifier_dropout=None", "--whole_word_masking"),
            *("--distillation.teacher=t", "--model.num_hidden_layers=2"),
            *("--distillation.layers", "0", "2", "--mesh.data=-1"),
        ]
    )
    assert not run.model.add_pooling_layer and run.model.sinusoidal_pos_embds
    assert (run.model.mlm_activation, run.model.classifier_dropout) == ("relu", None)
    assert run.whole_word_masking and run.distillation.layers == (0, 2)
    tagged = finetune.parse(["--task=tag", "--ignore_columns", "--tagger.layers", "-4", "-1"])
    assert tagged.tagger.layers == (-4, -1) and tagged.options.ignore_columns == ()


@pytest.mark.parametrize("seed", ["4294967296", "-1"])
def test_a_seed_that_jax_cannot_take_is_refused_when_flags_are_read(seed, capsys):
    for parse, flags in ((pretrain.parse, []), (finetune.parse, ["--task=rte"])):
        with pytest.raises(SystemExit, match="2"):
            parse([*flags, f"--seed={seed}"])
        assert f"seed={seed}: choose it in [0, 2^32)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="seed=4294967290 with seeds=7"):
        finetune_config(task="rte", seed=2**32 - 6, seeds=7)
    assert finetune_config(task="rte", seed=2**32 - 7, seeds=7).seed + 6 == 2**32 - 1


def test_train_tokenizer_has_every_flag_that_the_reader_of_corpora_recommends():
    text = "".join(
        p.read_text() for p in (Path(bertjax.__file__).parent / "data/text").glob("*.py")
    )
    flags = set(re.findall(r"--([a-z_]+)\b", text)) - {
        "file_format",
        "concatenate",
    }  # of `tfds build` and `tar`
    assert "tfds_data_dir" in flags
    for config_class in (TrainTokenizerConfig, PrepareConfig):
        assert flags <= {field.name for field in dataclasses.fields(config_class)}


def test_bertjax_alone_lists_the_commands(capsys):
    for argv in ([], ["--help"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(f"  {name} " in out and sentence in out for name, sentence in COMMANDS.items())
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bertjax {bertjax.__version__}\n"


def test_an_unknown_command_gets_the_nearest_name(capsys):
    assert main(["fine-tun"]) == 2
    assert "Unknown command 'fine-tun'. Did you mean 'finetune'?" in capsys.readouterr().err


def test_every_command_can_be_called_by_its_name(capsys):
    package = Path(bertjax.__file__).parent
    texts = {path.stem: path.read_text() for path in package.glob("[!_]*.py")}
    mains = {name for name, text in texts.items() if re.search(r"\n(def |parse, )main\b", text)}
    assert mains == COMMANDS.keys()
    for command in ("score", "train-tokenizer"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--version"])
    assert main(["convert", "/nowhere", "there"]) == 1
    assert "error: " in capsys.readouterr().err


def test_python_m_bertjax_runs_a_command():
    command = [sys.executable, "-m", "bertjax", "prepare", "--outptu=x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--output" in done.stderr


def test_modules_of_commands_are_functions_of_the_python_api():
    code = "import bertjax; print(callable(bertjax.prepare)); from bertjax import prepare"
    done = subprocess.run(
        [sys.executable, "-c", code + "; prepare.main(['--version'])"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["True", f"bertjax {bertjax.__version__}"], done.stderr
    for name in ("finetune", "prepare", "pretrain", "train_tokenizer"):
        module: Any = importlib.import_module(f"bertjax.{name}")
        assert getattr(bertjax, name) is module and name in dir(bertjax)
        assert "config" in inspect.signature(module).parameters


def test_a_config_or_its_fields_by_name(tmp_path):
    made = config.config_from(PrepareConfig, None, {"input": "a", "tokenizer": "t", "output": "o"})
    assert made.input == ("a",)
    again = config.config_from(PrepareConfig, made, {"max_length": [16, 32]})
    assert again == dataclasses.replace(made, max_length=(16, 32))
    default = FinetuneConfig.optimizer
    changed = config.config_from(FinetuneConfig, None, {"optimizer": {"learning_rate": 2e-4}})
    assert changed.optimizer == dataclasses.replace(default, learning_rate=2e-4)
    for name in ("learning_rate", "optimizer.learning_rate", "lerning_rate"):
        with pytest.raises(TypeError, match=r"Write optimizer={'learning_rate': 0.1}\."):
            config.config_from(FinetuneConfig, None, {name: 0.1})
    with pytest.raises(TypeError, match="Unknown field 'learning_rat'.*'learning_rate'"):
        config.config_from(FinetuneConfig, None, {"optimizer": {"learning_rat": 2e-4}})
    with pytest.raises(TypeError, match="Unknown field 'max_lenght'. Did you mean 'max_length'"):
        bertjax.prepare(input="a", tokenizer="t", output="o", max_lenght=3)
    with pytest.raises(TypeError, match="pass a PrepareConfig, or its fields as"):
        bertjax.prepare(PretrainConfig())


def test_prepare_from_python_returns_the_metadata(corpus, tmp_path):
    metadata = bertjax.prepare(
        input=str(corpus / "text.txt"),
        tokenizer=str(corpus / "tokenizer"),
        output=str(tmp_path / "data"),
        max_length=16,
        num_processes=1,
    )
    assert metadata.splits["train"].lengths["16"].sequences > 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"), "9 bytes"),
        (MemoryError(), "no memory is left"),
    ],
)
def test_a_lack_of_memory_is_one_line_with_a_remedy(monkeypatch, capsys, error, message):
    def run(*_):
        raise error

    monkeypatch.setattr(finetune, "_finetune", run)
    assert finetune.main(["--task=rte"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("error: Out of memory")
    assert message in err and "--accumulation_steps" in err


@pytest.mark.parametrize("name", [None, "a.txt"])
def test_an_error_of_the_file_system_says_where_it_is_or_how_to_find_out(name, capsys):
    def run():
        raise OSError(errno.EROFS, "Read-only file system", *([name] if name else []))

    assert signals.run_reporting_errors(run) == 1
    err = capsys.readouterr().err
    assert ("a.txt" in err) != ("BERTJAX_TRACEBACK=1 in front of the command shows where" in err)


def test_another_error_of_the_compiler_keeps_its_traceback():
    def run():
        raise RuntimeError("INTERNAL: a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        signals.run_reporting_errors(run)


def test_a_reader_that_ends_early_gets_no_message():
    code = "from bertjax.base.signals import run_reporting_errors as r; import sys; "
    code += "sys.exit(r(lambda: [print(i) for i in range(10**6)]))"
    command = f'"{sys.executable}" -c "{code}" | head -n 1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (141, "0\n", "")


def test_another_broken_pipe_than_standard_output_is_an_error():
    code = "from bertjax.base.signals import run_reporting_errors as r; import sys\n"
    code += "def run(): raise BrokenPipeError(32, 'Broken pipe', 'the socket of a bucket')\n"
    code += "sys.exit(r(run))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the socket of a bucket" in done.stderr and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("parse", "words", "message"),
    [
        (
            finetune.parse,
            "--task=classify --num_epoch 3 --train a.csv",
            "has no flag --num_epoch. Did you mean '--num_epochs'?",
        ),
        (predict.parse, "--modle x --text a", "has no flag --modle. Did you mean '--model'?"),
        (
            finetune.parse,
            "--task=rte --learning_rate=1e-3",
            "Did you mean --optimizer.learning_rate?",
        ),
        (
            finetune.parse,
            "--task=classify --matryoshka 8",
            "--matryoshka belongs to --task=embed; --task=classify has no such option.",
        ),
        (finetune.parse, "--matryoshka 8", "--matryoshka belongs to --task=embed: give --task."),
        (
            finetune.parse,
            "--task=embed --teacher.model=t",
            "--teacher.model belongs to --task=cola",
        ),
        (
            train_tokenizer.parse,
            "--input a --no_strip_accent --output b",
            "has no flag --no_strip_accent. Did you mean '--no_strip_accents'?",
        ),
        (finetune.parse, "--task=rte --rank=8", "Did you mean --lora.rank?"),
        (pretrain.parse, "--lr 1e-4", "Did you mean --optimizer.learning_rate?"),
        (pretrain.parse, "--optimizer.lr=1e-4", "Did you mean '--optimizer.learning_rate'?"),
        (pretrain.parse, "--config bert_base --phases.1.num_step 5", "'--phases.0.num_steps'?"),
        (pretrain.parse, "--config bert_base --phases.num_steps 5", "'--phases.0.num_steps'?"),
        (pretrain.parse, "--phases.num_steps 5", "phases of a config: add --config FILE."),
        (pretrain.parse, "--phases.0.num_steps 5", "phases of a config: add --config FILE."),
    ],
)
def test_an_unknown_flag_gets_the_nearest_name_and_its_value_is_not_listed(
    parse, words, message, capsys
):
    with pytest.raises(SystemExit, match="2"):
        parse(words.split())
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[0] and len(lines) == 2 and lines[1].endswith("--help")


def test_help_says_how_a_boolean_is_set_to_false(capsys):
    with pytest.raises(SystemExit, match="0"):
        train_tokenizer.parse(["--help"])
    assert "--no_FLAG sets a BOOL to False" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model", "m", "--input", "a"],
            "--output must be given. All flags: python -m bertjax.e",
        ),
        (["--model=m", "--out=a.npy"], "bertjax embed has no flag --out."),
        (["--model=m", "--input=a", "--output", "a.csv"], "--output a.csv: the name must end in"),
    ],
)
def test_what_lacks_or_makes_no_sense_is_one_line_without_a_box(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        embed.parse(words)
    first = capsys.readouterr().err.splitlines()[0]
    assert end.value.code == 2 and first.startswith(f"error: {message}")


def test_several_texts_are_refused_with_the_way_to_predict_them(capsys):
    for words in (["--text", "a", "b"], ["--text=a", "b"], ["--text", "a", "--text", "b"]):
        with pytest.raises(SystemExit, match="2"):
            predict.parse(["--model", "m", *words])
        assert "--text takes one text, but 2 were given" in capsys.readouterr().err
    assert predict.parse(["--text", "a", "--model", "m"]).text == "a"


@pytest.mark.parametrize(
    "words", [["--workdir", "run-\udcff"], ["--data=d\udce9t\udce9"], ["--init", "\udc80"]]
)
def test_arguments_that_are_no_utf8_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        pretrain.main(words)
    assert stop.value.code == 2
    assert "is not UTF-8" in capsys.readouterr().err
