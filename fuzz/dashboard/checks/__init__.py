"""The newest night where a pull request shows it: junit.py a test report, github.py a step summary and annotations."""
