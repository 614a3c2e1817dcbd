"""`phalanx ui`: a page on this machine with clusters, nodes and jobs. It stores nothing, and needs `phalanx[ui]`."""
