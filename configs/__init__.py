"""Config files of the package."""
