"""The rules of coordination, without I/O, clocks or randomness.

`values` (the data types) · `checks` (validation) · `state` (of the embedded coordinator) · `image` (of a mirror).
"""
