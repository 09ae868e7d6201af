"""How the schema came to be. Revisions are never edited once released."""
