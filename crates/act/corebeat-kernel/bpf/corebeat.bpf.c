/* The scheduler in the kernel. It schedules the threads of class SCHED_EXT, or all threads of the
 * host without a real-time policy, and decides nothing by itself: decision.h has the rules, and
 * user space sets weights, quotas, classes and the owners of CPUs (src/scheduler.rs).
 *
 *   thread wakes --> select_cpu: finds an idle CPU, if there is one
 *                        |
 *                     enqueue --> queue of its group, by virtual time --> kick of the idle CPU, or
 *                                        |                                of one that must give way
 *   CPU is free ----> dispatch: pick(groups) --> first thread of the queue that may run there
 *
 * No thread waits in the queue of a CPU, which the kernel would serve before these queues and only
 * on this CPU. If a thread of another scheduler takes a CPU, the thread that ran there goes back to
 * the queue of its group (cpu_release). Threads of group 0 that may run on one CPU only, such as
 * those of the kernel for this CPU, have a queue for each CPU: group 0 has two queues there.
 */
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define INLINE __always_inline
#define EACH(i, count) bpf_for(i, 0, count)
/* A number that the verifier does not follow: it would follow each sum through all iterations. */
static volatile u64 zero_value;
#define ZERO zero_value

#include "decision.h"

char _license[] SEC("license") = "Dual MIT/GPL";

/* Interval of the search for groups whose quota permits running again. */
#define REFILL_NS 10000000ULL
/* Number of these intervals after which idle CPUs search for threads that starve behind a quota. */
#define REFILLS_PER_SEARCH 100
/* Largest number of waiting threads of a group that a search examines. */
#define SEARCHED_MAX 512
/* Queue of the threads of group 0 that may run on this CPU only. */
#define BOUND_QUEUE(cpu) (GROUPS_MAX + ((u64)(cpu) & (CPUS_MAX - 1)))
#define CLOCK_MONOTONIC 1

/* State of a thread. */
struct thread {
	u32 group;
	/* Whether it runs or waits. */
	u32 is_runnable;
	/* CPU time by its nice value, in nanoseconds at weight 100. */
	u64 vtime_ns;
	/* Since this time, its CPU time is not accounted; 0 if it does not run. */
	u64 started_ns;
	/* Since this time, it waits in a queue. */
	u64 queued_ns;
	/* Its weight in the sum of its group while it runs or waits. */
	u64 weight;
	/* One more than the idle CPU that was found for it; 0 for none. */
	u32 place;
	/* That of its group when it entered the group. */
	u32 generation;
};

/* How long a set had a turn, and how long it was together. User space reads this structure;
 * src/state.rs has the same layout. */
struct account {
	struct bpf_spin_lock lock;
	u32 state;
	u64 at_ns;
	u64 on_ns;
	u64 together_ns;
};

struct timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* The group of a thread, and the generation of the group when user space assigned it. User space
 * has the same layout in src/loaded.rs. */
struct member {
	u32 group;
	u32 generation;
};

/* Groups of threads that user space assigns, by thread number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, struct member);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUPS_MAX);
	__type(key, u32);
	__type(value, struct account);
} accounts SEC(".maps");

/* The owner of each CPU, for `set_owners`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, u32);
	__type(value, u32);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

struct group groups[GROUPS_MAX] SEC(".data.groups");
struct cpu cpus[CPUS_MAX] SEC(".data.cpus");

/* The end of the scheduler, for user space. */
struct end {
	s32 kind;
	char message[124];
};
struct end end SEC(".data.end");

/* Numbers of groups and CPUs that are in use. */
static volatile u32 group_count = 1;
/* Number of groups with a thread that runs or waits. */
static volatile u32 awake_groups;
static volatile u32 cpu_count;
static volatile u32 has_owners;
static volatile u32 has_quota;
/* Whether a queue for one CPU has been used. */
static volatile u32 has_bound;
static u32 refills;
/* The clock of groups (clock_of_groups_ns). */
static volatile u64 clock_ns;
/* The time of the next search of each CPU, and the number of its searches. */
static u64 search_at_ns[CPUS_MAX];
static u32 searches[CPUS_MAX];

#define ADD(field, value) __sync_fetch_and_add(&(field), (value))

static __always_inline u64 now(void)
{
	return bpf_ktime_get_ns();
}

/* The bounds of these two functions are those that the verifier requires. */
static __always_inline struct group *group_at(u32 id)
{
	return &groups[id & (GROUPS_MAX - 1)];
}

static __always_inline struct cpu *cpu_at(u32 cpu)
{
	return &cpus[cpu & (CPUS_MAX - 1)];
}

static __always_inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

static __always_inline u32 owner_of(s32 cpu)
{
	return has_owners ? cpu_at(cpu)->owner : NO_GROUP;
}

static __always_inline u32 running_on(s32 cpu)
{
	return cpu_at(cpu)->group;
}

/* The slice of a thread: that of sched_setattr(2), else the default of the kernel. */
static __always_inline u64 slice_of(struct task_struct *p, const struct group *g, u64 now_ns)
{
	return slice_ns(g, p->se.slice, now_ns);
}

static __always_inline void insert_vtime(struct task_struct *p, u64 queue, u64 slice, u64 vtime)
{
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = queue,
			.slice = slice,
			.vtime = vtime,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else {
		scx_bpf_dsq_insert_vtime___void(p, queue, slice, vtime, 0);
	}
}

static __always_inline _Bool take(u64 queue)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___two))
		return scx_bpf_dsq_move_to_local___v2___two(queue, 0);
	return scx_bpf_dsq_move_to_local___one(queue);
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice___bool))
		scx_bpf_task_set_slice___bool(p, slice);
	else
		p->scx.slice = slice;
}

/* Adds the time since the last change to the account of a set. */
static __always_inline void account(u32 set, u64 now_ns)
{
	struct account *a;
	u32 state;

	if (!has_owners || set >= GROUPS_MAX || !(group_at(set)->flags & GROUP_IS_SET))
		return;
	a = bpf_map_lookup_elem(&accounts, &set);
	if (!a)
		return;
	state = set_state(cpus, cpu_count, set, group_at(set)->runnable);
	bpf_spin_lock(&a->lock);
	if (now_ns > a->at_ns) {
		if (a->state & SET_IS_ON)
			a->on_ns += now_ns - a->at_ns;
		if (a->state & SET_IS_TOGETHER)
			a->together_ns += now_ns - a->at_ns;
		a->at_ns = now_ns;
	}
	a->state = state;
	bpf_spin_unlock(&a->lock);
}

/* Accounts a change of the thread that runs on a CPU. */
static __always_inline void account_cpu(s32 cpu, u32 group, u64 now_ns)
{
	u32 owner = owner_of(cpu);

	account(group, now_ns);
	if (owner != group)
		account(owner, now_ns);
}

/* Accounts the CPU time of a thread up to now. */
static __always_inline void settle(struct task_struct *p, struct thread *t, u64 now_ns)
{
	struct group *g = group_at(t->group);
	u64 ran_ns = now_ns > t->started_ns ? now_ns - t->started_ns : 0;
	/* One priority for all threads of a program of class batch. */
	u64 weight = g->flags & GROUP_IS_BATCH ? THREAD_WEIGHT : p->scx.weight;

	if (!t->started_ns)
		return;
	t->started_ns = now_ns;
	t->vtime_ns += charge_ns(ran_ns, weight, 1);
	ADD(g->vtime_ns, charge_ns(ran_ns, g->weight, g->thread_weight));
	ADD(g->ran_ns, ran_ns);
	if (g->quota_ns) {
		u64 period = now_ns / QUOTA_PERIOD_NS, before = g->period, used_ns = g->used_ns;

		/* One CPU begins the period. */
		if (period > before &&
		    __sync_val_compare_and_swap(&g->period, before, period) == before)
			ADD(g->used_ns, carried_ns(used_ns, g->quota_ns, period - before) - used_ns);
		ADD(g->used_ns, ran_ns);
	}
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct thread *t = thread_of(p);
	u64 now_ns = now();
	_Bool is_idle = 0;
	struct group *g;
	s32 cpu;
	int i;

	if (!t)
		return prev_cpu;
	g = group_at(t->group);
	if (is_capped(g, now_ns))
		return prev_cpu;
	/* An idle CPU of the thread's set comes first. */
	if (has_owners && (g->flags & GROUP_IS_SET)) {
		bpf_for(i, 0, cpu_count) {
			if (i < 0 || i >= CPUS_MAX)
				break;
			if (cpus[i].owner == t->group && bpf_cpumask_test_cpu(i, p->cpus_ptr) &&
			    scx_bpf_test_and_clear_cpu_idle(i)) {
				t->place = i + 1;
				return i;
			}
		}
	}
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	if (is_idle)
		t->place = cpu + 1;
	return cpu;
}

/* Finds a CPU of the set that runs a thread of another group. */
static __always_inline s32 victim(struct task_struct *p, u32 set)
{
	int i;

	bpf_for(i, 0, cpu_count) {
		if (i < 0 || i >= CPUS_MAX)
			break;
		if (!is_victim(&cpus[i], set) || !bpf_cpumask_test_cpu(i, p->cpus_ptr))
			continue;
		if (!__sync_lock_test_and_set(&cpus[i].is_claimed, 1))
			return i;
	}
	return -1;
}

/* Adds a thread that runs or waits to its group, or removes it. */
static __always_inline void count(struct thread *t, _Bool is_runnable, u64 weight, u64 now_ns)
{
	struct group *g = group_at(t->group);

	t->is_runnable = is_runnable;
	if (is_runnable) {
		t->weight = weight;
		t->vtime_ns = woken_vtime_ns(t->vtime_ns, g->floor_ns);
		ADD(g->thread_weight, weight);
		if (!t->started_ns)
			ADD(g->waiting, 1);
		/* Before the group counts a thread: another thread of it, whose CPU relies on
		 * `awake_groups`, does not change the number. */
		ADD(awake_groups, 1);
		if (ADD(g->runnable, 1)) {
			ADD(awake_groups, -1);
		} else {
			clock_ns = clock_of_groups_ns(groups, group_count, t->group, clock_ns,
						      now_ns);
			g->vtime_ns = woken_group_vtime_ns(g->vtime_ns, clock_ns);
		}
		ADD(g->runnable_base_ns, -now_ns);
	} else {
		if (g->runnable == 1)
			clock_ns = clock_of_groups_ns(groups, group_count, NO_GROUP, clock_ns,
						      now_ns);
		ADD(g->thread_weight, -t->weight);
		if (!t->started_ns)
			ADD(g->waiting, -1ULL);
		if (ADD(g->runnable, -1ULL) == 1)
			ADD(awake_groups, -1);
		ADD(g->runnable_base_ns, now_ns);
	}
	account(t->group, now_ns);
}

/* Moves a thread to the group that user space has assigned, or to group 0 if its program was
 * released. The thread has the virtual time of its new group. */
static __always_inline void assign(struct task_struct *p, struct thread *t, u64 now_ns)
{
	u32 pid = p->pid;
	struct member *member = bpf_map_lookup_elem(&members, &pid);
	u32 id = t->group, generation = group_at(id)->generation;
	_Bool is_runnable = t->is_runnable;

	if (member) {
		id = member->group & (GROUPS_MAX - 1);
		/* The program may have been released since then. */
		if (member->generation != group_at(id)->generation)
			id = 0;
		bpf_map_delete_elem(&members, &pid);
	} else if (t->generation != generation) {
		id = 0;
	}
	if (id == t->group && t->generation == generation)
		return;
	if (is_runnable)
		count(t, 0, 0, now_ns);
	t->group = id;
	t->generation = group_at(id)->generation;
	t->vtime_ns = group_at(id)->floor_ns;
	if (is_runnable)
		count(t, 1, p->scx.weight, now_ns);
}

/* Returns whether user space may have assigned a group to a thread that has not slept since. */
static __always_inline _Bool may_be_assigned(const struct thread *t)
{
	return !t->group || t->generation != group_at(t->group)->generation;
}

/* Returns whether a thread waits in the queue of its CPU. */
static __always_inline _Bool is_bound(struct task_struct *p, const struct thread *t)
{
	return !t->group && p->nr_cpus_allowed == 1;
}

/* Returns whether a thread that wakes up preempts no other one, by its own policy. */
static __always_inline _Bool is_modest(struct task_struct *p)
{
	return p->policy == SCHED_BATCH || p->policy == SCHED_IDLE;
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue, struct task_struct *p, u64 enq_flags)
{
	struct thread *t = thread_of(p);
	u64 now_ns = now();
	struct group *g;
	u32 run, place;
	u64 queue;
	s32 cpu;

	if (!t) {
		insert_vtime(p, 0, SLICE_NS_DEFAULT, 0);
		return;
	}
	/* A thread that started while its program was admitted, for example. If it wakes up,
	 * `runnable` has assigned it. */
	if (!(enq_flags & SCX_ENQ_WAKEUP) && may_be_assigned(t))
		assign(p, t, now_ns);
	g = group_at(t->group);
	t->queued_ns = now_ns;
	place = t->place;
	if (place)
		cpu_at(place - 1)->placed = t->group + 1;
	queue = t->group & (GROUPS_MAX - 1);
	if (is_bound(p, t)) {
		has_bound = 1;
		queue = BOUND_QUEUE(scx_bpf_task_cpu(p));
	}
	insert_vtime(p, queue, slice_of(p, g, now_ns), t->vtime_ns);
	if (place && !is_capped(g, now_ns)) {
		scx_bpf_kick_cpu(place - 1, SCX_KICK_IDLE);
		return;
	}
	if (is_capped(g, now_ns))
		return;
	if (has_owners && (g->flags & GROUP_IS_SET)) {
		cpu = victim(p, t->group);
		if (cpu >= 0) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			return;
		}
	}
	cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (cpu >= 0) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!(enq_flags & SCX_ENQ_WAKEUP) || is_modest(p))
		return;
	cpu = scx_bpf_task_cpu(p);
	run = running_on(cpu);
	if (run != NO_GROUP && preempts(g, t->group, t->vtime_ns, group_at(run), run,
					cpu_at(cpu)->vtime_ns, owner_of(cpu)))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* The virtual time of the first thread of a queue; the largest number for an empty queue. */
static __always_inline u64 first_vtime_ns(u64 queue)
{
	struct bpf_iter_scx_dsq it;
	u64 vtime_ns = ~0ULL;
	struct task_struct *p;

	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		p = bpf_iter_scx_dsq_next(&it);
		if (p)
			vtime_ns = p->scx.dsq_vtime;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return vtime_ns;
}

/* Returns the groups with waiting threads. */
static __always_inline u64 waiting_groups(void)
{
	u64 waiting = ZERO;
	int i;

	bpf_for(i, 0, group_count) {
		if (i < 0 || i >= GROUPS_MAX)
			break;
		/* The count includes threads that have left the queue for a CPU. */
		if (groups[i].waiting && scx_bpf_dsq_nr_queued(i) > 0)
			waiting |= 1ULL << i;
	}
	return waiting;
}

/* Records that a thread has been selected to run. Groups and threads that cannot use their shares
 * do not save them up. */
static __always_inline void advance(struct thread *t, u64 now_ns)
{
	u32 id = t->group & (GROUPS_MAX - 1);
	struct group *g = group_at(id);
	u64 first_ns = first_vtime_ns(id), waiting = waiting_groups();

	t->vtime_ns = credited_ns(t->vtime_ns, first_ns);
	g->floor_ns = risen_floor_ns(g->floor_ns, t->vtime_ns, first_ns);
	if (waiting & ~(1ULL << id)) {
		u64 least_ns = least_waiting_ns(groups, group_count, id, waiting, now_ns);

		u64 vtime_ns = g->vtime_ns, credited = credited_ns(vtime_ns, least_ns);

		/* Other CPUs add their times meanwhile. */
		if (credited > vtime_ns)
			ADD(g->vtime_ns, credited - vtime_ns);
	}
}

static __always_inline _Bool move(struct bpf_iter_scx_dsq *it, struct task_struct *p)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move___later))
		return scx_bpf_dsq_move___later(it, p, SCX_DSQ_LOCAL, 0);
	if (bpf_ksym_exists(scx_bpf_dispatch_from_dsq___first))
		return scx_bpf_dispatch_from_dsq___first(it, p, SCX_DSQ_LOCAL, 0);
	return 0;
}

/* Takes the first thread of a queue that starves and may run on this CPU, or the last one with the
 * flag SCX_DSQ_ITER_REV. Returns since when it has waited; 0 for no such thread. */
static __always_inline u64 take_starving_of(u64 queue, u64 flags, s32 cpu, u64 now_ns)
{
	struct bpf_iter_scx_dsq it;
	u64 since_ns = 0;
	int i;

	if (!bpf_iter_scx_dsq_new(&it, queue, flags)) {
		bpf_for(i, 0, SEARCHED_MAX) {
			struct task_struct *p = bpf_iter_scx_dsq_next(&it);
			struct thread *t;
			u64 queued_ns;

			if (!p)
				break;
			t = thread_of(p);
			if (!t)
				continue;
			queued_ns = t->queued_ns;
			if (is_starving(queued_ns, now_ns) &&
			    bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && move(&it, p)) {
				since_ns = queued_ns;
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return since_ns;
}

/* Takes the thread that found this CPU idle. */
static __always_inline _Bool take_placed(u64 queue, s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	_Bool has_taken = 0;
	int i;

	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		bpf_for(i, 0, SEARCHED_MAX) {
			struct task_struct *p = bpf_iter_scx_dsq_next(&it);
			struct thread *t;

			if (!p)
				break;
			t = thread_of(p);
			if (t && t->place == cpu + 1 && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
				has_taken = move(&it, p);
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return has_taken;
}

/* Takes a thread that has waited for too long. */
static __always_inline _Bool take_starving(s32 cpu, u64 waiting, u64 now_ns)
{
	u32 at = cpu & (CPUS_MAX - 1), turn;
	u64 since_ns = ZERO;
	int i;

	if (now_ns < search_at_ns[at])
		return 0;
	turn = searches[at]++;
	bpf_for(i, 0, group_count) {
		u32 id = searched_group(i, turn, group_count) & (GROUPS_MAX - 1);

		if (!(waiting & (1ULL << id)))
			continue;
		since_ns = take_starving_of(id, turn & 1 ? SCX_DSQ_ITER_REV : 0, cpu, now_ns);
		if (since_ns)
			break;
	}
	search_at_ns[at] = next_search_ns(since_ns, now_ns);
	return since_ns != 0;
}

/* Takes the thread of the queue for this CPU that has waited for too long, if one has. */
static __always_inline _Bool take_overdue(s32 cpu, u64 now_ns)
{
	u64 queue = BOUND_QUEUE(cpu), most_ns = ZERO;
	struct bpf_iter_scx_dsq it;
	_Bool has_taken = 0;
	int i, pid = ZERO;

	if (now_ns < cpu_at(cpu)->bound_at_ns)
		return 0;
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		bpf_for(i, 0, SEARCHED_MAX) {
			struct task_struct *p = bpf_iter_scx_dsq_next(&it);
			struct thread *t = p ? thread_of(p) : 0;
			u64 ns;

			if (!p)
				break;
			ns = t ? overdue_ns(t->queued_ns, p->scx.weight, now_ns) : 0;
			if (ns > most_ns) {
				most_ns = ns;
				pid = p->pid;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (!most_ns)
		return 0;
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		bpf_for(i, 0, SEARCHED_MAX) {
			struct task_struct *p = bpf_iter_scx_dsq_next(&it);

			if (!p)
				break;
			if (p->pid == pid) {
				has_taken = bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && move(&it, p);
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (has_taken)
		cpu_at(cpu)->bound_at_ns = now_ns + BOUND_NS;
	return has_taken;
}

/* The virtual time of the first thread of a group that waits for a CPU. */
static __always_inline u64 first_of_group_ns(u32 group, s32 cpu, _Bool has_own)
{
	u64 first_ns = first_vtime_ns(group), own_ns;

	if (group || !has_own)
		return first_ns;
	own_ns = first_vtime_ns(BOUND_QUEUE(cpu));
	return own_ns < first_ns ? own_ns : first_ns;
}

/* Takes the first thread of a group that may run on a CPU. */
static __always_inline _Bool take_of_group(u32 group, s32 cpu, _Bool has_own)
{
	if (group || !has_own)
		return take(group);
	if (first_vtime_ns(BOUND_QUEUE(cpu)) <= first_vtime_ns(0))
		return take(BOUND_QUEUE(cpu)) || take(0);
	return take(0) || take(BOUND_QUEUE(cpu));
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch, s32 cpu, struct task_struct *prev)
{
	u64 now_ns, waiting;
	u32 owner = owner_of(cpu), prev_group = NO_GROUP, placed;
	struct thread *t = 0;
	_Bool is_alone = 1, has_own;
	int i;

	cpu_at(cpu)->is_claimed = 0;
	/* The kernel asks each CPU that is about to idle. */
	if (!awake_groups)
		return;
	waiting = waiting_groups();
	has_own = has_bound && scx_bpf_dsq_nr_queued(BOUND_QUEUE(cpu)) > 0;
	if (has_own)
		waiting |= 1;
	placed = placed_group(cpu_at(cpu), waiting);
	if (is_displaced(cpu_at(cpu), waiting)) {
		bpf_for(i, 0, cpu_count)
			scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
	}
	cpu_at(cpu)->placed = 0;
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		t = thread_of(prev);
	/* A CPU without threads of this scheduler. */
	if (!waiting && !t)
		return;
	now_ns = now();
	if (t) {
		settle(prev, t, now_ns);
		if (!is_capped(group_at(t->group), now_ns))
			prev_group = t->group;
	}
	if (waiting && take_starving(cpu, waiting, now_ns))
		return;
	if (has_own && take_overdue(cpu, now_ns))
		return;
	if (!t && placed != NO_GROUP && !is_capped(group_at(placed), now_ns) &&
	    take_placed(placed, cpu))
		return;
	bpf_for(i, 0, GROUPS_MAX) {
		u32 next = pick(groups, group_count, owner, waiting, now_ns);

		if (next == NO_GROUP)
			break;
		if (t && prev_group != NO_GROUP) {
			u64 next_ns = next == prev_group ?
					      first_of_group_ns(next, cpu, has_own) : 0;

			if (continues(group_at(prev_group), prev_group, t->vtime_ns,
				      group_at(next), next, next_ns, owner)) {
				is_alone = 0;
				break;
			}
		}
		if (take_of_group(next, cpu, has_own))
			return;
		waiting &= ~(1ULL << (next & (GROUPS_MAX - 1)));
	}
	/* Without a slice, the thread goes back to its queue. */
	if (t && prev_group != NO_GROUP) {
		advance(t, now_ns);
		if (is_alone) {
			struct group *g = group_at(prev_group);
			u64 most_ns = clock_of_groups_ns(groups, group_count, NO_GROUP, clock_ns,
							 now_ns);

			/* No group that competes for this CPU loses its order. */
			if (g->vtime_ns > most_ns + DEBT_NS)
				g->vtime_ns = most_ns + DEBT_NS;
		}
		set_slice(prev, slice_of(prev, group_at(prev_group), now_ns));
		/* A thread that never waits enters the group of its program here. */
		if (may_be_assigned(t)) {
			assign(prev, t, now_ns);
			cpu_at(cpu)->group = t->group;
			account_cpu(cpu, t->group, now_ns);
		}
	}
}

SEC("struct_ops/runnable")
void BPF_PROG(runnable, struct task_struct *p, u64 enq_flags)
{
	struct thread *t = thread_of(p);
	u64 now_ns = now();

	if (!t || t->is_runnable)
		return;
	assign(p, t, now_ns);
	count(t, 1, p->scx.weight, now_ns);
}

SEC("struct_ops/quiescent")
void BPF_PROG(quiescent, struct task_struct *p, u64 deq_flags)
{
	struct thread *t = thread_of(p);

	if (t && t->is_runnable)
		count(t, 0, 0, now());
}

/* The nice value of a thread has changed. */
SEC("struct_ops/set_weight")
void BPF_PROG(set_weight, struct task_struct *p, u32 weight)
{
	struct thread *t = thread_of(p);

	if (!t || !t->is_runnable)
		return;
	ADD(group_at(t->group)->thread_weight, weight - t->weight);
	t->weight = weight;
}

/* A thread of another scheduler takes the CPU. */
SEC("struct_ops/cpu_release")
void BPF_PROG(cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	if (bpf_ksym_exists(scx_bpf_reenqueue_local___number))
		scx_bpf_reenqueue_local___number();
	else if (bpf_ksym_exists(scx_bpf_reenqueue_local___v2___void))
		scx_bpf_reenqueue_local___v2___void();
}

/* Without these two functions, the kernel removes the scheduler when a CPU is plugged. */
SEC("struct_ops/cpu_online")
void BPF_PROG(cpu_online, s32 cpu)
{
	cpu_at(cpu)->is_offline = 0;
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(cpu_offline, s32 cpu)
{
	cpu_at(cpu)->is_offline = 1;
	cpu_at(cpu)->owner = NO_GROUP;
	cpu_at(cpu)->group = NO_GROUP;
}

SEC("struct_ops/running")
void BPF_PROG(running, struct task_struct *p)
{
	struct thread *t = thread_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	u64 now_ns = now();

	if (!t)
		return;
	if (!t->started_ns)
		ADD(group_at(t->group)->waiting, -1ULL);
	t->started_ns = now_ns;
	t->place = 0;
	advance(t, now_ns);
	cpu_at(cpu)->group = t->group;
	cpu_at(cpu)->vtime_ns = p->policy == SCHED_IDLE ? ~0ULL : t->vtime_ns;
	account_cpu(cpu, t->group, now_ns);
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping, struct task_struct *p, _Bool is_runnable)
{
	struct thread *t = thread_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	u64 now_ns = now();

	if (!t || !t->started_ns)
		return;
	settle(p, t, now_ns);
	t->started_ns = 0;
	ADD(group_at(t->group)->waiting, 1);
	cpu_at(cpu)->group = NO_GROUP;
	account_cpu(cpu, t->group, now_ns);
}

SEC("struct_ops/enable")
void BPF_PROG(enable, struct task_struct *p)
{
	struct thread *t = thread_of(p);

	if (!t)
		return;
	assign(p, t, now());
	t->vtime_ns = group_at(t->group)->floor_ns;
}

SEC("struct_ops/exit_task")
void BPF_PROG(exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	u32 pid = p->pid;

	bpf_map_delete_elem(&members, &pid);
}

SEC("struct_ops/init_task")
s32 BPF_PROG(init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct thread *t, *parent;

	t = bpf_task_storage_get(&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t)
		return -12; /* ENOMEM */
	if (args->fork) {
		u32 pid = p->pid;

		/* An assignment of an earlier thread with this number, which ended before it. */
		bpf_map_delete_elem(&members, &pid);
		/* New threads and processes belong to the program of their parent. */
		parent = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
		if (parent) {
			t->group = parent->group;
			t->generation = parent->generation;
			t->vtime_ns = group_at(t->group)->floor_ns;
		}
	}
	return 0;
}

/* Wakes CPUs for groups whose quota permits running again. */
static int refill(void *map, int *key, struct timer *timer)
{
	u64 waiting = waiting_groups(), now_ns = now();
	u32 free = waiting && ++refills % REFILLS_PER_SEARCH == 0;
	int i;

	bpf_for(i, 0, group_count) {
		if (i < 0 || i >= GROUPS_MAX)
			break;
		if (groups[i].quota_ns && (waiting & (1ULL << i)) && !is_capped(&groups[i], now_ns))
			free = 1;
	}
	if (free) {
		bpf_for(i, 0, cpu_count)
			scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
	}
	if (has_quota)
		bpf_timer_start(&timer->timer, REFILL_NS, 0);
	return 0;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(init)
{
	u32 zero = 0;
	struct timer *timer;
	s32 failed;
	int i;

	cpu_count = scx_bpf_nr_cpu_ids();
	if (cpu_count > CPUS_MAX)
		return -7; /* E2BIG */
	bpf_for(i, 0, CPUS_MAX) {
		if (i < 0 || i >= CPUS_MAX)
			break;
		cpus[i].owner = NO_GROUP;
		cpus[i].group = NO_GROUP;
	}
	bpf_for(i, 0, GROUPS_MAX) {
		failed = scx_bpf_create_dsq(i, -1);
		if (failed)
			return failed;
	}
	bpf_for(i, 0, cpu_count) {
		failed = scx_bpf_create_dsq(BOUND_QUEUE(i), -1);
		if (failed)
			return failed;
	}
	timer = bpf_map_lookup_elem(&timers, &zero);
	if (!timer)
		return -12;
	bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&timer->timer, refill);
}

SEC("struct_ops/exit")
void BPF_PROG(record_end, struct scx_exit_info *info)
{
	end.kind = info->kind;
	bpf_probe_read_kernel_str(end.message, sizeof(end.message), info->msg);
	if (!end.message[0])
		bpf_probe_read_kernel_str(end.message, sizeof(end.message), info->reason);
}

/* The settings of a group. User space has the same layout in src/state.rs. */
struct request {
	u32 group;
	u32 flags;
	u64 weight;
	u64 quota_ns;
};

/* Sets the settings of a group. */
SEC("syscall")
int set_group(struct request *request)
{
	struct group *g = group_at(request->group);
	u32 zero = 0;
	struct timer *timer;
	_Bool is_lower;
	int i;

	if (request->group >= GROUPS_MAX)
		return 1;
	if (request->group >= group_count)
		group_count = request->group + 1;
	/* Slices that are longer than a lower quota end now. */
	is_lower = request->quota_ns && (!g->quota_ns || request->quota_ns < g->quota_ns);
	change_quota(g, request->quota_ns, now());
	if (is_lower) {
		bpf_for(i, 0, cpu_count) {
			if (i < 0 || i >= CPUS_MAX)
				break;
			if (cpus[i].group == request->group)
				scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
		}
	}
	g->weight = request->weight;
	g->flags = request->flags & ~GROUP_IS_OVER;
	/* Those of its threads that sleep leave the group when they wake up. */
	if (request->flags & GROUP_IS_OVER)
		g->generation += 1;
	if (request->quota_ns) {
		has_quota = 1;
		timer = bpf_map_lookup_elem(&timers, &zero);
		if (timer)
			bpf_timer_start(&timer->timer, REFILL_NS, 0);
	}
	return 0;
}

/* Makes the owners of the CPUs those of the map `owners`, and interrupts the threads that must give
 * way. */
SEC("syscall")
int set_owners(void *context)
{
	u64 now_ns = now();
	u32 any = ZERO;
	int i;

	bpf_for(i, 0, cpu_count) {
		u32 cpu = i, *owner = bpf_map_lookup_elem(&owners, &cpu);

		if (!owner || i < 0 || i >= CPUS_MAX)
			break;
		if (*owner != NO_GROUP) {
			any = 1;
			has_owners = 1;
		}
		if (cpus[i].is_offline || cpus[i].owner == *owner)
			continue;
		cpus[i].owner = *owner;
		if (*owner != NO_GROUP && cpus[i].group != *owner)
			scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
	}
	bpf_for(i, 0, group_count)
		account(i, now_ns);
	has_owners = any;
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops corebeat = {
	.select_cpu = (void *)select_cpu,
	.enqueue = (void *)enqueue,
	.dispatch = (void *)dispatch,
	.runnable = (void *)runnable,
	.running = (void *)running,
	.stopping = (void *)stopping,
	.quiescent = (void *)quiescent,
	.set_weight = (void *)set_weight,
	.cpu_release = (void *)cpu_release,
	.cpu_online = (void *)cpu_online,
	.cpu_offline = (void *)cpu_offline,
	.enable = (void *)enable,
	.init_task = (void *)init_task,
	.exit_task = (void *)exit_task,
	.init = (void *)init,
	.exit = (void *)record_end,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 30000,
	.name = "corebeat",
};
