/* The parts of the kernel's types that the programs use, and the functions of sched_ext. The
 * loader finds the real places of the fields (CO-RE), so that one object runs on many kernels. The
 * names and numbers are those of Linux, Documentation/scheduler/sched-ext.rst and
 * kernel/sched/ext/internal.h.
 */
#ifndef COREBEAT_KERNEL_H
#define COREBEAT_KERNEL_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
/* The names that bpf_helpers.h expects. */
typedef u8 __u8;
typedef unsigned short __u16;
typedef u32 __u32;
typedef s32 __s32;
typedef u64 __u64;
typedef s64 __s64;
typedef __u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

struct sched_entity {
	u64 slice;
	u64 sum_exec_runtime;
	u64 nr_migrations;
};

struct sched_info {
	u64 run_delay;
	u64 last_arrival;
	u64 last_queued;
};

struct thread_info {
	u32 cpu;
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	int pid;
	int tgid;
	unsigned int policy;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	/* Without this field the object would not describe the type of `cpus_ptr`. */
	struct cpumask cpus_mask;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct sched_info sched_info;
	u64 utime;
	u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	char comm[16];
};

/* The registers of a system call on x86-64. */
struct pt_regs {
	unsigned long r10;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};

struct scx_init_task_args {
	_Bool fork;
};

struct scx_cpu_release_args {
	int reason;
};

struct scx_exit_task_args {
	_Bool cancelled;
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

#pragma clang attribute pop

struct bpf_spin_lock {
	u32 val;
};

struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));

/* The functions of a scheduler. The loader takes the fields by name. */
struct sched_ext_ops {
	/* First, because user space changes it before the loading (src/loaded.rs). */
	u64 flags;
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, _Bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	void (*enable)(struct task_struct *p);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u32 timeout_ms;
	char name[128];
};

#define SCX_OPS_ENQ_LAST 2ULL
#define SCX_OPS_SWITCH_PARTIAL 8ULL
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_DSQ_ITER_REV 65536ULL
#define SCX_TASK_QUEUED 1u

/* Policies of threads (include/uapi/linux/sched.h). */
#define SCHED_BATCH 3u
#define SCHED_IDLE 5u

#include <bpf/bpf_helpers.h>

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
			   _Bool *is_idle) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
_Bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
u32 scx_bpf_nr_cpu_ids(void) __ksym;
_Bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

/* Functions whose signature differs between kernels. The part from ___ on is not a part of the
 * name. Before Linux 6.19 the functions return nothing; later ones take some arguments together. */
void scx_bpf_dsq_insert___void(struct task_struct *p, u64 dsq_id,
	u64 slice, u64 enq_flags) __ksym __weak;
_Bool scx_bpf_dsq_insert___v2___bool(struct task_struct *p, u64 dsq_id,
	u64 slice, u64 enq_flags) __ksym __weak;
void scx_bpf_dsq_insert_vtime___void(struct task_struct *p, u64 dsq_id,
	u64 slice, u64 vtime, u64 enq_flags) __ksym __weak;
_Bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
	struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
_Bool scx_bpf_dsq_move_to_local___one(u64 dsq_id) __ksym __weak;
_Bool scx_bpf_dsq_move_to_local___v2___two(u64 dsq_id, u64 enq_flags) __ksym __weak;
/* Until Linux 7.2, and from 6.19 on. */
u32 scx_bpf_reenqueue_local___number(void) __ksym __weak;
void scx_bpf_reenqueue_local___v2___void(void) __ksym __weak;
/* Linux 6.12, and later ones. */
_Bool scx_bpf_dispatch_from_dsq___first(struct bpf_iter_scx_dsq *it, struct task_struct *p,
	u64 dsq_id, u64 enq_flags) __ksym __weak;
_Bool scx_bpf_dsq_move___later(struct bpf_iter_scx_dsq *it, struct task_struct *p,
	u64 dsq_id, u64 enq_flags) __ksym __weak;
_Bool scx_bpf_task_set_slice___bool(struct task_struct *p, u64 slice) __ksym __weak;

#endif
