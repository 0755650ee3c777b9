"""What is raised when shapes, dtypes or layouts do not fit, before any library is called."""


class ShapeError(ValueError):
    """Sizes that do not fit the op or each other; the message names the op and the shapes."""


class OutsideError(ShapeError, IndexError):
    """A number that names no element along an axis. As an IndexError it ends a `for` over an object whose
    `__getitem__` takes its elements from a tensor."""


class DTypeError(TypeError):
    """A dtype that the op does not take; the message names the op and what it takes."""
