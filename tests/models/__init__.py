"""Tests of the methods: closed forms, differential tests against transformers, properties."""
