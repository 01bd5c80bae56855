"""Holds the tests: tables of cases, and plain tests of pytest."""
