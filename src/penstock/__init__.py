"""Penstock: a message store and broker whose files and wire protocol are Apache RocketMQ's."""

__version__ = "0.1.0"
