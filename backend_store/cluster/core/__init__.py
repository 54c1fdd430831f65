"""The rules of coordination, without I/O, clocks or randomness.

`values` (the words) · `checks` (what is refused) · `state` (of the embedded coordinator) · `image` (of a mirror).
"""
