"""Free (dynamic) axes: axes of a program's inputs that may have any size, and traces at several sizes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lamina.convert.sizes import Dim, difference, probes
from lamina.graph import Graph
from lamina.spec import Spec

#: The user's argument: one name for the first axis of every input, or by input name its axes with their names.
Free = str | Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class FreeAxes:
    """The inputs of a program at the examples' sizes, and which of their axes are free.

    who: the function that errors name. axes: for each input its free axes and their names.
    """

    who: str
    specs: Mapping[str, Spec]
    axes: Mapping[str, Mapping[int, str]]

    @classmethod
    def of(cls, who: str, specs: Mapping[str, Spec], dynamic: Free | None) -> FreeAxes:
        """Raises ValueError for missing inputs and axes, and axes of one name with two sizes."""
        if dynamic is None:
            return cls(who, specs, {})
        if isinstance(dynamic, str):
            dynamic = {n: {0: dynamic} for n, s in specs.items() if s.ndim}
        if unknown := sorted(set(dynamic) - set(specs)):
            raise ValueError(f"{who}: dynamic names {unknown}, the inputs are {list(specs)}")
        found = {}
        for name, spec in specs.items():
            axes = dynamic.get(name, {})
            if any(not -spec.ndim <= a < spec.ndim for a in axes):
                raise ValueError(f"{who}: dynamic has axes {sorted(axes)} of {name}, which is {spec}")
            found[name] = {a % spec.ndim: label for a, label in axes.items()}
        made = cls(who, specs, found)
        made.sizes()
        return made

    def of_input(self, name: str) -> Mapping[int, str]:
        """The free axes of an input and their names."""
        return self.axes.get(name, {})

    def sizes(self) -> dict[str, int]:
        """The examples' sizes of free axes by name. Raises ValueError if one name has two."""
        found: dict[str, int] = {}
        for name, spec in self.specs.items():
            for axis, label in self.of_input(name).items():
                if found.setdefault(label, spec.shape[axis]) != spec.shape[axis]:
                    raise ValueError(
                        f"{self.who}: the free axis {label!r} has size {found[label]} and, in {name}, "
                        f"{spec.shape[axis]}: axes of one name have one size"
                    )
        return found

    def resized(self, sizes: Mapping[str, int]) -> list[Spec]:
        """The inputs at other sizes of the free axes."""
        found = []
        for name, spec in self.specs.items():
            free = self.of_input(name)
            shape = tuple(sizes[free[a]] if a in free else n for a, n in enumerate(spec.shape))
            found.append(Spec(shape, spec.dtype))
        return found

    def traces(
        self,
        name: str,
        traced: Callable[[Sequence[Spec]], Graph],
        alike: Callable[[Sequence[Graph]], list[Graph]],
        error: type[Exception],
        dense: bool = False,
    ) -> list[Graph]:
        """The program at the examples' sizes, then at others of the free axes.

        name: the program's, for errors. traced: makes its graph; alike: normalizes the graphs to one form.
        dense: at more sizes, for formulas that round. Raises `error` if the program differs at other sizes.
        """
        sizes = {label: max(n, 2) for label, n in self.sizes().items()}
        graph = traced(self.resized(sizes))
        if not sizes:
            return alike([graph])
        why = ""
        for plan in probes(sizes, dense):
            try:
                graphs = [graph, *(traced(self.resized(other)) for other in plan)]
            except (ValueError, TypeError, IndexError) as problem:
                why = str(problem)
                continue
            why = difference(graphs) or ""
            if not why:
                return alike(graphs)
        raise error(
            f"{name} is another program for other sizes of its free axes {', '.join(sizes)}: {why}; "
            "give the axes fixed sizes"
        )

    def dims(self, name: str, held: object, shapes: Sequence[Sequence[int]]) -> list[Dim]:
        """The free axes of an input as sizes for formulas. held: the input's representation; shapes: its shape in
        each trace."""
        columns = list(zip(*shapes, strict=True))
        return [Dim(held, a, columns[a]) for a in self.of_input(name)]
