"""Hostile trials by the thousand: kills, broken files, random problems, poisoned rows.

``python tests/campaign/run.py`` runs them; every failure is saved as a file that replays it.
"""
