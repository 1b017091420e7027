"""Finding a module's code: what a person writes after ``--module``, and the files that it means.

    wordcount.py:WordCount            one file; without a name, the one module that it defines
    shop/orders.py:Orders             a file of a package: the whole package goes along
    src/shop:Orders                   a package folder, by its path
    shop.orders:Orders                a package or module that can be imported here
    dist/shop-1.0.whl:shop.orders:Orders    what a wheel holds

Nothing is imported here; that is :mod:`stretto.artifact.describe`'s.
"""

from __future__ import annotations

import os
import sys
import zipfile
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from stretto.artifact.archive import Entry
from stretto.errors import UsageError
from stretto.vocabulary.suggest import did_you_mean

_FORMS = "write FILE.py:Name, a package as pkg.mod:Name or FOLDER:Name, or a wheel as FILE.whl:pkg.mod:Name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a module, and which of them to import."""

    entries: tuple[Entry, ...]
    module: str
    """Name of the Python module to import, as ``pkg.mod``."""
    name: str | None
    """Name of the class; None for the only one."""
    label: str
    """What the source is called in messages."""
    shown_folder: str
    """Folder in which the person sees the files, written before the names of entries in a traceback."""


def find(text: str) -> Source:
    """Find the code that a person named. Raises UsageError with what to write instead."""
    wheel, colon, inside = text.partition(".whl:")
    if colon:
        return _in_wheel(Path(f"{wheel}.whl"), inside)
    path, _, name = text.partition(":")
    if not path or (name and not name.isidentifier()) or text.endswith(":"):
        raise UsageError(f"{text!r} names no module; {_FORMS}")
    if path.endswith(".whl"):
        raise UsageError(f"{path} needs the module in it as well; write {path}:pkg.mod:Name")
    if path.endswith(".py"):
        return _of_file(Path(path), name or None)
    if Path(path).is_dir():
        return _of_package(Path(path), name or None)
    if all(part.isidentifier() for part in path.split(".")):
        return _importable(path, name or None)
    raise UsageError(f"there is no file or folder {path}; {_FORMS}")


def _of_file(file: Path, name: str | None) -> Source:
    if not file.is_file():
        raise UsageError(f"there is no file {file}; {_nearest_file(file)}")
    if _is_package(file.absolute().parent):
        top = file.absolute().parent
        parts = [] if file.stem == "__init__" else [file.stem]
        while _is_package(top.parent):
            parts.insert(0, top.name)
            top = top.parent
        return _in_package(top, parts, name, label=str(file))
    if not file.stem.isidentifier():
        raise UsageError(f"{file} cannot be imported under that name; rename it to letters, digits and '_'")
    return Source(
        entries=(Entry(name=file.name, content=file),),
        module=_unshadowing(file.stem),
        name=name,
        label=str(file),
        shown_folder=_shown(file.parent),
    )


def _of_package(folder: Path, name: str | None) -> Source:
    if not _is_package(folder):
        files = sorted(path.name for path in folder.glob("*.py"))
        choice = f"name one of its files, such as {folder / files[0]}, or " if files else ""
        raise UsageError(f"{folder} is no package; {choice}add an __init__.py")
    return _of_file(folder / "__init__.py", name)


def _importable(dotted: str, name: str | None) -> Source:
    top, *parts = dotted.split(".")
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    if spec is None:
        raise UsageError(f"no module {top!r} is here or can be imported; {_FORMS}")
    origin = Path(spec.origin) if spec.origin else None
    if origin is None or origin.suffix != ".py":
        raise UsageError(f"{top} is no Python source that can be packed; add an __init__.py or name a file")
    if origin.name == "__init__.py":
        return _in_package(origin.parent, parts, name, label=dotted)
    if parts:
        raise UsageError(f"{top} is a single file, without a module {'.'.join(parts)!r}; write {top}")
    return _of_file(origin, name)


def _in_package(top: Path, parts: list[str], name: str | None, *, label: str) -> Source:
    entries = tuple(
        Entry(name=f"{top.name}/{path.relative_to(top).as_posix()}", content=path) for path in _files(top)
    )
    module = ".".join([_unshadowing(top.name), *parts])
    _require(module, [entry.name for entry in entries], str(top))
    return Source(entries=entries, module=module, name=name, label=label, shown_folder=_shown(top.parent))


def _in_wheel(wheel: Path, inside: str) -> Source:
    module, _, name = inside.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or (name and not name.isidentifier()):
        raise UsageError(f"{inside!r} names nothing in a wheel; write {wheel}:pkg.mod:Name")
    if not wheel.is_file():
        raise UsageError(f"there is no file {wheel}; {_nearest_file(wheel)}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = tuple(
                Entry(name=info.filename, content=archive.read(info))
                for info in archive.infolist()
                if not info.is_dir() and "__pycache__" not in info.filename.split("/")
            )
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UsageError(f"{wheel} is no wheel that can be read ({error}); build it again") from None
    _unshadowing(module.split(".")[0])
    _require(module, [entry.name for entry in entries], str(wheel))
    return Source(
        entries=entries,
        module=module,
        name=name or None,
        label=f"{wheel}:{module}",
        shown_folder=f"{wheel}/",
    )


def _require(module: str, names: list[str], where: str) -> None:
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.endswith(".py")
    }
    if module not in modules:
        raise UsageError(f"{where} has no module {module!r}; {did_you_mean(module, modules)}")


def _files(top: Path) -> list[Path]:
    """Return the files of a package, without caches and hidden files. Links are followed."""
    found: list[Path] = []
    for folder, folders, names in os.walk(top, followlinks=True):
        here = Path(folder)
        above = [parent for parent in here.parents if parent.is_relative_to(top)]
        if here.resolve() in {parent.resolve() for parent in above}:
            raise UsageError(f"{here} leads back to a folder that it is in; remove that link")
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        for name in names:
            path = here / name
            if path.is_file() and not name.startswith(".") and path.suffix not in {".pyc", ".pyo"}:
                found.append(path)
    return found


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _unshadowing(top: str) -> str:
    if top == "stretto" or top in sys.stdlib_module_names:
        raise UsageError(
            f"code called {top!r} would hide the module of that name that others need; rename it"
        )
    return top


def _shown(folder: Path) -> str:
    """Return a folder's path with a slash, relative if it is below this one; nothing for this folder."""
    path = folder.absolute()
    here = Path.cwd()
    if path == here:
        return ""
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}/"


def _nearest_file(file: Path) -> str:
    others = [path.name for path in file.parent.glob(f"*{file.suffix}")] if file.parent.is_dir() else []
    close = get_close_matches(file.name, others, 1)
    return f"did you mean {file.parent / close[0]}?" if close else "check the path"
