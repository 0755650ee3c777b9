"""The page of networks: its table is what the networks are."""

from tools import networks


def test_the_page_is_up_to_date() -> None:
    assert networks.PAGE.read_text(encoding="utf-8") == networks.page(), "python -m tools.networks write"
