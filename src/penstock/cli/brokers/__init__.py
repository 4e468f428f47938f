"""`penstock serve --brokers N`: N brokers, a process and a store each, with one name server and one console."""
