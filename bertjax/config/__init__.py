"""Run configs: frozen dataclasses, loaded from a file, overridden by flags, saved with the run.

A config file is Python that defines `config`. `--config` looks in the current folder, then among
the ones that come with the package.
"""

from bertjax.config.config_file import defaults_of, differences, load_config_file
from bertjax.config.distillation_config import DistillationConfig
from bertjax.config.finetune_config import FinetuneConfig
from bertjax.config.prepare_config import PrepareConfig, TrainTokenizerConfig
from bertjax.config.pretrain_config import Phase, PretrainConfig
from bertjax.config.training import (
    DistributedConfig,
    MeshConfig,
    OptimizerConfig,
    TrainingConfig,
)

__all__ = [
    "DistillationConfig",
    "DistributedConfig",
    "FinetuneConfig",
    "MeshConfig",
    "OptimizerConfig",
    "Phase",
    "PrepareConfig",
    "PretrainConfig",
    "TrainTokenizerConfig",
    "TrainingConfig",
    "defaults_of",
    "differences",
    "load_config_file",
]
