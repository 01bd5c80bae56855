"""What is tested: tables of cases, and plain tests of pytest."""
