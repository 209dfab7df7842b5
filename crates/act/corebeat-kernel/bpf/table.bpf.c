/* Counts what watched threads do, in a table that user space maps. Each transition of a thread adds
 * the time of the state that ends:
 *
 *   sched_switch          runs --> waits for a CPU, blocked, or ended; the next thread runs
 *   sched_wakeup          blocked --> waits
 *   sched_process_exec    ends the row of a thread that takes the number of the first thread
 *   sched_migrate_task    counts the move
 *
 * The kernel runs the first two for one thread one after the other (it holds the lock of the run
 * queue), so a row has one writer at a time. Only at `execve` there may be a second one: the first
 * thread of the process, which gets the number of the caller and leaves its CPU for the last time.
 * The programs run at every switch of the host, and do
 * nothing for threads that user space has not added.
 */
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* States of a thread: src/table/row.rs has the same numbers. */
enum {
	/* No event since user space has added the thread. */
	UNKNOWN,
	RUNS,
	WAITS,
	/* Blocked: in a futex call for a lock, in another one, elsewhere, or by a signal to stop. */
	LOCK,
	PARK,
	SLEEP,
	STOPPED,
	ENDED,
	STATES,
};

/* State bits of the kernel (include/linux/sched.h). */
#define TASK_INTERRUPTIBLE 1
#define TASK_STOPPED_OR_TRACED 12
#define TASK_DEAD 128

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

/* The counts of a thread. src/table/row.rs has the same layout. */
struct row {
	/* Odd while a program changes the row. */
	u32 sequence;
	u32 state;
	/* Since this time on the monotonic clock, the state lasts. */
	u64 since_ns;
	/* Time in each state, without the present one. */
	u64 state_ns[STATES];
	u64 voluntary;
	u64 involuntary;
	/* Changes outside of `sequence`: the thread may move while it is blocked. */
	u64 migrations;
	/* Address of the last futex call that was not for a lock. */
	u64 parked_at;
	u32 cpu;
	u32 unused[3];
};

/* The maximum is that of user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct row);
} rows SEC(".maps");

/* The row of each watched thread, by its number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} places SEC(".maps");

/* A bit for the last 16 bits of each number in `places`: other threads need no search. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} marks SEC(".maps");

static __always_inline struct row *row_of(u32 tid)
{
	u32 at = tid / 64 % 1024, *place;
	u64 *bits = bpf_map_lookup_elem(&marks, &at);

	if (!bits || !(*bits >> tid % 64 & 1))
		return 0;
	place = bpf_map_lookup_elem(&places, &tid);
	return place ? bpf_map_lookup_elem(&rows, place) : 0;
}

/* Ends the present state of a thread. The caller changes other counts between `begin` and `finish`.
 * On x86, stores become visible in their order, so user space that finds the same even number
 * before and after its copy has no partial change. */
static __always_inline void begin(struct row *row, u64 now_ns)
{
	u64 since_ns = row->since_ns;

	/* Atomic because of the two writers at `execve`: the number must become even again. */
	__sync_fetch_and_add(&row->sequence, 1);
	barrier();
	if (now_ns > since_ns)
		row->state_ns[row->state & (STATES - 1)] += now_ns - since_ns;
}

static __always_inline void finish(struct row *row, u32 state, u64 now_ns)
{
	*(volatile u32 *)&row->state = state;
	row->since_ns = now_ns;
	barrier();
	__sync_fetch_and_add(&row->sequence, 1);
}

static __always_inline void enter(struct row *row, u32 state, u64 now_ns)
{
	begin(row, now_ns);
	finish(row, state, now_ns);
}

/* The state of a thread, the caller, that goes to sleep. The distinction is that of
 * `waits_for_lock` in the parser of /proc/PID/syscall. */
static __always_inline u32 blocked(struct row *row, u32 task_state)
{
	struct pt_regs *regs;
	s32 operation, value;
	_Bool is_lock = 0;
	u64 word;

	if (task_state & TASK_STOPPED_OR_TRACED)
		return STOPPED;
	if (!(task_state & TASK_INTERRUPTIBLE))
		return SLEEP;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	word = regs->di;
	switch (regs->orig_ax) {
	case SYS_FUTEX:
		operation = (s32)regs->si & ~FUTEX_PRIVATE_FLAG;
		value = (s32)regs->dx;
		if (operation == FUTEX_LOCK_PI || operation == FUTEX_LOCK_PI2)
			is_lock = 1;
		else if (regs->r10 == 0)
			is_lock = (operation == FUTEX_WAIT &&
				   (value == CONTENDED || value == CONTENDED_GOMP)) ||
				  (operation == FUTEX_WAIT_BITSET && value == CONTENDED);
		break;
	case SYS_FUTEX_WAITV:
	case SYS_FUTEX_WAIT:
		break;
	default:
		return SLEEP;
	}
	/* A condition variable of Rust counts its notifications: 2 is also the value of a lock. */
	if (is_lock && row->parked_at != word)
		return LOCK;
	row->parked_at = word;
	return PARK;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool is_preempted, struct task_struct *prev, struct task_struct *next,
	     unsigned int task_state)
{
	struct row *from = row_of(prev->pid), *to = row_of(next->pid);
	u32 state = WAITS, tid = prev->pid;
	u64 now_ns;

	if (!from) {
		/* Otherwise the compiler tests both at once, which the verifier refuses. */
		barrier();
		if (!to)
			return 0;
	}
	now_ns = bpf_ktime_get_ns();
	if (from && task_state & TASK_DEAD) {
		/* A later thread may get the number. */
		bpf_map_delete_elem(&places, &tid);
		enter(from, ENDED, now_ns);
	} else if (from) {
		begin(from, now_ns);
		if (is_preempted || !task_state) {
			from->involuntary += 1;
		} else {
			from->voluntary += 1;
			/* Before Linux 6.15, `task_state` is that before the kernel found a signal
			 * for the thread, which remains runnable. The field has the state after
			 * that. */
			if (prev->__state)
				state = blocked(from, task_state);
		}
		finish(from, state, now_ns);
	}
	if (to) {
		begin(to, now_ns);
		to->cpu = bpf_get_smp_processor_id();
		finish(to, RUNS, now_ns);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	struct row *row = row_of(p->pid);

	/* A thread that has not left its CPU yet has not slept. */
	if (row && row->state != RUNS && row->state != WAITS)
		enter(row, WAITS, bpf_ktime_get_ns());
	return 0;
}

/* A thread that calls `execve` gets the number of the first thread of its process. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *p, s32 old_pid)
{
	u32 tid = old_pid;
	struct row *row;

	if (p->pid == old_pid)
		return 0;
	row = row_of(tid);
	if (row) {
		bpf_map_delete_elem(&places, &tid);
		enter(row, ENDED, bpf_ktime_get_ns());
	}
	/* The row of the first thread continues with this one, if that thread has not left its CPU
	 * for the last time before. */
	row = row_of(p->pid);
	if (row && row->state != RUNS)
		enter(row, RUNS, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int cpu)
{
	struct row *row = row_of(p->pid);

	if (row)
		row->migrations += 1;
	return 0;
}
