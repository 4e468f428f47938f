"""The compiled twin has the names and signatures of the plain one."""

from penstock.format.kernels.plain import *  # noqa: F403

_sources: str
