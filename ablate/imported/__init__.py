"""Existing results: files and folders of other tools → a study in the database."""
