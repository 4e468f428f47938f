"""The web console: a separate process that queries name servers and brokers like any admin client.

    server           builds the console from its parts and listens
    access           checks token, cookie, Host and Origin of every request
    cluster_view     cached reads of the cluster, with the values of cluster_summary, replication and health
    history          samples for the charts
    message_search   finds messages
    commands         changes the cluster; each command returns a sentence about its effect
    jobs             `penstock` verbs as child processes
    api, metrics     the interfaces for programs
    pages/           the web pages, with NiceGUI

No part is thread-safe: all run on the thread of one event loop. Nothing is stored on disk.
"""
