"""How slots are shared: interactive beside batch work, and tenants beside one that floods."""
