"""RocketMQ's remoting protocol for the broker's core: request codes to operations, outcomes to replies."""
