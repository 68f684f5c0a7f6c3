"""Reads tables of users for a task that is given by its name."""

from bertjax.tasks.registry import options_class
from bertjax.tasks.sources import own_files


def read_tables(task, **settings):
    return own_files.read_tables(options_class(task).table, **settings)
