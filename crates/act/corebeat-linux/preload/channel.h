/* The memory that Corebeat and a preloaded program share. src/team.rs describes the same layout.
 *
 *   +--------+--------+--------+-- ... --+---------+
 *   | header | slot 0 | slot 1 |         | slot 63 |      one slot per process
 *   +--------+--------+--------+-- ... --+---------+
 *                 |
 *                 +-> | head, 64 bytes | rest | entry 0 | ... | entry 255 |  one per region, size
 */
#ifndef COREBEAT_CHANNEL_H
#define COREBEAT_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#define MAGIC 0x6d616574u /* "team" */
#define VERSION 1u
#define SLOTS 64u
#define ENTRIES 256u
#define SIZE_AS_ASKED 0xffffffffu

/* Reasons why the size must not change any more. */
enum {
    FIXED_MAX_READ = 1,    /* omp_get_max_threads was called */
    FIXED_SIZE_SET = 2,    /* omp_set_num_threads was called */
    FIXED_CLAUSE = 4,      /* a region has a num_threads clause */
    FIXED_SIZE_READ = 8,   /* omp_get_num_threads was called in a team */
    FIXED_THREAD_DATA = 16, /* the code has thread-local data, which must outlive a region */
    FIXED_NO_DYNAMIC = 32, /* omp_set_dynamic(false) was called */
};

struct header { /* written by Corebeat */
    uint32_t magic;
    uint32_t version;
    uint32_t size;    /* for processes without a separate size; 0: the requested size */
    uint32_t pad;
    uint64_t beat_ns; /* CLOCK_MONOTONIC, time of the last renewal by Corebeat */
    uint64_t rest[5];
};

struct entry { /* written by the program */
    uint64_t region; /* address of its code; 0: free; 1: being claimed */
    uint32_t size;
    uint32_t pad;
    uint64_t count;
    uint64_t time_ns;
};

struct slot {
    uint32_t owner;       /* process number, 0: free. Claimed by the program, freed by Corebeat */
    uint32_t size;        /* written by Corebeat; 0: that of the header; SIZE_AS_ASKED: no limit */
    /* The following fields are written by the program. */
    uint32_t generation;  /* changes when the fields below restart from 0 */
    uint32_t fixed;       /* reasons */
    uint32_t consent;     /* other sizes than requested are permitted (dyn-var) */
    uint32_t frozen;      /* with fixed: the size that the program read in a team; 0: none */
    uint32_t size_max;    /* size that the last region requested */
    uint32_t size_last;   /* size of the last region */
    uint32_t active;      /* number of active regions */
    uint32_t pad;
    uint64_t entered;     /* number of entered regions */
    uint64_t now_region;  /* the region that was entered last */
    uint64_t now_ns;      /* time of its entry, CLOCK_MONOTONIC */
    struct entry rest;    /* executions without an entry */
    uint64_t gap[4];
    struct entry entries[ENTRIES];
};

struct channel {
    struct header header;
    struct slot slots[SLOTS];
};

_Static_assert(sizeof(struct header) == 64, "src/team.rs says the same");
_Static_assert(sizeof(struct entry) == 32, "src/team.rs says the same");
_Static_assert(offsetof(struct slot, rest) == 64, "src/team.rs says the same");
_Static_assert(offsetof(struct slot, entries) == 128, "src/team.rs says the same");

#endif
