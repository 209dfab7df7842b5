/* Changes the size of the OpenMP teams of a running program from outside, and answers how many CPUs
 * a program may use.
 *
 * Loaded in front of the OpenMP runtime (LD_PRELOAD), this library replaces the entry points of
 * parallel regions of gcc's libgomp (GOMP_parallel and related functions) and of LLVM's libomp
 * (__kmpc_fork_call). Each call is forwarded to the real function, with a smaller thread count if
 * Corebeat requests one. Without a channel (COREBEAT_TEAM names no valid file) calls are forwarded
 * unchanged.
 *
 * Rules:
 *  1. Sizes are only lowered below the size that the program would get, or restored up to that
 *     size.
 *  2. A program that has read its thread count may divide its work by the count: from then on the
 *     size is `fixed`, unless the program or its user permits any size (dyn-var: OMP_DYNAMIC=true
 *     or omp_set_dynamic).
 *  3. Only outermost teams change, and never the variables of the runtime: nested teams are
 *     unaffected.
 *  4. A count of CPUs is only lowered, and only where the function reports how many CPUs there are.
 *     Numbers of CPUs (_SC_NPROCESSORS_CONF, get_nprocs_conf) and masks (sched_getaffinity) are the
 *     real ones: programs index arrays and pin threads by them.
 *
 * Linked without the C library (-nostdlib), so that one file works with every version: every
 * process with an OpenMP runtime has the few functions that are used.
 */
#define _GNU_SOURCE
#include "channel.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER ((uintptr_t)__builtin_return_address(0))
#define THREAD_LOCAL static __thread

#define LOAD(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ADD(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define ACQUIRE(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define RELEASE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/* After this time without a renewal by Corebeat, programs get the sizes they request. */
#define LEASE_NS 30000000000ull

typedef void region_fn(void *);

/* ---- The real runtime ------------------------------------------------------------------------ */

#define FUNCTIONS(F)                                                                                                   \
    F(GOMP_parallel) F(GOMP_parallel_reductions) F(GOMP_parallel_sections)                                             \
    F(GOMP_parallel_loop_static) F(GOMP_parallel_loop_dynamic) F(GOMP_parallel_loop_guided)                            \
    F(GOMP_parallel_loop_runtime) F(GOMP_parallel_loop_nonmonotonic_dynamic)                                           \
    F(GOMP_parallel_loop_nonmonotonic_guided) F(GOMP_parallel_loop_nonmonotonic_runtime)                               \
    F(GOMP_parallel_loop_maybe_nonmonotonic_runtime)                                                                   \
    F(GOMP_parallel_start) F(GOMP_parallel_sections_start) F(GOMP_parallel_loop_static_start)                          \
    F(GOMP_parallel_loop_dynamic_start) F(GOMP_parallel_loop_guided_start) F(GOMP_parallel_loop_runtime_start)         \
    F(GOMP_parallel_end)                                                                                               \
    F(__kmpc_fork_call) F(__kmpc_serialized_parallel) F(__kmpc_global_thread_num) F(__kmpc_push_num_threads)           \
    F(__kmpc_push_num_threads_list) F(__kmpc_push_num_threads_strict) F(__kmpc_push_num_threads_list_strict)           \
    F(__kmpc_threadprivate_cached)                                                                                     \
    F(omp_get_level) F(omp_get_max_threads) F(omp_set_num_threads) F(omp_get_num_threads) F(omp_get_team_size)         \
    F(omp_get_dynamic) F(omp_set_dynamic) F(omp_get_num_procs)

#define NUMBER(name) NR_##name,
#define NAME(name) #name,
enum { FUNCTIONS(NUMBER) FUNCTION_COUNT };
/* Arrays instead of pointers: the loader would relocate pointers in every process. */
static const char names[FUNCTION_COUNT][48] = {FUNCTIONS(NAME)};

/* A loaded OpenMP runtime. A process may have several: each Python wheel contains one. */
struct runtime {
    uintptr_t base; /* load address; 0: the slot is free */
    void *handle;
    void *functions[FUNCTION_COUNT];
};

#define RUNTIMES 16
static struct runtime runtimes[RUNTIMES];
/* The runtime to which the dynamic linker would bind: the first one of the global scope. */
static struct runtime global = {.handle = RTLD_NEXT};

static void *function(struct runtime *rt, int nr) {
    void *f = LOAD(&rt->functions[nr]);
    if (!f && rt->handle) {
        f = dlsym(rt->handle, names[nr]);
        STORE(&rt->functions[nr], f);
    }
    return f;
}

#define REAL(rt, name) ((__typeof__(&name))function((rt), NR_##name))

static uintptr_t base_of(uintptr_t address) {
    Dl_info info;
    return dladdr((void *)address, &info) ? (uintptr_t)info.dli_fbase : 0;
}

/* The runtime to which an object and its dependencies would bind, found as by the dynamic linker.
 * The runtime stays loaded from now on, because its addresses are cached. */
static struct runtime *runtime_near(const char *path, int nr) {
    void *near = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *found = near ? dlsym(near, names[nr]) : NULL;
    Dl_info info;
    if (!found || !dladdr(found, &info) || (uintptr_t)info.dli_fbase == base_of((uintptr_t)names))
        return NULL;
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int i = 0; handle && i < RUNTIMES; i++) {
        uintptr_t base = 0;
        /* Two threads that claim one slot for the same runtime store the same handle. */
        if (__atomic_compare_exchange_n(&runtimes[i].base, &base, (uintptr_t)info.dli_fbase, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE) ||
            base == (uintptr_t)info.dli_fbase) {
            RELEASE(&runtimes[i].handle, handle);
            return &runtimes[i];
        }
    }
    return NULL;
}

struct search {
    int nr;
    struct runtime *found;
};

static int search_object(struct dl_phdr_info *object, size_t size, void *data) {
    struct search *search = data;
    (void)size;
    if (object->dlpi_name && object->dlpi_name[0])
        search->found = runtime_near(object->dlpi_name, search->nr);
    return search->found != NULL;
}

static struct runtime *runtime_search(uintptr_t address, int nr) {
    Dl_info info;
    if (function(&global, nr)) {
        if (!LOAD(&global.base))
            STORE(&global.base, base_of((uintptr_t)function(&global, nr)));
        return &global;
    }
    struct search search = {nr, NULL};
    if (dladdr((void *)address, &info) && info.dli_fname)
        search.found = runtime_near(info.dli_fname, nr);
    if (!search.found) /* generated code, or a tail call from another object */
        dl_iterate_phdr(search_object, &search);
    return search.found;
}

/* Whether the object with this address has thread-local data: OpenMP preserves data of threads
 * (threadprivate) between regions only while the size is constant. */
struct data_search {
    uintptr_t address;
    int found;
};

static int search_data(struct dl_phdr_info *object, size_t size, void *data) {
    struct data_search *search = data;
    int mine = 0, tls = 0;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        uintptr_t from = object->dlpi_addr + p->p_vaddr;
        mine |= p->p_type == PT_LOAD && search->address >= from && search->address - from < p->p_memsz;
        tls |= p->p_type == PT_TLS && p->p_memsz > 0;
    }
    search->found = mine && tls;
    return mine;
}

/* In static loops of gcc, every thread reads the size of the team to compute its share; the program
 * itself does not read the size. Such a call has a recognisable form: only the stack is written
 * before the thread number is read. Any other call counts as a call by the program, which is the
 * safe side, and so does every call on a processor other than x86-64. */
#if defined __x86_64__
#pragma weak dladdr1 /* not in every C library */

/* The name of the symbol that the object imports through this cell. */
static const char *name_of_import(uintptr_t cell) {
    Dl_info info;
    struct link_map *object = NULL;
    uintptr_t tables[2] = {0, 0}, sizes[2] = {0, 0}, symbols = 0, strings = 0;
    if (!dladdr1 || !dladdr1((void *)cell, &info, (void **)&object, RTLD_DL_LINKMAP) || !object)
        return NULL;
    for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++)
        switch (d->d_tag) {
        case DT_JMPREL: tables[0] = d->d_un.d_ptr; break;
        case DT_PLTRELSZ: sizes[0] = d->d_un.d_val; break;
        case DT_RELA: tables[1] = d->d_un.d_ptr; break;
        case DT_RELASZ: sizes[1] = d->d_un.d_val; break;
        case DT_SYMTAB: symbols = d->d_un.d_ptr; break;
        case DT_STRTAB: strings = d->d_un.d_ptr; break;
        }
    /* glibc has added the base to these addresses; other C libraries have not. */
    uintptr_t base = strings < object->l_addr ? object->l_addr : 0;
    for (int t = 0; t < 2 && symbols && strings; t++)
        for (const ElfW(Rela) *r = (void *)(base + tables[t]), *end = r + sizes[t] / sizeof *r; tables[t] && r < end; r++)
            if (object->l_addr + r->r_offset == cell)
                return (const char *)(base + strings) + ((ElfW(Sym) *)(base + symbols))[ELF64_R_SYM(r->r_info)].st_name;
    return NULL;
}

static uintptr_t relative(const uint8_t *at) { /* to the instruction after a 32-bit displacement */
    int32_t displacement;
    __builtin_memcpy(&displacement, at, sizeof displacement);
    return (uintptr_t)at + 4 + (uintptr_t)(intptr_t)displacement;
}

/* The length of an instruction that writes only registers or the stack and does not branch; 0 for
 * any other. */
static size_t length_of_quiet(const uint8_t *code) {
    size_t prefix = (code[0] & 0xf0) == 0x40, immediate = 0; /* REX */
    int wide = prefix && (code[0] & 8), two = code[prefix] == 0x0f;
    const uint8_t *modrm = code + prefix + two + 1;
    uint8_t op = modrm[-1], mod = modrm[0] >> 6, rm = modrm[0] & 7, base = rm == 4 ? modrm[1] & 7 : rm;
    int store_only_to_register = 0;
    if (two && op != 0xaf && op != 0xb6 && op != 0xb7 && op != 0xbe && op != 0xbf)
        return 0; /* everything except multiplications and widening loads */
    if (!two)
        switch (op) {
        case 0xb8 ... 0xbf: return prefix + 1 + (wide ? 8 : 4); /* load a number */
        case 0x98: case 0x99: return prefix + 1; /* sign extension */
        case 0x03: case 0x0b: case 0x23: case 0x2b: case 0x33: case 0x3b: case 0x63: case 0x8b: case 0x8d: break;
        case 0x69: immediate = 4; break;
        case 0x6b: immediate = 1; break;
        case 0x89: /* to the stack: relative to rsp, and not to r12, which is spelled the same but for the prefix */
            store_only_to_register = mod == 0 || rm != 4 || modrm[1] != 0x24 || (prefix && (code[0] & 1)); break;
        case 0x01: case 0x09: case 0x21: case 0x29: case 0x31: case 0x39: case 0x85: case 0xd1:
            store_only_to_register = 1; break;
        case 0x83: case 0xc1: store_only_to_register = 1; immediate = 1; break;
        case 0x81: store_only_to_register = 1; immediate = 4; break;
        default: return 0;
        }
    if (store_only_to_register && mod != 3)
        return 0;
    size_t address = mod == 3 ? 0 : (rm == 4) + (mod == 1 ? 1 : mod == 2 || base == 5 ? 4 : 0);
    return prefix + two + 2 + address + immediate;
}

static int is_of_compiler(uintptr_t caller) {
    static const char wanted[] = "omp_get_thread_num";
    const uint8_t *code = (const uint8_t *)caller;
    for (size_t i = 0, length; i < 8 && (length = length_of_quiet(code)) > 0; i++)
        code += length;
    uintptr_t cell;
    if (code[0] == 0xff && code[1] == 0x15) {
        cell = relative(code + 2);
    } else if (code[0] == 0xe8) {
        const uint8_t *stub = (const uint8_t *)relative(code + 1);
        if (base_of((uintptr_t)stub) != base_of(caller))
            return 0;
        if (stub[0] == 0xf3 && stub[1] == 0x0f && stub[2] == 0x1e && stub[3] == 0xfa) /* endbr64 */
            stub += 4;
        stub += stub[0] == 0xf2; /* bnd */
        if (stub[0] != 0xff || stub[1] != 0x25)
            return 0;
        cell = relative(stub + 2);
    } else {
        return 0;
    }
    const char *name = name_of_import(cell);
    for (size_t i = 0; name && i < sizeof wanted; i++)
        if (name[i] != wanted[i])
            return 0;
    return name != NULL;
}
#else
static int is_of_compiler(uintptr_t caller) {
    (void)caller;
    return 0;
}
#endif

/* Cache of places in the program: the code of regions, and callers. Never emptied, because the
 * objects stay loaded. Besides the runtime, `value` has two bits: */
#define SITE_THREAD_DATA 1u /* the object there has thread-local data */
#define SITE_COMPILER 2u    /* a call of omp_get_num_threads there is the compiler's */
#define SITES 1024u
#define SITE_PROBES 16u
static struct site {
    uintptr_t address;
    uintptr_t value;
} sites[SITES];

static uint32_t hash(uint64_t key) { return (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 40); }

static uintptr_t site_value(uintptr_t address, int nr) {
    struct site *free = NULL;
    for (uint32_t i = 0; i < SITE_PROBES; i++) {
        struct site *site = &sites[(hash(address) + i) % SITES];
        uintptr_t at = LOAD(&site->address);
        /* Pairs with the release below. 0: another thread is about to store the same value. */
        uintptr_t value = at == address ? ACQUIRE(&site->value) : 0;
        if (value)
            return value;
        if (at == 0 || at == address) {
            free = site;
            break;
        }
    }
    struct runtime *rt = runtime_search(address, nr);
    struct data_search data = {address, 0};
    if (!rt)
        return 0;
    dl_iterate_phdr(search_data, &data);
    uintptr_t value = (uintptr_t)rt, none = 0;
    if (data.found)
        value |= SITE_THREAD_DATA;
    if (nr == NR_omp_get_num_threads && is_of_compiler(address))
        value |= SITE_COMPILER;
    if (free && (__atomic_compare_exchange_n(&free->address, &none, address, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
                 none == address))
        RELEASE(&free->value, value);
    return value;
}

static struct runtime *runtime_at(uintptr_t value) {
    return (struct runtime *)(value & ~(uintptr_t)(SITE_THREAD_DATA | SITE_COMPILER));
}

static struct runtime *runtime_of(uintptr_t address, int nr) { return runtime_at(site_value(address, nr)); }

/* A call without a target: the program could not have started without this library. */
static void *need(struct runtime *rt, int nr) {
    void *f = rt ? function(rt, nr) : NULL;
    if (!f) {
        static const char text[] = "corebeat: no OpenMP runtime found for a call into one\n";
        ssize_t ignored = write(2, text, sizeof text - 1);
        (void)ignored;
        abort();
    }
    return f;
}

#define MUST(rt, name) ((__typeof__(&name))need((rt), NR_##name))

/* ---- The channel ----------------------------------------------------------------------------- */

static struct channel *channel; /* NULL until opened */

/* State that a forked child must not inherit is on a separate page, which the kernel clears. */
struct local {
    uint32_t state; /* 0: not started; 1: in progress; 2: slot claimed; 3: no slot */
    uint32_t wiped; /* the kernel clears the page; otherwise `pid` identifies the child */
    pid_t pid;
    struct slot *slot;
};
static struct local *local;

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct channel *channel_open(void) {
    const char *path = getenv("COREBEAT_TEAM");
    if (!path || path[0] != '/')
        return NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    void *map = MAP_FAILED;
    if (lseek(fd, 0, SEEK_END) == (off_t)sizeof(struct channel)) /* older C libraries lack fstat */
        map = mmap(NULL, sizeof(struct channel), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return NULL;
    struct channel *c = map;
    if (c->header.magic == MAGIC && c->header.version == VERSION)
        return c;
    munmap(map, sizeof(struct channel));
    return NULL;
}

static int allows_any_size(const char *value) {
    return value && (strcasecmp(value, "true") == 0 || strcasecmp(value, "1") == 0 || strcasecmp(value, "yes") == 0 ||
                     strcasecmp(value, "on") == 0);
}

static struct slot *slot_claim(void) {
    uint32_t pid = (uint32_t)getpid();
    struct slot *slot = NULL;
    if (!channel)
        channel = channel_open();
    if (!channel)
        return NULL;
    for (uint32_t i = 0; i < SLOTS && !slot; i++) /* left by this process before exec */
        if (ACQUIRE(&channel->slots[i].owner) == pid)
            slot = &channel->slots[i];
    for (uint32_t i = 0; i < SLOTS && !slot; i++) {
        uint32_t nobody = 0;
        if (__atomic_compare_exchange_n(&channel->slots[i].owner, &nobody, pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            slot = &channel->slots[i];
    }
    if (!slot)
        return NULL;
    STORE(&slot->fixed, 0);
    STORE(&slot->consent, (uint32_t)allows_any_size(getenv("OMP_DYNAMIC")));
    STORE(&slot->frozen, 0);
    STORE(&slot->size_max, 0);
    STORE(&slot->size_last, 0);
    STORE(&slot->active, 0);
    STORE(&slot->entered, 0);
    for (uint32_t i = 0; i <= ENTRIES; i++) {
        struct entry *e = i < ENTRIES ? &slot->entries[i] : &slot->rest;
        STORE(&e->count, 0);
        STORE(&e->time_ns, 0);
        STORE(&e->size, 0);
        STORE(&e->region, 0);
    }
    __atomic_fetch_add(&slot->generation, 1, __ATOMIC_RELEASE);
    return slot;
}

static struct local *local_new(void) {
    struct local *mine = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *none = NULL;
    if (mine == MAP_FAILED)
        return NULL;
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
    mine->wiped = madvise(mine, 4096, MADV_WIPEONFORK) == 0;
    if (__atomic_compare_exchange_n(&local, &none, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mine;
    munmap(mine, 4096);
    return none;
}

/* The slot of this process, or NULL. */
static struct slot *slot_of_process(void) {
    struct local *l = ACQUIRE(&local);
    if (!l && !(l = local_new()))
        return NULL;
    uint32_t state = ACQUIRE(&l->state);
    /* In a forked child, the whole page is 0, including `wiped`. */
    if (state > 1 && !l->wiped && l->pid != getpid())
        state = 0, RELEASE(&l->state, 0);
    if (state == 2)
        return l->slot;
    uint32_t none = 0;
    if (state != 0 || !__atomic_compare_exchange_n(&l->state, &none, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return NULL;
    l->pid = getpid();
    l->slot = slot_claim();
    RELEASE(&l->state, l->slot ? 2 : 3);
    return l->slot;
}

/* The program may rely on a size from now on: `size_read`, or the requested size if that is 0. */
static void fix(struct slot *slot, uint32_t why, uint32_t size_read) {
    if (LOAD(&slot->consent) || (LOAD(&slot->fixed) & why))
        return;
    if (!LOAD(&slot->fixed))
        STORE(&slot->frozen, size_read);
    /* Pairs with the acquire in `limit`: a reader of `fixed` also reads the size. */
    __atomic_fetch_or(&slot->fixed, why, __ATOMIC_RELEASE);
}

/* The largest permitted size now, 0 for any. */
static uint32_t limit(struct slot *slot, uint64_t now) {
    if (ACQUIRE(&slot->fixed) && !LOAD(&slot->consent))
        return LOAD(&slot->frozen);
    uint64_t beat = LOAD(&channel->header.beat_ns);
    if (now > beat && now - beat > LEASE_NS)
        return 0;
    uint32_t size = LOAD(&slot->size);
    if (size == 0)
        size = LOAD(&channel->header.size);
    return size == SIZE_AS_ASKED ? 0 : size;
}

#define ENTRY_PROBES 8u

static struct entry *entry_of(struct slot *slot, uint64_t region, uint32_t size) {
    uint32_t at = hash(region ^ ((uint64_t)size << 52));
    for (uint32_t i = 0; i < ENTRY_PROBES; i++) {
        struct entry *e = &slot->entries[(at + i) % ENTRIES];
        uint64_t found = ACQUIRE(&e->region); /* pairs with the release below: `size` is written */
        if (found == region && LOAD(&e->size) == size)
            return e;
        if (found == 0 &&
            __atomic_compare_exchange_n(&e->region, &found, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            STORE(&e->size, size);
            RELEASE(&e->region, region);
            return e;
        }
    }
    return &slot->rest;
}

/* ---- A region -------------------------------------------------------------------------------- */

struct span {
    struct slot *slot; /* NULL: the region is not counted */
    uint64_t region;
    uint64_t begin_ns;
    uint32_t size;
};

int omp_get_level(void);
EXPORT int omp_get_max_threads(void);
EXPORT void omp_set_num_threads(int size);
EXPORT int omp_get_num_threads(void);
EXPORT int omp_get_team_size(int level);
EXPORT void omp_set_dynamic(int on);
EXPORT int omp_get_dynamic(void);

/* Called before a region that requests `asked` threads (0: the default; 1: only the caller).
 * Returns the size to request. */
static unsigned enter(struct span *span, uintptr_t site, uintptr_t region, unsigned asked) {
    THREAD_LOCAL int dynamic_off;
    struct runtime *rt = runtime_at(site);
    span->slot = NULL;
    if (asked == 1)
        return asked;
    struct slot *slot = slot_of_process();
    if (!slot || !function(rt, NR_omp_get_level) || REAL(rt, omp_get_level)() != 0)
        return asked;
    if (asked)
        fix(slot, FIXED_CLAUSE, 0);
    if (site & SITE_THREAD_DATA)
        fix(slot, FIXED_THREAD_DATA, 0);
    if (LOAD(&slot->consent) && !dynamic_off && function(rt, NR_omp_set_dynamic)) {
        REAL(rt, omp_set_dynamic)(0); /* otherwise the runtime adjusts the size by itself */
        dynamic_off = 1;
    }
    int by_itself = asked || !function(rt, NR_omp_get_max_threads) ? (int)asked : REAL(rt, omp_get_max_threads)();
    uint32_t most = by_itself > 0 ? (uint32_t)by_itself : 1;
    uint64_t now = clock_ns();
    uint32_t allowed = limit(slot, now);
    /* A clause has precedence over a size that the program read in another region. */
    if (asked && !LOAD(&slot->consent))
        allowed = 0;
    uint32_t size = allowed && allowed < most ? allowed : most;
    STORE(&slot->size_max, most);
    STORE(&slot->size_last, size);
    STORE(&slot->now_region, region);
    STORE(&slot->now_ns, now);
    ADD(&slot->active, 1);
    ADD(&slot->entered, 1);
    *span = (struct span){slot, region, now, size};
    return size == most ? asked : size;
}

static void leave(struct span *span) {
    struct slot *slot = span->slot;
    if (!slot)
        return;
    uint64_t now = clock_ns();
    struct entry *e = entry_of(slot, span->region, span->size);
    ADD(&e->time_ns, now - span->begin_ns);
    ADD(&e->count, 1);
    ADD(&slot->active, (uint32_t)-1);
    span->slot = NULL;
}

/* ---- libgomp --------------------------------------------------------------------------------- */

#define COMMA ,
#define REGION(name, more_parameters, more_arguments)                                                                  \
    EXPORT void name(region_fn *fn, void *data, unsigned size more_parameters) {                                       \
        struct span span;                                                                                              \
        uintptr_t site = site_value((uintptr_t)fn, NR_##name);                                                         \
        __typeof__(&name) real = (__typeof__(&name))need(runtime_at(site), NR_##name);          \
        size = enter(&span, site, (uintptr_t)fn, size);                                                                \
        real(fn, data, size more_arguments);                                                                           \
        leave(&span);                                                                                                  \
    }

#define LOOP(name)                                                                                                     \
    REGION(name, COMMA long start COMMA long end COMMA long step COMMA long chunk COMMA unsigned flags,                \
           COMMA start COMMA end COMMA step COMMA chunk COMMA flags)
#define LOOP_RUNTIME(name)                                                                                             \
    REGION(name, COMMA long start COMMA long end COMMA long step COMMA unsigned flags,                                 \
           COMMA start COMMA end COMMA step COMMA flags)

REGION(GOMP_parallel, COMMA unsigned flags, COMMA flags)
REGION(GOMP_parallel_sections, COMMA unsigned count COMMA unsigned flags, COMMA count COMMA flags)
LOOP(GOMP_parallel_loop_static)
LOOP(GOMP_parallel_loop_dynamic)
LOOP(GOMP_parallel_loop_guided)
LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)
LOOP(GOMP_parallel_loop_nonmonotonic_guided)
LOOP_RUNTIME(GOMP_parallel_loop_runtime)
LOOP_RUNTIME(GOMP_parallel_loop_nonmonotonic_runtime)
LOOP_RUNTIME(GOMP_parallel_loop_maybe_nonmonotonic_runtime)

EXPORT unsigned GOMP_parallel_reductions(region_fn *fn, void *data, unsigned size, unsigned flags) {
    struct span span;
    uintptr_t site = site_value((uintptr_t)fn, NR_GOMP_parallel_reductions);
    __typeof__(&GOMP_parallel_reductions) real =
        MUST(runtime_at(site), GOMP_parallel_reductions);
    size = enter(&span, site, (uintptr_t)fn, size);
    unsigned got = real(fn, data, size, flags);
    leave(&span);
    return got;
}

/* Before gcc 4.9 a region was two calls, with the work of the caller between them. Only outermost
 * regions are counted, so one span per thread is sufficient. */
THREAD_LOCAL struct span open_span;

#define REGION_START(name, more_parameters, more_arguments)                                                            \
    EXPORT void name(region_fn *fn, void *data, unsigned size more_parameters) {                                       \
        struct span span;                                                                                              \
        uintptr_t site = site_value((uintptr_t)fn, NR_##name);                                                         \
        __typeof__(&name) real = (__typeof__(&name))need(runtime_at(site), NR_##name);          \
        size = enter(&span, site, (uintptr_t)fn, size);                                                                \
        real(fn, data, size more_arguments);                                                                           \
        if (span.slot)                                                                                                 \
            open_span = span;                                                                                          \
    }

#define LOOP_START(name)                                                                                               \
    REGION_START(name, COMMA long start COMMA long end COMMA long step COMMA long chunk,                               \
                 COMMA start COMMA end COMMA step COMMA chunk)

REGION_START(GOMP_parallel_start, , )
REGION_START(GOMP_parallel_sections_start, COMMA unsigned count, COMMA count)
LOOP_START(GOMP_parallel_loop_static_start)
LOOP_START(GOMP_parallel_loop_dynamic_start)
LOOP_START(GOMP_parallel_loop_guided_start)
REGION_START(GOMP_parallel_loop_runtime_start, COMMA long start COMMA long end COMMA long step,
             COMMA start COMMA end COMMA step)

EXPORT void GOMP_parallel_end(void) {
    struct runtime *rt = runtime_of(CALLER, NR_GOMP_parallel_end);
    __typeof__(&GOMP_parallel_end) real = MUST(rt, GOMP_parallel_end);
    int outermost = open_span.slot && function(rt, NR_omp_get_level) && REAL(rt, omp_get_level)() == 1;
    real();
    if (outermost)
        leave(&open_span);
}

/* ---- libomp ---------------------------------------------------------------------------------- */

/* A num_threads clause is a separate call before the fork: the requested size, or HANDS_OFF.
 * 0: no clause. */
#define HANDS_OFF (-1)
THREAD_LOCAL int pushed;

EXPORT void __kmpc_push_num_threads(void *loc, int thread, int size) {
    pushed = size > 0 ? size : 0;
    MUST(runtime_of(CALLER, NR___kmpc_push_num_threads), __kmpc_push_num_threads)(loc, thread, size);
}

/* Sizes for nested levels, and strict sizes (OpenMP 6), are forwarded unchanged. */
EXPORT void __kmpc_push_num_threads_list(void *loc, int thread, unsigned count, int *sizes) {
    pushed = HANDS_OFF;
    MUST(runtime_of(CALLER, NR___kmpc_push_num_threads_list), __kmpc_push_num_threads_list)(loc, thread, count, sizes);
}

EXPORT void __kmpc_push_num_threads_strict(void *loc, int thread, int size, int severity, const char *message) {
    pushed = HANDS_OFF;
    MUST(runtime_of(CALLER, NR___kmpc_push_num_threads_strict), __kmpc_push_num_threads_strict)
    (loc, thread, size, severity, message);
}

EXPORT void __kmpc_push_num_threads_list_strict(void *loc, int thread, unsigned count, int *sizes, int severity,
                                                const char *message) {
    pushed = HANDS_OFF;
    MUST(runtime_of(CALLER, NR___kmpc_push_num_threads_list_strict), __kmpc_push_num_threads_list_strict)
    (loc, thread, count, sizes, severity, message);
}

/* A region whose if clause is false uses up the num_threads clause. */
EXPORT void __kmpc_serialized_parallel(void *loc, int thread) {
    pushed = 0;
    MUST(runtime_of(CALLER, NR___kmpc_serialized_parallel), __kmpc_serialized_parallel)(loc, thread);
}

EXPORT void *__kmpc_threadprivate_cached(void *loc, int thread, void *data, size_t size, void ***cache) {
    struct slot *slot = slot_of_process();
    if (slot)
        fix(slot, FIXED_THREAD_DATA, 0);
    return MUST(runtime_of(CALLER, NR___kmpc_threadprivate_cached), __kmpc_threadprivate_cached)(loc, thread, data,
                                                                                                 size, cache);
}

int __kmpc_global_thread_num(void *loc);

/* Up to 8, 64 or 1024 arguments: surplus arguments that the callee does not read are harmless. */
#define A4(a, i) a[i], a[(i) + 1], a[(i) + 2], a[(i) + 3]
#define A8(a, i) A4(a, i), A4(a, (i) + 4)
#define A32(a, i) A8(a, i), A8(a, (i) + 8), A8(a, (i) + 16), A8(a, (i) + 24)
#define A64(a, i) A32(a, i), A32(a, (i) + 32)
#define A256(a, i) A64(a, i), A64(a, (i) + 64), A64(a, (i) + 128), A64(a, (i) + 192)
#define A1024(a, i) A256(a, i), A256(a, (i) + 256), A256(a, (i) + 512), A256(a, (i) + 768)

typedef void fork_call(void *loc, int argc, void *fn, ...);

/* A separate function, so that ordinary calls need no stack for 1,024 arguments. */
__attribute__((noinline)) static void fork_wide(fork_call *real, void *loc, int argc, void *fn, va_list *list) {
    void *a[1024] = {0};
    if (argc > 1024) {
        static const char text[] = "corebeat: a parallel region with more than 1024 variables; run it without corebeat\n";
        ssize_t ignored = write(2, text, sizeof text - 1);
        (void)ignored;
        abort();
    }
    for (int i = 0; i < argc; i++)
        a[i] = va_arg(*list, void *);
    if (argc <= 64)
        real(loc, argc, fn, A64(a, 0));
    else
        real(loc, argc, fn, A1024(a, 0));
}

EXPORT void __kmpc_fork_call(void *loc, int argc, void *fn, ...) {
    struct span span;
    uintptr_t site = site_value((uintptr_t)fn, NR___kmpc_fork_call);
    struct runtime *rt = runtime_at(site);
    fork_call *real = MUST(rt, __kmpc_fork_call);
    int clause = pushed;
    pushed = 0;
    span.slot = NULL;
    if (clause != HANDS_OFF && function(rt, NR___kmpc_push_num_threads) && function(rt, NR___kmpc_global_thread_num)) {
        unsigned size = enter(&span, site, (uintptr_t)fn, (unsigned)clause);
        if (size != (unsigned)clause) /* as a num_threads clause: nested regions are unaffected */
            REAL(rt, __kmpc_push_num_threads)(loc, REAL(rt, __kmpc_global_thread_num)(loc), (int)size);
    } else {
        struct slot *slot = slot_of_process();
        if (slot)
            fix(slot, FIXED_CLAUSE, 0);
    }
    va_list list;
    va_start(list, fn);
    if (argc <= 8) {
        void *a[8] = {0};
        for (int i = 0; i < argc; i++)
            a[i] = va_arg(list, void *);
        real(loc, argc, fn, A8(a, 0));
    } else {
        fork_wide(real, loc, argc, fn, &list);
    }
    va_end(list);
    leave(&span);
}

/* ---- Sizes that the program reads, and so may rely on ---------------------------------------- */

/* Calls by the runtime itself do not count. */
static int is_inside(struct runtime *rt, uintptr_t caller) {
    uintptr_t base = base_of(caller);
    return base != 0 && base == LOAD(&rt->base);
}

static int max_threads(uintptr_t caller) {
    struct runtime *rt = runtime_of(caller, NR_omp_get_max_threads);
    if (!rt)
        return 1;
    int size = MUST(rt, omp_get_max_threads)();
    struct slot *slot = slot_of_process();
    if (!slot || LOAD(&slot->consent))
        return size;
    if (!LOAD(&slot->fixed) && !is_inside(rt, caller))
        fix(slot, FIXED_MAX_READ, 0);
    /* A program that has read a size in a team reads the same number everywhere. */
    int size_read = ACQUIRE(&slot->fixed) ? (int)LOAD(&slot->frozen) : 0;
    return size_read > 0 && size_read < size ? size_read : size;
}

static void set_num_threads(uintptr_t caller, int size) {
    struct runtime *rt = runtime_of(caller, NR_omp_set_num_threads);
    if (!rt)
        return;
    struct slot *slot = slot_of_process();
    if (slot && !is_inside(rt, caller)) {
        fix(slot, FIXED_SIZE_SET, 0);
        STORE(&slot->frozen, 0);
    }
    MUST(rt, omp_set_num_threads)(size);
}

/* The program has read the size of a team. */
static int read_in_team(struct runtime *rt, uintptr_t caller, int level, int size) {
    struct slot *slot = slot_of_process();
    if (!slot || LOAD(&slot->consent) || LOAD(&slot->fixed) || level != 1 || size < 1 || is_inside(rt, caller))
        return size;
    /* A team of one was set by Corebeat, or its if clause is false, which does not count. */
    if (size > 1 || LOAD(&slot->size_last) == 1)
        fix(slot, FIXED_SIZE_READ, (uint32_t)size);
    return size;
}

static int num_threads(uintptr_t caller) {
    uintptr_t site = site_value(caller, NR_omp_get_num_threads);
    struct runtime *rt = runtime_at(site);
    if (!rt)
        return 1;
    int size = MUST(rt, omp_get_num_threads)();
    if (site & SITE_COMPILER)
        return size;
    return read_in_team(rt, caller, function(rt, NR_omp_get_level) ? REAL(rt, omp_get_level)() : 0, size);
}

static int team_size(uintptr_t caller, int level) {
    struct runtime *rt = runtime_of(caller, NR_omp_get_team_size);
    if (!rt)
        return level == 0 ? 1 : -1;
    return read_in_team(rt, caller, level, MUST(rt, omp_get_team_size)(level));
}

static void set_dynamic(uintptr_t caller, int on) {
    struct runtime *rt = runtime_of(caller, NR_omp_set_dynamic);
    if (!rt)
        return;
    struct slot *slot = slot_of_process();
    if (!slot) {
        MUST(rt, omp_set_dynamic)(on);
        return;
    }
    MUST(rt, omp_set_dynamic)(0);
    STORE(&slot->consent, (uint32_t)(on != 0));
    if (!on)
        fix(slot, FIXED_NO_DYNAMIC, 0);
}

static int get_dynamic(uintptr_t caller) {
    struct runtime *rt = runtime_of(caller, NR_omp_get_dynamic);
    struct slot *slot = slot_of_process();
    if (slot && LOAD(&slot->consent))
        return 1;
    return rt ? MUST(rt, omp_get_dynamic)() : 0;
}

EXPORT int omp_get_max_threads(void) { return max_threads(CALLER); }
EXPORT int omp_get_max_threads_(void) { return max_threads(CALLER); }
EXPORT void omp_set_num_threads(int size) { set_num_threads(CALLER, size); }
EXPORT void omp_set_num_threads_(const int *size) { set_num_threads(CALLER, *size); }
EXPORT void omp_set_num_threads_8_(const int64_t *size) {
    set_num_threads(CALLER, *size > INT32_MAX ? INT32_MAX : *size < INT32_MIN ? INT32_MIN : (int)*size);
}
EXPORT int omp_get_num_threads(void) { return num_threads(CALLER); }
EXPORT int omp_get_num_threads_(void) { return num_threads(CALLER); }
EXPORT int omp_get_team_size(int level) { return team_size(CALLER, level); }
EXPORT int omp_get_team_size_(const int *level) { return team_size(CALLER, *level); }
EXPORT int omp_get_team_size_8_(const int64_t *level) {
    return *level > INT32_MAX || *level < INT32_MIN ? -1 : team_size(CALLER, (int)*level);
}
EXPORT void omp_set_dynamic(int on) { set_dynamic(CALLER, on); }
EXPORT void omp_set_dynamic_(const int *on) { set_dynamic(CALLER, *on); }
EXPORT void omp_set_dynamic_8_(const int64_t *on) { set_dynamic(CALLER, *on != 0); }
EXPORT int omp_get_dynamic(void) { return get_dynamic(CALLER); }
EXPORT int omp_get_dynamic_(void) { return get_dynamic(CALLER); }

/* ---- How many CPUs the program counts -------------------------------------------------------- */

/* The largest count: COREBEAT_CPUS, LONG_MAX without it; 0 until it is read. */
static long cpus_max;
/* The functions behind this library: those of the C library, or of a library that the user
 * preloads. NULL until they are searched. */
static __typeof__(&sysconf) sysconf_next;
static int (*get_nprocs_next)(void);

static long cpus(void) {
    long count = LOAD(&cpus_max);
    if (count)
        return count;
    const char *text = getenv("COREBEAT_CPUS");
    for (; text && *text >= '0' && *text <= '9' && count < 1000000; text++)
        count = count * 10 + (*text - '0');
    if (count == 0 || *text)
        count = LONG_MAX;
    STORE(&cpus_max, count);
    return count;
}

/* Reads the environment and searches the functions before the program has threads, which could
 * change the environment. Later calls take no lock: a signal handler may call sysconf. */
__attribute__((constructor)) static void prepare_counts(void) {
    cpus();
    STORE(&sysconf_next, (__typeof__(&sysconf))dlsym(RTLD_NEXT, "sysconf"));
    STORE(&get_nprocs_next, (int (*)(void))dlsym(RTLD_NEXT, "get_nprocs"));
}

/* Another name of sysconf in glibc, for calls by the constructors of other libraries, such as an
 * allocator: these run before the constructor of this library. */
#pragma weak __sysconf
long __sysconf(int name);

static long system_value(int name) {
    __typeof__(&sysconf) next = LOAD(&sysconf_next);
    if (!next)
        next = __sysconf ? &__sysconf : (__typeof__(&sysconf))dlsym(RTLD_NEXT, "sysconf");
    return next ? next(name) : -1;
}

static long at_most_cpus(long count) {
    long most = cpus();
    return count > most ? most : count;
}

EXPORT long sysconf(int name) {
    long value = system_value(name);
    return name == _SC_NPROCESSORS_ONLN ? at_most_cpus(value) : value;
}

EXPORT int get_nprocs(void) {
    __typeof__(get_nprocs_next) next = LOAD(&get_nprocs_next);
    return (int)at_most_cpus(next ? next() : system_value(_SC_NPROCESSORS_ONLN));
}

int omp_get_num_procs(void);

static int num_procs(uintptr_t caller) {
    struct runtime *rt = runtime_of(caller, NR_omp_get_num_procs);
    return rt ? (int)at_most_cpus(MUST(rt, omp_get_num_procs)()) : 1;
}

EXPORT int omp_get_num_procs(void) { return num_procs(CALLER); }
EXPORT int omp_get_num_procs_(void) { return num_procs(CALLER); }
