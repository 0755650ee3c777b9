"""Handles of libraries belong to a thread, or to what it works for."""

import threading

from lamina.runtime import LibraryState, library_state


def test_a_thread_has_its_own_and_takes_others() -> None:
    mine, first, second = library_state(), LibraryState(), LibraryState()
    assert library_state() is mine
    with first.used():
        assert library_state() is first
        with second.used():
            assert library_state() is second
        assert library_state() is first
        found: list[LibraryState] = []
        other = threading.Thread(target=lambda: found.append(library_state()))
        other.start()
        other.join()
    assert library_state() is mine
    assert found[0] not in (mine, first, second)


def test_it_is_given_back_after_an_error() -> None:
    mine, state = library_state(), LibraryState()
    try:
        with state.used():
            raise KeyError
    except KeyError:
        assert library_state() is mine
    state.held["handle"] = 3
    assert "handle" not in library_state().held
