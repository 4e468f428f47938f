"""The web console: a process of its own that asks name servers and brokers as any administrator's client does.

    access          who may come in: the token, Host and Origin
    cache, reading  what the cluster says, asked once for all who look
    history         what it said before, for charts
    finding, bodies messages and their bodies, in the forms that people read
    changing        whatever changes something, each with the sentence that says what was done
    jobs            verbs of `penstock` as child processes
    api, metrics    for machines
    pages/          for people, with NiceGUI
    serving         all of it, put together and listening

Everything belongs to the thread of one event loop. Nothing is kept on disk: what the console knows, it asks again.
"""
