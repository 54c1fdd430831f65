"""Storage: one LMDB environment a node, one writer thread, short reads; its files in the order of a commit.

`engine` (the contract) · `keys` · `writer` (the thread) · `env` (LMDB) · `folder` (who may open it)
· `memory` (for tests) · `space` (how full) · `verify` · `backup` · `restore`.
"""
