"""Uploads of model directories to repositories on the Hugging Face Hub."""

import fnmatch
from pathlib import Path

from bertjax.base.addresses import repeated
from bertjax.cloud.hub_files import MAIN, explained_hub

# Files that a model in the repository may have and another one, pushed later, has not: they are
# removed. Other files in the repository remain.
FILES_OF_MODELS = (
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "task.json"),
    *("checksums.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model"),
)


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
    from huggingface_hub import constants  # version 2 has it only as a module of its own

    _check_name(repository)
    if constants.HF_HUB_OFFLINE:
        raise OSError(
            f"Nothing can be pushed to {repository} while HF_HUB_OFFLINE is set: unset it, or "
            "leave out --push_to_hub."
        )
    if huggingface_hub.get_token() is None:
        raise PermissionError(
            f"There is no token of the Hub to push to {repository}: log in with `hf auth login`, "
            "or set HF_TOKEN to a token with the right to write."
        )

    def create() -> None:
        with explained_hub(repository, "model"):
            # None leaves the visibility to the default of the organisation.
            api = huggingface_hub.HfApi()
            api.create_repo(repository, private=private or None, exist_ok=True)
            # With exist_ok, create_repo accepts repositories of others, too.
            api.auth_check(repository, write=True)

    repeated(create, repository, "written")


def push_folder(folder: Path, repository: str, *, branch: str = MAIN) -> None:
    """Uploads the files of a model to a branch, as one commit that makes all visible at once.

    Files that the Hub has already, also of an interrupted upload, are not uploaded again. A branch
    that does not exist is created from the main branch. Failed requests are repeated.

    Args:
        folder: a Hugging Face directory; hidden files and folders are not uploaded.
        repository: OWNER/NAME on the Hub, which must exist.
        branch: the branch to which the commit is added.

    Raises:
        OSError: the Hub could not be reached in several attempts.
        PermissionError: the token may not write to this repository.
    """
    import huggingface_hub
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    def push() -> None:
        api = huggingface_hub.HfApi()
        with explained_hub(repository, "model", branch):
            if branch != MAIN:
                api.create_branch(repository, branch=branch, exist_ok=True)
            local = {
                path.relative_to(folder).as_posix(): path
                for path in sorted(folder.rglob("*"))
                if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
            }
            stale = [
                name
                for name in api.list_repo_files(repository, revision=branch)
                if name not in local and any(fnmatch.fnmatch(name, p) for p in FILES_OF_MODELS)
            ]
            # Not `upload_folder`, which may make several commits.
            api.create_commit(
                repository,
                [
                    *(CommitOperationAdd(name, path) for name, path in local.items()),
                    *(CommitOperationDelete(name) for name in stale),
                ],
                revision=branch,
                commit_message=f"Upload of {folder.name}",
            )

    try:
        repeated(push, f"{repository} (branch {branch})", "written")
    except OSError as error:
        raise OSError(
            f"{error} The model is in {folder}; bertjax convert {folder} NEW_FOLDER --push_to_hub "
            f"{repository} pushes it, too."
        ) from error
    print(f"pushed to {repository}, branch {branch}", flush=True)


def _check_name(repository: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    reason = "" if repository.count("/") == 1 else "it must have one slash"
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        reason = str(error)
    if reason:
        raise ValueError(
            f"push_to_hub={repository!r} is not the name of a repository ({reason}): write "
            "OWNER/NAME, where OWNER is your name on the Hub or that of an organisation."
        )
