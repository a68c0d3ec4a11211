"""One suite for every operator: the library against loops over dictionaries, in float64.

``definition.py`` says what an operator is, ``layouts.py`` where its voxels lie, and
``catalogue.py`` collects the entries of the files beside it. A form of an algorithm that is
added to ``forms.py`` runs with every entry that takes one.
"""
