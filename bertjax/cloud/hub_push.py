"""Uploads of model directories to repositories on the Hugging Face Hub."""

import re
from pathlib import Path

from bertjax.cloud.addresses import repeated
from bertjax.cloud.hub_files import MAIN, explained_hub

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def create_repository(repository: str, *, private: bool = False) -> None:
    """Creates a model repository unless it exists, which also checks the user's rights.

    A run calls this function before its first step, so that it does not fail at its end.

    Args:
        repository: OWNER/NAME.
        private: whether a new repository is private.

    Raises:
        OSError: the Hub cannot be reached.
        PermissionError: there is no token, or it may not write to this repository.
        ValueError: the name is not OWNER/NAME.
    """
    import huggingface_hub  # a slow import

    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(
            f"push_to_hub={repository!r} is not the name of a repository: write OWNER/NAME, where "
            "OWNER is your name on the Hub or that of an organisation."
        )
    if huggingface_hub.get_token() is None:
        raise PermissionError(
            f"There is no token of the Hub to push to {repository}: log in with `hf auth login`, "
            "or set HF_TOKEN to a token with the right to write."
        )

    def create() -> None:
        with explained_hub(repository, "model"):
            huggingface_hub.HfApi().create_repo(repository, private=private, exist_ok=True)

    repeated(create, repository, "written")


def push_folder(folder: Path, repository: str, *, branch: str = MAIN) -> None:
    """Uploads the files of a folder to a branch, as one commit that makes all visible at once.

    Files that the Hub has already, also of an interrupted upload, are not uploaded again. A branch
    that does not exist is created from the main branch. Failed requests are repeated.

    Raises:
        OSError: the Hub could not be reached in several attempts.
        PermissionError: the token may not write to this repository.
    """
    import huggingface_hub

    def push() -> None:
        api = huggingface_hub.HfApi()
        with explained_hub(repository, "model", branch):
            if branch != MAIN:
                api.create_branch(repository, branch=branch, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=branch,
                commit_message=f"Upload of {folder.name}",
                ignore_patterns=[".*"],
            )

    repeated(push, f"{repository} (branch {branch})", "written")
    print(f"pushed to {repository}, branch {branch}", flush=True)
