"""What `bertjax.pretrain` does: a run."""
