/* The decisions of the scheduler for tests in user space. The faults are planted by tests, which
 * must detect them. */
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;

#define INLINE inline
#define ZERO 0
#define EACH(i, count) for (i = 0; i < (int)(count); i++)

#include "decision.h"

u64 twin_charge_ns(u64 ran_ns, u64 weight, u64 runnable)
{
	return charge_ns(ran_ns, weight, runnable);
}

u64 twin_quota_used_ns(const struct group *g, u64 now_ns)
{
	return quota_used_ns(g, now_ns);
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

int twin_preempts(const struct group *groups, u32 woken, u32 run, u32 owner)
{
	return preempts(&groups[woken], woken, &groups[run], run, owner);
}

u64 twin_woken_vtime_ns(u64 vtime_ns, u64 latest_ns)
{
	return woken_vtime_ns(vtime_ns, latest_ns);
}

int twin_is_victim(const struct cpu *cpu, u32 set)
{
	return is_victim(cpu, set);
}

u32 twin_set_state(const struct cpu *cpus, u32 count, u32 set, u64 runnable)
{
	return set_state(cpus, count, set, runnable);
}
