"""Errors of training travel between processes with what they know."""

import pickle

from lamina.train import DivergedError, ResumeError


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(DivergedError("at step 7", 7, 1.5)))
    assert (str(error), error.step, error.loss) == ("at step 7", 7, 1.5)
    assert isinstance(error, ArithmeticError)
    assert str(pickle.loads(pickle.dumps(ResumeError("a was 1, is 2")))) == "a was 1, is 2"
