"""The web console: a separate process that queries name servers and brokers like any admin client.

    server           puts everything together and listens
    access           token, cookie, Host and Origin checks in front of everything
    cluster_view     cached reads of the cluster; figures, replication and health are its values
    history          samples for the charts
    message_search   finds messages
    commands         changes the cluster; each returns a sentence about what it did
    jobs             `penstock` verbs as child processes
    api, metrics     for programs
    pages/           for people, with NiceGUI

Everything belongs to the thread of one event loop. Nothing is stored on disk.
"""
