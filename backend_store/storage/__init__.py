"""Storage: one LMDB environment per node, one writer thread, short reads. Its files in the order of a commit:

`engine` (the contract) · `keys` · `writer` (the thread) · `env` (LMDB) · `folder` (permissions and lock)
· `memory` (for tests) · `space` (how full) · `verify` · `backup` · `restore`.
"""
