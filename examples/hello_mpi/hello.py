"""Print where each rank runs, and add up all ranks' numbers: the smallest proof that MPI works."""

from __future__ import annotations

import os

from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    print(f"hello from rank {rank} of {size} on {os.uname().nodename}", flush=True)
    total = world.allreduce(rank + 1)
    if total != size * (size + 1) // 2:
        raise SystemExit(f"rank {rank}: the sum over all ranks is {total}, expected {size * (size + 1) // 2}")
    if rank == 0:
        print(f"the sum of 1…{size} over all ranks is {total}", flush=True)


if __name__ == "__main__":
    main()
