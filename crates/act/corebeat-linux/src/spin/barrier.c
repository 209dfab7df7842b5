// A library with a barrier whose threads spin, and a program that calls a function of a library.

#ifdef LIBRARY

#include <stdatomic.h>

static atomic_int arrived, phase;

int barrier_arrived(void) {
    return atomic_load(&arrived);
}

// A local function between two exported ones: a stripped library has no symbol for this function.
__attribute__((noinline)) static void await_phase(int now) {
    while (atomic_load(&phase) == now) {}
}

// Arrives at a barrier of two threads.
void barrier_wait(void) {
    int now = atomic_load(&phase);
    if (atomic_fetch_add(&arrived, 1) == 1) {
        atomic_store(&arrived, 0);
        atomic_store(&phase, now + 1);
    } else {
        await_phase(now);
    }
}

// Waits for the first phase.
void barrier_begin(void) {
    while (!atomic_load(&phase)) {}
}

#else

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void (*function)(void) = library ? (void (*)(void))dlsym(library, argv[2]) : NULL;
    if (!function) return 1;
    puts("ready");
    fflush(stdout);
    function();
}

#endif
