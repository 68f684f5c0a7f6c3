"""Configs that come with bertjax."""
