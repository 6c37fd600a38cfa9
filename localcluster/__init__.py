"""A real Kubernetes and Kueue on 127.0.0.1 as ordinary processes: no containers, no root.

Built once from Go modules (:mod:`localcluster.build`), started in seconds (:class:`localcluster.cluster.LocalCluster`).
Nodes and pods are pretended by kwok; all that decides (apiserver, controllers, scheduler, Kueue) is the real thing. The
tests run on it, and ``punctual cluster`` hands it to users. Linux only.
"""
