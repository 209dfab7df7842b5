"""Response times of task sets by pyCPA or SimSo.

Usage: peers.py pycpa|simso [FILE]

Reads lines "KIND CORES DURATION PERIOD,OFFSET,JITTER,WORST,DEADLINE ...", tasks with decreasing
priorities, and prints for each line the response times, or "-" where the peer has none. With a
file, prints the number of its lines that the peer handles in a second instead, and the sum of the
response times of distinct lines.

KIND is fp (preemptive fixed priorities), np (not preempted) or edf (earliest deadline first).
"""

import contextlib
import gc
import io
import logging
import sys
import time


def pycpa_function():
    """The function that analyses a set with pyCPA. The response time begins at the release."""
    # pyCPA collects garbage after each task, which takes most of the time of small systems.
    gc.collect = lambda *_: 0
    import pycpa.analysis
    import pycpa.model
    import pycpa.options
    import pycpa.schedulers

    sys.argv = sys.argv[:1]
    pycpa.options.init_pycpa(implicit=True)
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("pycpa").setLevel(logging.ERROR)

    def analyse(kind, cores, duration, tasks):
        system = pycpa.model.System()
        if kind == "np":
            scheduler = pycpa.schedulers.SPNPScheduler(cycle_time=1)
        else:
            scheduler = pycpa.schedulers.SPPScheduler()
        core = system.bind_resource(pycpa.model.Resource("core", scheduler))
        bound = []
        for number, (period, _, jitter, worst, _) in enumerate(tasks):
            task = pycpa.model.Task(
                str(number), wcet=worst, bcet=worst, scheduling_parameter=number
            )
            core.bind_task(task)
            task.in_event_model = pycpa.model.PJdEventModel(P=period, J=jitter)
            bound.append(task)
        try:
            results = pycpa.analysis.analyze_system(system)
        except pycpa.analysis.NotSchedulableException:
            return ["-"] * len(tasks)
        return [int(results[task].wcrt) for task in bound]

    return analyse


def simso_function():
    """The function that simulates a set with SimSo: the longest response times of its jobs."""
    from simso.configuration import Configuration
    from simso.core import Model

    def simulate(kind, cores, duration, tasks):
        configuration = Configuration()
        configuration.cycles_per_ms = 1
        configuration.duration = duration
        configuration.etm = "wcet"
        for number, (period, offset, _, worst, deadline) in enumerate(tasks):
            configuration.add_task(
                name=f"task{number}",
                identifier=number + 1,
                period=period,
                activation_date=offset,
                wcet=worst,
                deadline=deadline,
                abort_on_miss=False,
                data={"priority": len(tasks) - number},
            )
        for number in range(cores):
            configuration.add_processor(name=f"core{number}", identifier=number + 1)
        name = "simso.schedulers." + {"fp": "FP", "edf": "EDF"}[kind]
        configuration.scheduler_info.clas = name
        configuration.check_all()
        model = Model(configuration)
        # The scheduler EDF of SimSo prints its decisions.
        with contextlib.redirect_stdout(io.StringIO()):
            model.run_model()
        longest = []
        for task in model.task_list:
            times = [job.response_time for job in task.jobs if job.end_date is not None]
            longest.append(int(round(max(times))) if times else "-")
        return longest

    return simulate


def parse(line):
    kind, cores, duration, *tasks = line.split()
    tasks = [[int(part) for part in task.split(",")] for task in tasks]
    return kind, int(cores), int(duration), tasks


def main():
    path = sys.argv[2] if len(sys.argv) > 2 else None
    function = pycpa_function() if sys.argv[1] == "pycpa" else simso_function()
    if path is None:
        for line in sys.stdin:
            print(*function(*parse(line)), flush=True)
        return
    with open(path) as file:
        sets = [(line, parse(line)) for line in file]
    begin = time.perf_counter()
    sums = {}
    for line, one in sets:
        sums[line] = sum(function(*one))
    seconds = time.perf_counter() - begin
    print("value", len(sets) / seconds, "checksum", f"{sum(sums.values()):016x}")


main()
