"""Loads our plug-in where pytest was not started by tests/run."""

import sys

if "harness.pytest_plugin" not in sys.modules:
    pytest_plugins = ["harness.pytest_plugin"]
