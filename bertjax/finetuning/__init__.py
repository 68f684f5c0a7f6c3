"""Fine-tuning: one run, and what is made of several."""

from bertjax.finetuning.run import Run, load_for_task

__all__ = ["Run", "load_for_task"]
