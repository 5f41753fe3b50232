from cli_outcomes import run  # noqa: F401  the fixture of every test here
