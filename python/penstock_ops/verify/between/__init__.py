"""Checks between nodes: an agent on each node measures, a coordinator schedules and judges.

channel       messages between coordinator and agent: over ssh, a pipe, or TCP with a shared token
agent         operations of one node by name
probes        what an operation measures: connections, transfers, segments, an all-reduce
perftest      an operation's run of perftest, on the adapters of a node
rounds        disjoint pairs, and halves of a group. Pure
location      which nodes or pairs explain a set of slow pairs. Pure
coordinator   runs the operations on all nodes, and bears nodes that end, hang or send nonsense
fault_domains findings for the node, pair or network that slow pairs have in common. Pure
judgement     findings from what was measured. Pure
rails         perftest between the adapters of all nodes
rdma          findings from what perftest measured. Pure
hosts         starts agents by ssh, or waits for those of pods
"""
