"""Loads our plug-in where pytest was not started by tests/run."""

import sys

if "harness.plugin" not in sys.modules:
    pytest_plugins = ["harness.plugin"]
