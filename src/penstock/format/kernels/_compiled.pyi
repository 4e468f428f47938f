"""The compiled twin has the plain one's names and signatures."""

from penstock.format.kernels._plain import *  # noqa: F403
