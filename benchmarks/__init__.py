"""Benchmarks: one engine, one small table per operation.

``docs/numbers.md`` defines every number.
"""
