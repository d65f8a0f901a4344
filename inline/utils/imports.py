"""Imports of packages that are optional, or that do not match the installed torch."""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

# torch drops the schemas of a library that nothing refers to.
_library: Any = None


def import_torchvision_without_operators() -> None:
    """Make ``import torchvision`` work if its compiled operators do not match the installed torch.

    Reason: with a CPU-only torch the operators do not load, and the import fails at the first of them. The
    toolboxes and transformers use torchvision's Python code only, so it is enough that the operators have a
    schema. A torchvision that can be imported is not changed. Remove when torchvision can be imported without
    its operators.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if 'torchvision::nms' not in str(error):
            raise
        import torch

        global _library
        _library = torch.library.Library('torchvision', 'DEF')
        _library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        _library.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        import torchvision  # noqa: F401


def major_version(package: str) -> int:
    """Return the major version of an installed package, or 0."""
    try:
        return int(version(package).split('.')[0])
    except PackageNotFoundError:
        return 0


class OnDemandFinder(MetaPathFinder):
    """Finds modules whose imports of optional packages are replaced while they are executed.

    ``from package import name`` gives such a module an object that imports the package when it is called or
    when one of its attributes is read. Packages that are not installed are not replaced.

    Args:
        packages: Modules, and for each the packages that it imports, with submodules written out.
        absent: Modules, and for each a package that it finds missing although it is installed.
    """

    def __init__(self, packages: Mapping[str, Sequence[str]], absent: Mapping[str, str]) -> None:
        self.packages, self.absent = packages, absent

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        replaced: dict[str, ModuleType | None] = {}
        for package in self.packages.get(fullname, ()):
            if find_spec(package.partition('.')[0]) is not None:
                replaced |= _replace_package(package)
        if fullname in self.absent:
            replaced[self.absent[fullname]] = None
        # A package that is imported already costs nothing.
        replaced = {name: module for name, module in replaced.items() if name not in sys.modules}
        spec = PathFinder.find_spec(fullname, path, target) if replaced else None
        if spec is not None and spec.loader is not None:
            spec.loader = _ReplacingLoader(spec.loader, replaced)
        return spec


class _ReplacingLoader(Loader):
    """Executes a module while other modules are replaced."""

    def __init__(self, loader: Loader, replaced: Mapping[str, ModuleType | None]) -> None:
        self.loader, self.replaced = loader, replaced

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules.update(self.replaced)  # type: ignore[arg-type]
        try:
            self.loader.exec_module(module)
        finally:
            for name in self.replaced:
                sys.modules.pop(name, None)


class _Package(ModuleType):
    """Stands for a package; every name in it is a :class:`_Name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return _Name(f'{self.__name__}:{name}')


class _Name:
    """Stands for a class or function of a package, which is imported when it is used."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **options: Any) -> Any:
        return resolve_name(self._path)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(resolve_name(self._path), name)


def _replace_package(package: str) -> dict[str, ModuleType | None]:
    """Return replacements of a package and the packages around it."""
    replaced: dict[str, ModuleType | None] = {}
    words = package.split('.')
    for count in range(1, len(words) + 1):
        name = '.'.join(words[:count])
        replaced[name] = _Package(name)
        if count > 1:
            setattr(replaced['.'.join(words[: count - 1])], words[count - 1], replaced[name])
    return replaced
