"""One module a check. Installed as mlxdoctor.checks; see CONTRIBUTING.md."""
