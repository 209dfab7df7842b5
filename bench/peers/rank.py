"""Passes records from one process to an actor in another.

rank.py ray|dask stream|trip BYTES COUNT: In a stream, COUNT records with a field of BYTES bytes
pass from this process to the actor, which reads them; as many as the library accepts are under
way. In a trip, the actor returns each record before the next one. Prints the time of a record, in
nanoseconds or for a round trip in microseconds, and a checksum.
"""

import sys
import time

library, work, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
content = bytes([7]) * size


class Taker:
    """The actor."""

    def __init__(self):
        self.sum = 0

    def take(self, number, field):
        self.sum = (self.sum + (number + 1) * (len(field) * 8 + field[-1])) % 2**64

    def total(self):
        return self.sum

    def step(self, number):
        return number + 1


def measure(call, wait, wait_all):
    """Returns the seconds of the work and its checksum."""
    wait(call("total"))
    begin = time.perf_counter()
    if work == "trip":
        checksum = 0
        for _ in range(count):
            checksum = wait(call("step", checksum))
    else:
        sent = [call("take", number, content) for number in range(count)]
        wait_all(sent)
        checksum = wait(call("total"))
    return time.perf_counter() - begin, checksum


if __name__ == "__main__":
    if library == "ray":
        import ray

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        taker = ray.remote(Taker).remote()
        call = lambda name, *values: getattr(taker, name).remote(*values)
        seconds, checksum = measure(call, ray.get, ray.get)
        ray.shutdown()
    else:
        from distributed import Client, LocalCluster

        cluster = LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        )
        with cluster, Client(cluster) as client:
            taker = client.submit(Taker, actor=True).result()
            call = lambda name, *values: getattr(taker, name)(*values)
            wait = lambda future: future.result()
            seconds, checksum = measure(call, wait, lambda all: [wait(one) for one in all])
    scale = 1e6 if work == "trip" else 1e9
    print(f"value {seconds * scale / count} checksum {checksum:016x}")
