"""The web console: a separate process that queries name servers and brokers like any admin client.

    server           builds the console from its parts and listens
    access           checks token, cookie, Host and Origin of every request
    cached_cluster     cached reads of the cluster, with the values of cluster_figures, replication and health
    chart_samples    samples for the charts
    message_search   finds messages
    cluster_commands changes the cluster; each command returns a sentence about its effect
    job_forms        which jobs there are, and their options
    job_processes    `penstock` verbs as child processes; job_worker is the child's side
    api, metrics     the interfaces for programs
    pages/           the web pages, with NiceGUI

No part is thread-safe: all run on the thread of one event loop. Nothing is stored on disk.
"""
