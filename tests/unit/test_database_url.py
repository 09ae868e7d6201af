"""What is no database URL is said so in words, without the URL."""

from __future__ import annotations

import pytest

from services.adapters.database.engine import Database


@pytest.mark.parametrize("url", ["nonsense-with-secret", "", "mysql://u:secret@h/d", "redis://secret"])
def test_what_is_no_url_of_ours_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="CHIMERA_DATABASE_URL: expected postgresql://") as refused:
        Database(url)
    assert "secret" not in str(refused.value)
