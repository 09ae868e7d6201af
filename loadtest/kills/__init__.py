"""A seeded schedule of kills under load, and an independent check that nothing was lost or counted twice."""
