"""Show and exchange what is known of plans: this user's timings and the databases in the package.

lamina plans list                                      every store and database: GPU, cuDNN, how many plans
lamina plans export mine.json.gz                       this user's timings as a database
lamina plans import other.json.gz                      a database into this user's store; own timings stay
lamina plans merge all.json.gz mine.json.gz other.json.gz     of the same problem the last file counts
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from lamina.cudnn import PlanDatabase, PlanStore, database, read_database
from lamina.runtime import cache_directory, check_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    listed = actions.add_parser("list", help="every store and database")
    listed.add_argument("--problems", action="store_true", help="each problem and its plan, too")
    export = actions.add_parser("export", help="write this user's timings as a database")
    export.add_argument("file", type=Path)
    export.add_argument("--store", help="which, as `list` calls it, where there are several")
    taken = actions.add_parser("import", help="take a database's plans into this user's store")
    taken.add_argument("file", type=Path)
    taken.add_argument("--replace", action="store_true", help="in place of own timings of the same problems")
    merged = actions.add_parser("merge", help="join databases of one GPU and cuDNN")
    merged.add_argument("file", type=Path, help="what is written")
    merged.add_argument(
        "files", type=Path, nargs="+", help="what is read; of the same problem the last one counts"
    )


def run(options: argparse.Namespace) -> None:
    """Do one of the four."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    _ACTIONS[options.action](options, console)


def _list(options: argparse.Namespace, console: Console) -> None:
    stores, shipped = _stores(), sorted(database.FOLDER.glob("*.json.gz"))
    for name, store in stores.items():
        found = store.entries()
        console.print(f"own      {name}: {len(found)} plans, {len(store.keys())} choices ({store.path})")
        if options.problems:
            _print(PlanDatabase.of(*_split(name), found, {}), console)
    for path in shipped:
        made = read_database(path)
        console.print(f"package  {made.device}-{made.cudnn}: {len(made.entries())} plans")
        if options.problems:
            _print(made, console)
    if not stores and not shipped:
        console.print('no plans are known: policy "fastest" times some and remembers them')


def _print(made: PlanDatabase, console: Console) -> None:
    for entry in made.entries():
        x = entry.choice
        engine = f" eng{x.engine}" if x.engine >= 0 else ""
        time = f" {x.milliseconds:.4f} ms" if x.milliseconds else ""
        console.print(f"  {entry.nature} {'x'.join(map(str, entry.sizes))}: {x.formulation}{engine}{time}")


def _export(options: argparse.Namespace, console: Console) -> None:
    check_writable(options.file)
    stores = _stores()
    if not stores:
        raise ValueError(
            'there is nothing to export: policy "fastest" on a GPU times plans and remembers them'
        )
    name = options.store or (next(iter(stores)) if len(stores) == 1 else None)
    if name not in stores:
        wanted = f"there is no store {name!r}" if name else "--store: say which store"
        raise ValueError(f"{wanted}; stores: {', '.join(stores)}")
    made = PlanDatabase.of(*_split(name), stores[name].entries(), {})
    made.save(options.file)
    console.print(f"{options.file}: {len(made.entries())} plans for {made.device} with cuDNN {made.cudnn}")


def _import(options: argparse.Namespace, console: Console) -> None:
    made = read_database(options.file)
    fitting = [name for name in _stores() if _fits(name, made)]
    stores = [PlanStore(*_split(name)) for name in fitting] or [PlanStore(made.device, _version(made))]
    for store in stores:
        own = set() if options.replace else {(e.nature, e.sizes) for e in store.entries()}
        new = [e for e in made.entries() if (e.nature, e.sizes) not in own]
        store.write(new)
        console.print(f"{store.path}: {len(new)} plans added, {len(made.entries()) - len(new)} were there")


def _merge(options: argparse.Namespace, console: Console) -> None:
    check_writable(options.file)
    first, *others = (read_database(path) for path in options.files)
    for other in others:
        first = first.merged(other)
    first.save(options.file)
    console.print(f"{options.file}: {len(first.entries())} plans for {first.device} with cuDNN {first.cudnn}")


_ACTIONS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "list": _list,
    "export": _export,
    "import": _import,
    "merge": _merge,
}


def _stores() -> dict[str, PlanStore]:
    """This user's stores by file name, GPU and cuDNN version."""
    files = sorted((cache_directory() / "plans").glob("*.jsonl"))
    return {file.stem: PlanStore(*_split(file.stem)) for file in files}


def _split(name: str) -> tuple[str, str]:
    """GPU and cuDNN version."""
    device, _, version = name.rpartition("-")
    return device, version


def _fits(name: str, made: PlanDatabase) -> bool:
    """Whether a store is for a database's GPU and cuDNN."""
    device, version = _split(name)
    return device == made.device and version.split(".")[:2] == made.cudnn.split(".")


def _version(made: PlanDatabase) -> str:
    """The version of the cuDNN in use, which must be the database's. Raises ValueError."""
    loaded = database.loaded_version()
    if loaded.split(".")[:2] != made.cudnn.split("."):
        raise ValueError(f"the plans are for cuDNN {made.cudnn}, the one here is {loaded or 'not installed'}")
    return loaded
