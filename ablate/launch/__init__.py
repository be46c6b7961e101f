"""Trains runs: chooses jobs, gives them to an executor, reads their journals into a database."""
