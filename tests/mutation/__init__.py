"""Does the suite notice? Faults planted in the library in memory, one at a time.

``python tests/mutation/run.py`` runs the conformance suite's fast lane once per fault and fails
unless every one of them makes a test fail.
"""
