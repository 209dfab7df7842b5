/* The decisions of the scheduler, without the kernel: plain C that runs in the kernel (BPF) and in
 * the tests of this crate (twin.c). No function here reads a clock, and none has state.
 *
 * Sources: Schönherr, Lutz, Richling, "Non-intrusive Coscheduling for General Purpose Operating
 * Systems" (MSEPT 2012), section 3: no CPU of a set runs another task while a task of the set
 * waits. Sironi et al., "Metronome" (DAC 2012), section 5.1: virtual run time of a group, scaled by
 * a weight that the goals determine. Pusukuri, "Runtime Support for Maximizing Performance on
 * Multicore Systems" (2012), chapter 5: one priority for all threads of a program.
 */
#ifndef COREBEAT_DECISION_H
#define COREBEAT_DECISION_H

/* Largest number of groups. Group 0 has the threads that belong to no program of Corebeat. */
#define GROUPS_MAX 64
/* Largest number of CPUs. */
#define CPUS_MAX 512
/* No group. */
#define NO_GROUP 0xffffffffu
/* Weight of one thread of nice 0. */
#define THREAD_WEIGHT 100ULL
/* Time over which a quota counts, in nanoseconds. */
#define QUOTA_PERIOD_NS 100000000ULL
/* A thread that waits for this long runs next, whatever the weights, sets and classes are. The
 * kernel removes a scheduler that lets a thread wait for 30 s. */
#define STARVATION_NS 5000000000ULL
/* A woken thread preempts a thread of a group whose virtual time is later by this much. */
#define PREEMPTION_NS 3000000ULL
/* A group that wakes may have this much less virtual time than the groups that ran. */
#define LAG_NS 3000000ULL
/* Bounds of slices, and the slice of a thread without one. */
#define SLICE_NS_MIN 100000ULL
#define SLICE_NS_MAX 100000000ULL
#define SLICE_NS_DEFAULT 3000000ULL

/* Flags of a group. */
#define GROUP_IS_BATCH 1u /* all threads have one priority, and wake-ups preempt no thread */
#define GROUP_IS_IDLE 2u  /* runs only where no other group waits */
#define GROUP_IS_SET 4u   /* is a coscheduled set */

/* The threads of one program. User space reads this structure; src/state.rs has the same layout. */
struct group {
	/* CPU time divided by the weight, in nanoseconds at weight 100. */
	u64 vtime_ns;
	/* The latest virtual time at which a thread of the group was selected to run. */
	u64 floor_ns;
	/* Number of threads that run or wait. */
	u64 runnable;
	/* Sum over the runnable threads of their run and wait time, less runnable times the present
	 * time. */
	u64 runnable_base_ns;
	/* CPU time since the start, in nanoseconds. */
	u64 ran_ns;
	/* Weight of the whole group; 0 for THREAD_WEIGHT for each runnable thread. */
	u64 weight;
	/* CPU time in each period; 0 for no quota. */
	u64 quota_ns;
	/* CPU time that counts in the period `period`. */
	u64 used_ns;
	u64 period;
	u32 flags;
	u32 unused;
};

/* Returns the virtual time of a span of CPU time. */
static INLINE u64 charge_ns(u64 ran_ns, u64 weight, u64 runnable)
{
	if (!weight)
		weight = THREAD_WEIGHT * (runnable ? runnable : 1);
	return ran_ns * THREAD_WEIGHT / weight;
}

/* Returns the CPU time that counts against the quota at this time. Time beyond the quota of the
 * earlier periods counts in the later ones. */
static INLINE u64 quota_used_ns(const struct group *g, u64 now_ns)
{
	u64 period = now_ns / QUOTA_PERIOD_NS;
	u64 granted;

	if (period <= g->period)
		return g->used_ns;
	/* After so many periods, no debt remains. */
	if (period - g->period > 1000)
		return 0;
	granted = (period - g->period) * g->quota_ns;
	return g->used_ns > granted ? g->used_ns - granted : 0;
}

static INLINE int is_capped(const struct group *g, u64 now_ns)
{
	return g->quota_ns && quota_used_ns(g, now_ns) >= g->quota_ns;
}

/* Returns the slice of a thread of a group, which does not exceed the rest of a quota by much. */
static INLINE u64 slice_ns(const struct group *g, u64 requested_ns, u64 now_ns)
{
	u64 ns = requested_ns ? requested_ns : SLICE_NS_DEFAULT;

	if (ns < SLICE_NS_MIN)
		ns = SLICE_NS_MIN;
	if (ns > SLICE_NS_MAX)
		ns = SLICE_NS_MAX;
	if (g->quota_ns) {
		u64 used_ns = quota_used_ns(g, now_ns);
		u64 left_ns = g->quota_ns > used_ns ? g->quota_ns - used_ns : 0;

		if (g->runnable)
			left_ns /= g->runnable;
		if (left_ns < ns)
			ns = left_ns > SLICE_NS_MIN * 5 ? left_ns : SLICE_NS_MIN * 5;
	}
	return ns;
}

/* Returns the precedence of a group on a CPU with this owner; lower is earlier. */
static INLINE u32 rank(const struct group *g, u32 id, u32 owner)
{
	if (owner != NO_GROUP && id == owner)
		return 0;
	if (g->flags & GROUP_IS_IDLE)
		return 3;
	return g->flags & GROUP_IS_SET ? 2 : 1;
}

/* Returns the group from which a CPU takes its next thread, or NO_GROUP. `waiting` has a bit for
 * each group with waiting threads. The owner comes first. Any other group fills the CPU only if the
 * owner has no waiting thread, in the order of precedence and of virtual time. */
static INLINE u32 pick(const struct group *groups, u32 count, u32 owner, u64 waiting, u64 now_ns)
{
	u32 best = NO_GROUP, best_rank = ZERO;
	u64 best_ns = ZERO;
	int i;

	EACH(i, count)
	{
		const struct group *g;
		u32 own_rank;

		if (i < 0 || i >= GROUPS_MAX)
			break;
		g = &groups[i];
		if (!(waiting & (1ULL << i)) || is_capped(g, now_ns))
			continue;
		own_rank = rank(g, i, owner);
		if (best != NO_GROUP &&
		    (best_rank < own_rank || (best_rank == own_rank && best_ns <= g->vtime_ns)))
			continue;
		best = i;
		best_rank = own_rank;
		best_ns = g->vtime_ns;
	}
	return best;
}

/* Returns whether the thread that runs on a CPU continues although a thread of `next` waits. `id`
 * is its group. `own_ns` and `next_ns` are the virtual times of both threads, for threads of one
 * group. */
static INLINE int continues(const struct group *run, u32 id, u64 own_ns, const struct group *next,
			    u32 next_id, u64 next_ns, u32 owner)
{
	u32 own_rank = rank(run, id, owner), next_rank = rank(next, next_id, owner);

	if (id == next_id)
		return own_ns < next_ns;
	if (own_rank != next_rank)
		return own_rank < next_rank;
	return run->vtime_ns < next->vtime_ns;
}

/* Returns whether a thread of `woken` that wakes up preempts the thread of `run` that runs on a CPU
 * with this owner. A program never preempts itself (FaithFul), but the owner of a CPU always
 * preempts other groups (the rule of coscheduling). */
static INLINE int preempts(const struct group *woken, u32 woken_id, const struct group *run,
			   u32 run_id, u32 owner)
{
	u32 woken_rank = rank(woken, woken_id, owner), run_rank = rank(run, run_id, owner);

	if (woken_id == run_id)
		return 0;
	if (woken_rank != run_rank)
		return woken_rank < run_rank;
	if (woken->flags & GROUP_IS_BATCH)
		return 0;
	return woken->vtime_ns + PREEMPTION_NS < run->vtime_ns;
}

/* Returns the virtual time of a group that had no runnable thread and has one now. */
static INLINE u64 woken_vtime_ns(u64 vtime_ns, u64 latest_ns)
{
	u64 least_ns = latest_ns > LAG_NS ? latest_ns - LAG_NS : 0;

	return vtime_ns > least_ns ? vtime_ns : least_ns;
}

/* State of a CPU. */
struct cpu {
	/* Set whose turn it is on this CPU, or NO_GROUP. */
	u32 owner;
	/* Group of the thread that runs there, or NO_GROUP. */
	u32 group;
	/* Whether the CPU was interrupted for a thread of its owner, and has not reacted yet. */
	u32 is_claimed;
	u32 unused;
};

/* Returns whether a thread of a set that wakes up may interrupt this CPU: it belongs to the set,
 * and does something else. Two threads that wake up at once interrupt two CPUs. */
static INLINE int is_victim(const struct cpu *cpu, u32 set)
{
	return cpu->owner == set && cpu->group != set && !cpu->is_claimed;
}

/* State of a set. */
#define SET_IS_ON 1u       /* has CPUs, and a thread that runs or waits */
#define SET_IS_TOGETHER 2u /* no thread waits while a CPU of the set does something else */

static INLINE u32 set_state(const struct cpu *cpus, u32 count, u32 set, u64 runnable)
{
	u64 running = ZERO;
	u32 owned = ZERO, foreign = ZERO;
	int i;

	EACH(i, count)
	{
		if (i < 0 || i >= CPUS_MAX)
			break;
		running += cpus[i].group == set;
		owned += cpus[i].owner == set;
		foreign += cpus[i].owner == set && cpus[i].group != set;
	}
	if (!owned || !runnable)
		return 0;
	return runnable > running && foreign ? SET_IS_ON : SET_IS_ON | SET_IS_TOGETHER;
}

#endif
