"""What differs when the examples of a rule run: one module a rule, named as the rule's.

Each has `observe(example)`, which uses what an example defines and returns what is seen, and says
in `BAD` and `GOOD` what that is for either example. Names that an example leaves to its reader
are set on it first.
"""
