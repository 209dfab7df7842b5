# Runs boxes in Python. Reads one call per line of JSON, and writes the outputs as JSON.
import fcntl, json, os, select, signal, sys, textwrap, traceback
from types import GeneratorType

# Descriptor 0 is a pipe without data. When the parent process ends, however it ends, the kernel
# sends SIGKILL, also while a box computes. An earlier end is detected below.
lifeline = os.dup(0)
fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
parent = select.poll()
parent.register(lifeline, 0)
if parent.poll(0):
    os._exit(1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # boxes must not read

# Descriptor 1 is a socket.
results = os.fdopen(os.dup(1), "w", encoding="utf-8")
calls = os.fdopen(os.dup(1), encoding="utf-8")
os.dup2(2, 1)  # boxes print to standard error
sys.stdout.reconfigure(line_buffering=True)  # nothing flushes at the end, by SIGKILL
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C


def write(*message):
    def other(value):
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": value.decode("latin-1")}
        allowed = "int, float, str, bytes and lists of numbers"
        raise TypeError(f"a box can output {allowed}, but not {type(value).__name__}")

    print(json.dumps(message, default=other, allow_nan=False), file=results, flush=True)


def snetout(variant, *values):
    write("out", variant, *values)


def tried(action):
    try:
        result = action()
        sys.stdout.flush()
        write("end", result)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == what]
        place = f"line {lines[-1]}: " if lines else ""
        write("error", f"{place}{type(error).__name__}: {error}")


def load():
    exec(compile(textwrap.dedent(code), what, "exec"), space)
    return [name for name, value in space.items() if callable(value)]


def call(name, *values):
    def argument(value):
        return value["bytes"].encode("latin-1") if isinstance(value, dict) else value

    result = space[name](*map(argument, values))
    if isinstance(result, GeneratorType):
        for record in result:
            snetout(*record)
    elif isinstance(result, tuple):
        snetout(*result)
    elif result is not None:
        returns = "None or one record, (variant, values...), or yield records"
        raise TypeError(f"a box must return {returns}")


what, code = json.loads(calls.readline())
space = {"snetout": snetout, "__name__": "box"}
tried(load)
for line in calls:
    tried(lambda: call(*json.loads(line)))
