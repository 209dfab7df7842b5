/* Counts of watched threads, in a table that user space maps.
 *
 * The kernel itself counts how long each thread ran and waited for a CPU, and how often it switched
 * and moved. `refresh` copies these numbers for all watched threads at once, so no program runs
 * when threads switch. Only what the kernel does not count needs programs at events:
 *
 *   futex_wait and the like   begin and end of a wait in a futex call, and whether it is for a lock
 *   sched_process_exit, free  the last numbers of a thread; those of `free` include its last run
 *   sched_process_exec        the end of a row whose thread takes the number of the first thread
 *
 * They do nothing for threads that user space has not added.
 */
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* States of a thread: src/table/row.rs has the same numbers. */
enum {
	RUNS = 1,
	WAITS,
	/* Blocked: in a futex call for a lock, in another one, elsewhere, or by a signal to stop. */
	LOCK,
	PARK,
	SLEEP,
	STOPPED,
};

/* State bits of the kernel (include/linux/sched.h). */
#define TASK_STOPPED_OR_TRACED 12

/* Numbers of system calls on x86-64. */
#define SYS_FUTEX 202
#define SYS_FUTEX_WAITV 449
#define SYS_FUTEX_WAIT 455

#define FUTEX_PRIVATE_FLAG 128
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_LOCK_PI2 13
/* Values of the word of a contended lock: in glibc, Rust and Go, and in libgomp. */
#define CONTENDED 2
#define CONTENDED_GOMP -1

#define NAME_BYTES 16

/* The numbers of a thread. src/table/row.rs has the same layout. */
struct row {
	/* Odd while a program changes the row. */
	u32 sequence;
	/* User space sets these two: the thread, 0 for none, and the use of the row. */
	u32 tid;
	u32 generation;
	u32 has_ended;
	u32 state;
	u32 cpu;
	/* Time of the other numbers on the monotonic clock; 0 before the first copy. */
	u64 at_ns;
	u64 run_ns;
	u64 wait_ns;
	u64 lock_ns;
	u64 park_ns;
	u64 voluntary;
	u64 involuntary;
	u64 migrations;
	/* Run time that clock ticks found outside of the kernel, and in it. */
	u64 user_ns;
	u64 system_ns;
	char name[NAME_BYTES];
	u64 unused;
};

/* The maximum is that of user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct row);
} rows SEC(".maps");

/* The row of a thread, and its futex calls. Only the thread itself changes these, except where a
 * copy adopts a wait that began before, and where it finds the address of a wait. */
struct waits {
	u32 place;
	u32 generation;
	u64 lock_ns;
	u64 park_ns;
	/* The present wait: its begin, or 0, its kind, and the counts at its begin. */
	u64 since_ns;
	u64 wait_ns;
	u64 switches;
	u32 is_for_lock;
	/* Whether a copy found the wait, and the thread slept already. */
	u32 is_adopted;
	/* Address of the last call that was not for a lock. */
	u64 parked_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct waits);
} waits SEC(".maps");

struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;

/* Whether a futex call waits for a lock, by its registers. The distinction is that of
 * `waits_for_lock` in the parser of /proc/PID/syscall. */
static __always_inline _Bool is_for_lock(struct waits *w, struct pt_regs *regs)
{
	u64 word = regs->di;
	_Bool is_lock = 0;

	if (regs->orig_ax == SYS_FUTEX) {
		s32 operation = (s32)regs->si & ~FUTEX_PRIVATE_FLAG, value = (s32)regs->dx;

		if (operation == FUTEX_LOCK_PI || operation == FUTEX_LOCK_PI2)
			is_lock = 1;
		else if (regs->r10 == 0)
			is_lock = (operation == FUTEX_WAIT &&
				   (value == CONTENDED || value == CONTENDED_GOMP)) ||
				  (operation == FUTEX_WAIT_BITSET && value == CONTENDED);
	}
	/* A condition variable of Rust counts its notifications: 2 is also the value of a lock. */
	if (is_lock && w->parked_at != word)
		return 1;
	w->parked_at = word;
	return 0;
}

/* Time in a run queue. The order of the two loads may lose the present wait, and never counts it
 * twice. The clock of run queues cannot be read: the present wait ends when the caller got its CPU,
 * shortly before. */
static __always_inline u64 wait_ns(struct task_struct *p)
{
	u64 before_ns = *(volatile u64 *)&p->sched_info.run_delay;
	u64 since_ns = *(volatile u64 *)&p->sched_info.last_queued;
	u64 until_ns = bpf_get_current_task_btf()->sched_info.last_arrival;

	return since_ns && until_ns > since_ns ? before_ns + until_ns - since_ns : before_ns;
}

/* Blocked time of a wait up to now. */
static __always_inline u64 blocked_ns(const struct waits *w, u64 since_ns, u64 waited_ns,
				      u64 switches, u64 now_ns)
{
	u64 queued_ns = waited_ns > w->wait_ns ? waited_ns - w->wait_ns : 0;

	if (w->switches == switches || now_ns < since_ns + queued_ns)
		return 0;
	return now_ns - since_ns - queued_ns;
}

static __always_inline int enter(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct waits *w = bpf_task_storage_get(&waits, p, 0, 0);

	if (!w)
		return 0;
	w->is_for_lock = is_for_lock(w, (struct pt_regs *)bpf_task_pt_regs(p));
	w->is_adopted = 0;
	w->wait_ns = p->sched_info.run_delay;
	w->switches = p->nvcsw;
	barrier();
	*(volatile u64 *)&w->since_ns = bpf_ktime_get_ns();
	return 0;
}

/* x86 keeps the order of the stores. A copy that reads the sums first and the present wait second
 * never counts a wait twice. */
static __always_inline int leave(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct waits *w = bpf_task_storage_get(&waits, p, 0, 0);
	u64 since_ns, ns;

	if (!w || !w->since_ns)
		return 0;
	since_ns = w->since_ns;
	ns = blocked_ns(w, since_ns, p->sched_info.run_delay, p->nvcsw, bpf_ktime_get_ns());
	*(volatile u64 *)&w->since_ns = 0;
	barrier();
	if (w->is_for_lock)
		w->lock_ns += ns;
	else
		w->park_ns += ns;
	return 0;
}

/* The functions of the kernel in which threads wait for futexes. */
#define WAITS_IN(function)                                                                         \
	SEC("fentry/" #function)                                                                   \
	int BPF_PROG(enter_##function)                                                             \
	{                                                                                          \
		return enter();                                                                    \
	}                                                                                          \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(leave_##function)                                                             \
	{                                                                                          \
		return leave();                                                                    \
	}

WAITS_IN(futex_wait)
WAITS_IN(futex_wait_multiple)
WAITS_IN(futex_lock_pi)
WAITS_IN(futex_wait_requeue_pi)

/* The row of a thread, if user space has not given it to another one. */
static __always_inline struct row *row_of(const struct waits *w)
{
	u32 place = w->place;
	struct row *row = bpf_map_lookup_elem(&rows, &place);

	return row && row->tid && row->generation == w->generation ? row : 0;
}

/* The state of a thread. */
static __always_inline u32 state_of(struct waits *w, struct task_struct *p)
{
	u32 bits = p->__state;
	struct pt_regs *regs;

	if (p->sched_info.last_queued)
		return WAITS;
	if (!bits)
		return RUNS;
	if (bits & TASK_STOPPED_OR_TRACED)
		return STOPPED;
	regs = (struct pt_regs *)bpf_task_pt_regs(p);
	switch (regs->orig_ax) {
	case SYS_FUTEX:
	case SYS_FUTEX_WAITV:
	case SYS_FUTEX_WAIT:
		return is_for_lock(w, regs) ? LOCK : PARK;
	default:
		return SLEEP;
	}
}

/* Begins the futex wait of a thread that has been added just now. */
static __always_inline void adopt(struct waits *w, struct task_struct *p)
{
	u32 state = state_of(w, p);

	if (state != LOCK && state != PARK)
		return;
	w->is_for_lock = state == LOCK;
	w->is_adopted = 1;
	w->wait_ns = wait_ns(p);
	w->switches = p->nvcsw - 1;
	__sync_val_compare_and_swap(&w->since_ns, 0, bpf_ktime_get_ns());
}

/* Ends an adopted wait whose thread has run since then. Its call may have begun before the programs
 * were loaded, and then no program runs at its end. */
static __always_inline void drop_adopted(struct waits *w, struct task_struct *p)
{
	u64 since_ns = w->since_ns;

	if (w->is_adopted && p->nvcsw != w->switches + 1)
		__sync_val_compare_and_swap(&w->since_ns, since_ns, 0);
}

/* Copies the numbers of a thread to its row. */
static __always_inline void copy(struct row *row, struct waits *w, struct task_struct *p)
{
	u64 waited_ns = wait_ns(p), now_ns = bpf_ktime_get_ns();
	u64 lock_ns = *(volatile u64 *)&w->lock_ns, park_ns = *(volatile u64 *)&w->park_ns;
	u64 since_ns = *(volatile u64 *)&w->since_ns;
	u32 state = state_of(w, p);

	if (since_ns) {
		u64 ns = blocked_ns(w, since_ns, waited_ns, p->nvcsw, now_ns);

		if (w->is_for_lock)
			lock_ns += ns;
		else
			park_ns += ns;
	}
	/* The present wait may be lost at its end, before the sum has it. */
	if (row->at_ns) {
		waited_ns = waited_ns > row->wait_ns ? waited_ns : row->wait_ns;
		lock_ns = lock_ns > row->lock_ns ? lock_ns : row->lock_ns;
		park_ns = park_ns > row->park_ns ? park_ns : row->park_ns;
	}
	/* Atomic because a thread may end meanwhile: the number must become even again. */
	__sync_fetch_and_add(&row->sequence, 1);
	barrier();
	row->state = state;
	row->cpu = p->thread_info.cpu;
	row->at_ns = now_ns;
	row->run_ns = p->se.sum_exec_runtime;
	row->wait_ns = waited_ns;
	row->lock_ns = lock_ns;
	row->park_ns = park_ns;
	row->voluntary = p->nvcsw;
	row->involuntary = p->nivcsw;
	row->migrations = p->se.nr_migrations;
	row->user_ns = p->utime;
	row->system_ns = p->stime;
	bpf_probe_read_kernel(row->name, sizeof(row->name), p->comm);
	barrier();
	__sync_fetch_and_add(&row->sequence, 1);
}

/* The rows that `refresh` copies. */
struct range {
	u32 begin;
	u32 end;
};

SEC("syscall")
int refresh(struct range *range)
{
	int i;

	bpf_for(i, range->begin, range->end) {
		u32 place = i;
		struct row *row = bpf_map_lookup_elem(&rows, &place);
		struct task_struct *p;
		struct waits *w;

		if (!row)
			break;
		if (!row->tid || row->has_ended)
			continue;
		p = bpf_task_from_pid(row->tid);
		if (!p)
			continue;
		if (row->at_ns) {
			w = bpf_task_storage_get(&waits, p, 0, 0);
		} else {
			w = bpf_task_storage_get(&waits, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
			if (w) {
				w->place = place;
				w->generation = row->generation;
				adopt(w, p);
			}
		}
		/* Otherwise a later thread has the number. */
		if (w && w->place == place && w->generation == row->generation) {
			drop_adopted(w, p);
			copy(row, w, p);
		}
		bpf_task_release(p);
	}
	return 0;
}

/* Ends the row of a thread, if it has one. */
static __always_inline int end(struct task_struct *p)
{
	struct waits *w = bpf_task_storage_get(&waits, p, 0, 0);
	struct row *row = w ? row_of(w) : 0;

	if (!row)
		return 0;
	row->has_ended = 1;
	copy(row, w, p);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *p)
{
	return end(p);
}

/* The thread has left its CPU for the last time, some milliseconds ago. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *p)
{
	return end(p);
}

/* A thread that calls `execve` gets the number of the first thread of its process. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *p, s32 old_pid)
{
	return p->pid == old_pid ? 0 : end(p);
}
