# Runs boxes in Python: reads calls, one a line in JSON, and writes what they put out to what was standard output.
import json, os, signal, sys, textwrap, traceback
from types import GeneratorType

results = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what boxes print goes where errors go
calls = os.fdopen(os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a box that reads must not read calls
signal.signal(signal.SIGINT, signal.SIG_IGN)  # whom the terminal interrupts, ends us


def write(*message):
    def other(value):
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": value.decode("latin-1")}
        raise TypeError("a box puts out int, float, str, bytes and lists of numbers, and no " + type(value).__name__)

    print(json.dumps(message, default=other, allow_nan=False), file=results, flush=True)


def snetout(variant, *values):
    write("out", variant, *values)


def tried(action):
    try:
        write("end", action())
    except Exception as error:
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == what]
        place = f"line {lines[-1]}: " if lines else ""
        write("error", f"{place}{type(error).__name__}: {error}")


def load():
    exec(compile(textwrap.dedent(code), what, "exec"), space)
    return [name for name, value in space.items() if callable(value)]


def call(name, *values):
    result = space[name](*(v["bytes"].encode("latin-1") if isinstance(v, dict) else v for v in values))
    if isinstance(result, GeneratorType):
        for record in result:
            snetout(*record)
    elif isinstance(result, tuple):
        snetout(*result)
    elif result is not None:
        raise TypeError("a box returns None or one record, (variant, values...), or yields records")


what, code = json.loads(calls.readline())
space = {"snetout": snetout, "__name__": "box"}
tried(load)
for line in calls:
    tried(lambda: call(*json.loads(line)))
