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

/* Largest number of groups. Group 0 has the threads that belong to no program of Corebeat: those
 * of the kernel, and, if the scheduler schedules all threads, those of all other programs. */
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
/* A group or a thread that wakes may have this much less virtual time than the others. More than
 * PREEMPTION_NS: else a group that sleeps would preempt no other one, whatever its weight is. */
#define LAG_NS 6000000ULL
_Static_assert(LAG_NS > PREEMPTION_NS, "groups that sleep preempt");
/* A group or a thread that runs may have this much less virtual time than one that waits: one that
 * cannot use its share does not save it up. */
#define CREDIT_NS 500000000ULL
/* A group that wakes, or that runs where no other can, may have this much more virtual time than
 * the least one. */
#define DEBT_NS 2000000000ULL
/* CPU time beyond a quota counts for at most this many periods. */
#define QUOTA_DEBT_PERIODS 10ULL
/* A thread of group 0 that may run on one CPU only, and has waited for this long at nice 0, runs
 * next there, at most one in each such time. Threads of the kernel serve their CPU. */
#define BOUND_NS 10000000ULL
/* Interval of the searches for threads that wait for too long, for each CPU. */
#define SEARCH_NS 100000000ULL
/* Bounds of slices, and the slice of a thread without one. */
#define SLICE_NS_MIN 100000ULL
#define SLICE_NS_MAX 100000000ULL
#define SLICE_NS_DEFAULT 3000000ULL

/* Flags of a group. */
#define GROUP_IS_BATCH 1u /* all threads have one priority, and wake-ups preempt no thread */
#define GROUP_IS_IDLE 2u  /* runs only where no other group waits */
#define GROUP_IS_SET 4u   /* is a coscheduled set */
#define GROUP_IS_OVER 8u  /* in a request only: its threads belong to no program any more */

/* The threads of one program. User space reads this structure; src/state.rs has the same layout. */
struct group {
	/* CPU time divided by the weight, in nanoseconds at weight 100. */
	u64 vtime_ns;
	/* A virtual time of threads: that of each selected thread, or of the first that waited then. */
	u64 floor_ns;
	/* Number of threads that run or wait. */
	u64 runnable;
	/* Sum over the runnable threads of their run and wait time, less runnable times the present
	 * time. */
	u64 runnable_base_ns;
	/* CPU time since the start, in nanoseconds. */
	u64 ran_ns;
	/* Weight of the whole group; 0 for that of its runnable threads. */
	u64 weight;
	/* CPU time in each period; 0 for no quota. */
	u64 quota_ns;
	/* CPU time that counts in the period `period`. */
	u64 used_ns;
	u64 period;
	u32 flags;
	/* Number of programs that had the group before. */
	u32 generation;
	/* Sum of the weights of the runnable threads, by their nice values. */
	u64 thread_weight;
	/* Number of runnable threads that do not run. */
	u64 waiting;
};

/* Returns the virtual time of a span of CPU time. */
static INLINE u64 charge_ns(u64 ran_ns, u64 weight, u64 thread_weight)
{
	if (!weight)
		weight = thread_weight ? thread_weight : THREAD_WEIGHT;
	return ran_ns * THREAD_WEIGHT / weight;
}

/* Returns the CPU time that counts against a quota after so many periods. Time beyond the quota
 * counts in the later periods, up to a bound. */
static INLINE u64 carried_ns(u64 used_ns, u64 quota_ns, u64 periods)
{
	u64 most_ns = quota_ns * QUOTA_DEBT_PERIODS, granted_ns;

	if (used_ns > most_ns)
		used_ns = most_ns;
	if (periods > QUOTA_DEBT_PERIODS)
		return 0;
	granted_ns = periods * quota_ns;
	return used_ns > granted_ns ? used_ns - granted_ns : 0;
}

/* Returns the CPU time that counts against the quota at this time. */
static INLINE u64 quota_used_ns(const struct group *g, u64 now_ns)
{
	u64 period = now_ns / QUOTA_PERIOD_NS;

	return carried_ns(g->used_ns, g->quota_ns, period > g->period ? period - g->period : 0);
}

/* Changes the quota of a group. CPU time under the earlier quota counts for one period. */
static INLINE void change_quota(struct group *g, u64 quota_ns, u64 now_ns)
{
	u64 used_ns = g->quota_ns ? quota_used_ns(g, now_ns) : 0;

	if (g->quota_ns == quota_ns)
		return;
	g->used_ns = used_ns < quota_ns ? used_ns : quota_ns;
	g->period = now_ns / QUOTA_PERIOD_NS;
	g->quota_ns = quota_ns;
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

/* Returns the precedence of a group on a CPU with this owner; lower is earlier. Threads of no
 * program, which include those of the kernel, compete with the owner by virtual time. */
static INLINE u32 rank(const struct group *g, u32 id, u32 owner)
{
	if (owner != NO_GROUP && (id == owner || !id))
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
 * with this owner. `own_ns` and `run_ns` are the virtual times of both threads; that of a running
 * thread of the policy idle is the largest number. A program never preempts itself (FaithFul), but
 * the owner of a CPU always preempts other programs (the rule of coscheduling). Group 0 is no
 * program: its threads preempt each other as programs do. */
static INLINE int preempts(const struct group *woken, u32 woken_id, u64 own_ns,
			   const struct group *run, u32 run_id, u64 run_ns, u32 owner)
{
	u32 woken_rank = rank(woken, woken_id, owner), run_rank = rank(run, run_id, owner);

	if (woken_id == run_id)
		return !woken_id && own_ns + PREEMPTION_NS < run_ns;
	if (woken_rank != run_rank)
		return woken_rank < run_rank;
	if (woken->flags & GROUP_IS_BATCH)
		return 0;
	return woken->vtime_ns + PREEMPTION_NS < run->vtime_ns;
}

/* Returns the virtual time of a thread that wakes up, starts, or enters the group. Sleep gives no
 * credit beyond one lag. */
static INLINE u64 woken_vtime_ns(u64 vtime_ns, u64 clock_ns)
{
	u64 least_ns = clock_ns > LAG_NS ? clock_ns - LAG_NS : 0;

	return vtime_ns > least_ns ? vtime_ns : least_ns;
}

/* Returns the virtual time of a group that had no runnable thread and has one now. */
static INLINE u64 woken_group_vtime_ns(u64 vtime_ns, u64 clock_ns)
{
	u64 woken_ns = woken_vtime_ns(vtime_ns, clock_ns);

	return woken_ns < clock_ns + DEBT_NS ? woken_ns : clock_ns + DEBT_NS;
}

/* Returns the clock of groups: the least virtual time of those that compete, except that of the
 * group that wakes up now (NO_GROUP for none). It never goes back. The greatest virtual time
 * would be that of a group which has a CPU for itself. */
static INLINE u64 clock_of_groups_ns(const struct group *groups, u32 count, u32 woken,
				     u64 clock_ns, u64 now_ns)
{
	u64 least_ns = ~0ULL;
	int i;

	EACH(i, count)
	{
		if (i < 0 || i >= GROUPS_MAX)
			break;
		if ((u32)i != woken && groups[i].runnable && !is_capped(&groups[i], now_ns) &&
		    groups[i].vtime_ns < least_ns)
			least_ns = groups[i].vtime_ns;
	}
	return least_ns != ~0ULL && least_ns > clock_ns ? least_ns : clock_ns;
}

/* Returns the least virtual time of the other groups with waiting threads; the largest number
 * without one. */
static INLINE u64 least_waiting_ns(const struct group *groups, u32 count, u32 id, u64 waiting,
				   u64 now_ns)
{
	u64 least_ns = ~0ULL;
	int i;

	EACH(i, count)
	{
		if (i < 0 || i >= GROUPS_MAX)
			break;
		if ((u32)i != id && (waiting & (1ULL << i)) && !is_capped(&groups[i], now_ns) &&
		    groups[i].vtime_ns < least_ns)
			least_ns = groups[i].vtime_ns;
	}
	return least_ns;
}

/* Returns the virtual time of a group or a thread that is selected to run, if the least one that
 * waits has this time. */
static INLINE u64 credited_ns(u64 vtime_ns, u64 waiting_ns)
{
	if (waiting_ns == ~0ULL || vtime_ns + CREDIT_NS >= waiting_ns)
		return vtime_ns;
	return waiting_ns - CREDIT_NS;
}

/* Returns the floor of the threads of a group after one was selected, if the first one that still
 * waits has this virtual time. */
static INLINE u64 risen_floor_ns(u64 floor_ns, u64 selected_ns, u64 first_ns)
{
	u64 least_ns = selected_ns < first_ns ? selected_ns : first_ns;

	return least_ns > floor_ns ? least_ns : floor_ns;
}

/* Returns whether a thread that has waited since then runs before all others. */
static INLINE int is_starving(u64 queued_ns, u64 now_ns)
{
	return now_ns > queued_ns + STARVATION_NS;
}

/* Returns for how long a thread that may run on one CPU only has waited, by its nice value; 0 if
 * not for too long. */
static INLINE u64 overdue_ns(u64 queued_ns, u64 weight, u64 now_ns)
{
	u64 waited_ns = now_ns > queued_ns ? now_ns - queued_ns : 0;

	if (!is_starving(queued_ns, now_ns))
		waited_ns = waited_ns * weight / THREAD_WEIGHT;
	return waited_ns > BOUND_NS ? waited_ns : 0;
}

/* Returns the time of the next search of a CPU for threads that starve, after one that found a
 * thread which has waited since `queued_ns`; 0 for none. Waits of twice the bound show that more
 * threads starve than a search at each interval serves. */
static INLINE u64 next_search_ns(u64 queued_ns, u64 now_ns)
{
	if (queued_ns && now_ns > queued_ns + 2 * STARVATION_NS)
		return now_ns;
	return now_ns + SEARCH_NS;
}

/* Returns the group that a search examines in this step. Each search begins with another group. */
static INLINE u32 searched_group(u32 step, u32 turn, u32 count)
{
	return (step + turn) % (count ? count : 1);
}

/* State of a CPU. */
struct cpu {
	/* Set whose turn it is on this CPU, or NO_GROUP. */
	u32 owner;
	/* Group of the thread that runs there, or NO_GROUP. */
	u32 group;
	/* Whether the CPU was interrupted for a thread of its owner, and has not reacted yet. */
	u32 is_claimed;
	/* Whether the CPU is unplugged. Then it has no owner. */
	u32 is_offline;
	/* One more than the group of a thread that found this CPU idle; 0 for none. */
	u32 placed;
	u32 unused;
	/* Virtual time of the thread that runs there, when it began to run. */
	u64 vtime_ns;
	/* From this time on, a thread of group 0 that may run only there, and has waited for too
	 * long, runs next. */
	u64 bound_at_ns;
};

/* Returns the group of a thread that found this CPU idle and runs there first, or NO_GROUP.
 * `waiting` has a bit for each group with waiting threads. */
static INLINE u32 placed_group(const struct cpu *cpu, u64 waiting)
{
	u32 group = cpu->placed - 1;

	if (!cpu->placed || group >= GROUPS_MAX || !(waiting & (1ULL << group)))
		return NO_GROUP;
	if (cpu->owner < GROUPS_MAX && cpu->owner != group && (waiting & (1ULL << cpu->owner)))
		return NO_GROUP;
	return group;
}

/* Returns whether the thread that found this CPU idle waits behind one of the owner. Other CPUs
 * that are idle may run it. */
static INLINE int is_displaced(const struct cpu *cpu, u64 waiting)
{
	u32 group = cpu->placed - 1;

	return cpu->placed && group < GROUPS_MAX && (waiting & (1ULL << group)) &&
	       placed_group(cpu, waiting) == NO_GROUP;
}

/* Returns whether a thread of a set that wakes up may interrupt this CPU: it belongs to the set,
 * and runs a thread of another program. An idle CPU is woken up instead, and a CPU that runs a
 * thread of another scheduler cannot be taken from it. Threads of no program have no less
 * precedence than the set. Two threads that wake up at once interrupt two CPUs. */
static INLINE int is_victim(const struct cpu *cpu, u32 set)
{
	return cpu->owner == set && cpu->group != set && cpu->group != NO_GROUP && cpu->group &&
	       !cpu->is_claimed;
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
