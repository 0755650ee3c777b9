"""What these tests compile runs by Lamina alone; a module whose subject is what goes back says `GOES_BACK = True`."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_goes_back_to_pytorch(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Values would agree if PyTorch computed them itself: what it is left with is logged, and is an error here."""
    yield
    if not getattr(request.module, "GOES_BACK", False):
        said = [r.getMessage() for r in caplog.get_records("call") if r.name == "lamina.convert"]
        assert said == []
