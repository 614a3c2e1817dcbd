"""What clusters have in an account: `down`, `reap`, `adopt` and `why` read it.

`remains` is what is left of one cluster, by its stack's record, its tag and its name (`strays`); `orphans`, what is
left of clusters without a living stack. `drift` is what people have removed of a cluster; `foreign`, what others have
put into its network, and who uses it.
"""
