/* The decisions of the scheduler for tests in user space. The faults are planted by tests, which
 * must detect them. */
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;

#define INLINE inline
#define ZERO 0
#define EACH(i, count) for (i = 0; i < (int)(count); i++)

#include "decision.h"

u64 twin_charge_ns(u64 ran_ns, u64 weight, u64 thread_weight)
{
	return charge_ns(ran_ns, weight, thread_weight);
}

int twin_is_capped(const struct group *g, u64 now_ns)
{
	return is_capped(g, now_ns);
}

u64 twin_slice_ns(const struct group *g, u64 requested_ns, u64 now_ns)
{
	return slice_ns(g, requested_ns, now_ns);
}

u32 twin_pick(const struct group *groups, u32 count, u32 owner, u64 waiting, u64 now_ns)
{
	return pick(groups, count, owner, waiting, now_ns);
}

int twin_continues(const struct group *groups, u32 id, u64 own_ns, u32 next_id, u64 next_ns,
		   u32 owner)
{
	return continues(&groups[id], id, own_ns, &groups[next_id], next_id, next_ns, owner);
}

int twin_preempts(const struct group *groups, u32 woken, u64 own_ns, u32 run, u64 run_ns, u32 owner)
{
	return preempts(&groups[woken], woken, own_ns, &groups[run], run, run_ns, owner);
}

u64 twin_overdue_ns(u64 queued_ns, u64 weight, u64 now_ns)
{
	return overdue_ns(queued_ns, weight, now_ns);
}

u64 twin_carried_ns(u64 used_ns, u64 quota_ns, u64 periods)
{
	return carried_ns(used_ns, quota_ns, periods);
}

void twin_change_quota(struct group *g, u64 quota_ns, u64 now_ns)
{
	change_quota(g, quota_ns, now_ns);
}

u64 twin_woken_vtime_ns(u64 vtime_ns, u64 clock_ns)
{
	return woken_vtime_ns(vtime_ns, clock_ns);
}

u64 twin_woken_group_vtime_ns(u64 vtime_ns, u64 clock_ns)
{
	return woken_group_vtime_ns(vtime_ns, clock_ns);
}

u64 twin_clock_of_groups_ns(const struct group *groups, u32 count, u32 woken, u64 clock_ns,
			    u64 now_ns)
{
	return clock_of_groups_ns(groups, count, woken, clock_ns, now_ns);
}

u64 twin_least_waiting_ns(const struct group *groups, u32 count, u32 id, u64 waiting, u64 now_ns)
{
	return least_waiting_ns(groups, count, id, waiting, now_ns);
}

u64 twin_credited_ns(u64 vtime_ns, u64 waiting_ns)
{
	return credited_ns(vtime_ns, waiting_ns);
}

u64 twin_risen_floor_ns(u64 floor_ns, u64 selected_ns, u64 first_ns)
{
	return risen_floor_ns(floor_ns, selected_ns, first_ns);
}

int twin_is_starving(u64 queued_ns, u64 now_ns)
{
	return is_starving(queued_ns, now_ns);
}

u64 twin_next_search_ns(u64 queued_ns, u64 now_ns)
{
	return next_search_ns(queued_ns, now_ns);
}

u32 twin_searched_group(u32 step, u32 turn, u32 count)
{
	return searched_group(step, turn, count);
}

u32 twin_placed_group(const struct cpu *cpu, u64 waiting)
{
	return placed_group(cpu, waiting);
}

int twin_is_displaced(const struct cpu *cpu, u64 waiting)
{
	return is_displaced(cpu, waiting);
}

int twin_is_victim(const struct cpu *cpu, u32 set)
{
	return is_victim(cpu, set);
}

u32 twin_set_state(const struct cpu *cpus, u32 count, u32 set, u64 runnable)
{
	return set_state(cpus, count, set, runnable);
}
