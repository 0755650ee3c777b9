"""Errors for shapes, dtypes or layouts that do not fit, raised before any library is called."""


class ShapeError(ValueError):
    """Sizes that do not fit the op or each other; the message names the op and the shapes."""


class OutsideError(ShapeError, IndexError):
    """An index out of range. As an IndexError it ends a `for` over an object whose `__getitem__` reads elements of a
    tensor."""


class DTypeError(TypeError):
    """A dtype that the op does not support; the message names the op and the supported ones."""
