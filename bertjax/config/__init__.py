"""Configs of the commands: frozen dataclasses, read from a config file and overridden by flags.

A config file is Python code that assigns a config to the variable `config`. `--config FILE` looks
for FILE in the current folder, then among the config files of the package. The package
`bertjax.config` does not import jax.
"""

from bertjax.config.config_file import (
    config_from,
    config_names,
    defaults_of,
    differences,
    load_config_file,
)
from bertjax.config.finetune_config import FinetuneConfig, LoraConfig, TeacherConfig
from bertjax.config.model import MODEL_SIZES, BertConfig, TaggerConfig, named_config
from bertjax.config.prepare_config import PrepareConfig, TrainTokenizerConfig
from bertjax.config.pretrain_config import (
    DistillationConfig,
    Phase,
    PretrainConfig,
    RtdConfig,
    model_at,
)
from bertjax.config.task_options import TaskOptions
from bertjax.config.training import DistributedConfig, MeshConfig, OptimizerConfig, TrainingConfig

__all__ = [
    "MODEL_SIZES",
    "BertConfig",
    "DistillationConfig",
    "DistributedConfig",
    "FinetuneConfig",
    "LoraConfig",
    "MeshConfig",
    "OptimizerConfig",
    "Phase",
    "PrepareConfig",
    "PretrainConfig",
    "RtdConfig",
    "TaggerConfig",
    "TaskOptions",
    "TeacherConfig",
    "TrainTokenizerConfig",
    "TrainingConfig",
    "config_from",
    "config_names",
    "defaults_of",
    "differences",
    "load_config_file",
    "model_at",
    "named_config",
]
