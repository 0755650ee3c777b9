"""What is raised when shapes, dtypes or layouts do not fit, before any library is called."""


class ShapeError(ValueError):
    """Sizes that do not fit the op or each other; the message names the op and the shapes."""


class DTypeError(TypeError):
    """A dtype that the op does not take; the message names the op and what it takes."""
