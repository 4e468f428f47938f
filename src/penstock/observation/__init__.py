"""What machines watch: the metrics of brokers by RocketMQ 5's names, and a small HTTP responder for them.

Brokers and the console show the same metrics, so each has one name and one meaning.
"""
