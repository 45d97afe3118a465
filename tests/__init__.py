"""A regular package: a dependency ships its own `tests`, which would shadow a namespace package."""
