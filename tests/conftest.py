"""Has pytest load our plug-in, where that was not started by tests/run."""

import sys

if "harness.plugin" not in sys.modules:
    pytest_plugins = ["harness.plugin"]
