/* Claims of cores for C and C++ programs: invade and retreat.
 *
 * Source: Hollmann, Gerndt, Invasive Computing: An Application Assisted Resource Management
 * Approach (MSEPT 2012), section 2.1. Its Listing 1.1 compiles with this header unchanged:
 *
 *     Claim claim;
 *     claim.invade(CPUQuantity(1, 8), NUMA(scatter));
 *     #pragma omp parallel for
 *     for (int i = 0; i < 1024; i++)
 *         c[i] = a[i] + b[i];
 *     claim.retreat(1);
 *
 * Compile with -fopenmp and link with -lcorebeat. The next parallel region has one thread for each
 * CPU of the claim, pinned to that CPU. If the daemon runs (`corebeat daemon`), all programs of the
 * host that request CPUs share them. Otherwise the claims of this process share them. No function
 * waits for a CPU.
 *
 * The functions that return int, except corebeat_claim_fd(), return 0 or an error number of
 * <errno.h>; corebeat_why() returns the reason. The numbers are the same with and without a daemon:
 *   EINVAL     an argument is invalid, or the claim is NULL; the claim is unchanged
 *   EPERM      the claim belongs to the parent process: begin another claim in the child
 *   ENOSPC     this process has 16 claims; or, with the daemon, its user has 64 connections (one of
 *              each claim) or 1,000 calls a second, or all users have 512 claims
 *   ETIMEDOUT  the daemon does not answer within 2 s: it may be stopped
 *   EIO        the daemon's answer is invalid
 * A failed system call returns its own number, such as EMFILE, or EACCES for a socket that this
 * user may not use. When the daemon has ended, the next call creates a new claim with its
 * successor or in this process. No function is a cancellation point: a thread that is to be
 * cancelled (pthread_cancel) completes it. The thread must not permit asynchronous cancellation.
 *
 * In a child of fork() an inherited claim has no CPUs, and its end has no effect. The child may
 * begin claims of its own; without the daemon, these get the CPUs that no claim of the parent had
 * at the fork, and parent and child do not detect each other's later requests. With GCC's runtime
 * of OpenMP, a parallel region of the child waits for ever if the forking thread has run one before
 * the fork. This includes Claim::invade() for two or more CPUs: use the functions in C there. */
#ifndef COREBEAT_INVASIVE_COMPUTING_H
#define COREBEAT_INVASIVE_COMPUTING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A claim: a set of exclusive CPUs. Used by one thread at a time. */
typedef struct corebeat_claim corebeat_claim;

enum corebeat_numa {
	COREBEAT_ANY = 0,
	COREBEAT_SCATTER = 1, /* spread over the NUMA nodes */
	COREBEAT_COMPACT = 2, /* on as few nodes as possible */
};

/* Creates a claim with one CPU, or with none if none is free.
 * Errors: EINVAL, ENOSPC, ETIMEDOUT, EIO, and those of system calls. */
int corebeat_claim_begin(corebeat_claim **claim);
/* Requests CPUs until the claim has `max`. The call never waits: it grants what is free. If that is
 * less than `min`, other claims are requested to release CPUs, and corebeat_claim_poll() reports
 * when they have. Errors: EINVAL, EPERM, ENOSPC, ETIMEDOUT, EIO. */
int corebeat_invade(corebeat_claim *claim, unsigned min, unsigned max, int numa);
/* Releases CPUs until the claim has `keep`. Errors: EINVAL, EPERM, ENOSPC, ETIMEDOUT, EIO. */
int corebeat_retreat(corebeat_claim *claim, unsigned keep);
/* Applies pending requests of the arbiter: releases requested CPUs and accepts granted ones. Sets
 * `changed`, unless it is NULL, to whether the claim has changed.
 * Errors: EINVAL, EPERM, ENOSPC, ETIMEDOUT, EIO. */
int corebeat_claim_poll(corebeat_claim *claim, int *changed);
/* Older name of corebeat_claim_poll(). */
int corebeat_heed(corebeat_claim *claim, int *changed);
/* Number of CPUs; 0 for NULL and in a child of fork(). The numbers of the first `len` CPUs are
 * written to `cpus`, unless it is NULL. */
size_t corebeat_claim_cpus(const corebeat_claim *claim, unsigned *cpus, size_t len);
/* A descriptor that is readable (poll, epoll) when a request of the arbiter is pending or the
 * daemon has ended; -1 for NULL. Do not read from it: call corebeat_claim_poll(). The claim has the
 * same descriptor until its end, also when it moves to another daemon or to this process. */
int corebeat_claim_fd(const corebeat_claim *claim);
/* Releases all CPUs and frees the claim. Does nothing for NULL. */
void corebeat_claim_end(corebeat_claim *claim);
/* The reason of this thread's last failed call, and what to do. The address is valid until the
 * thread ends; the next failed call replaces the text. */
const char *corebeat_why(void);

#ifdef __cplusplus
}

#include <algorithm>
#include <sched.h>
#include <stdexcept>
#include <unistd.h>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

/* The requested number of CPUs. */
struct CPUQuantity {
	unsigned min, max;
	CPUQuantity(unsigned min, unsigned max) : min(min), max(max) {}
	explicit CPUQuantity(unsigned exactly) : min(exactly), max(exactly) {}
};

enum NUMAPlacement { scatter = COREBEAT_SCATTER, compact = COREBEAT_COMPACT };

/* The requested placement of CPUs. */
struct NUMA {
	NUMAPlacement placement;
	explicit NUMA(NUMAPlacement placement) : placement(placement) {}
};

/* A claim whose CPUs run the threads of OpenMP. */
class Claim {
public:
	Claim()
	{
		initial_cpus();
#ifdef _OPENMP
		threads_before_ = omp_get_max_threads();
#endif
		check(corebeat_claim_begin(&claim_));
		apply();
	}
	~Claim()
	{
		corebeat_claim_end(claim_);
		claim_ = nullptr;
		if (getpid() == owner_) {
			apply();
			return;
		}
		/* In a child of fork. The threads of the parent do not exist here: OpenMP's runtime
		 * would wait for them. */
		pin(cpus_.end(), cpus_.end());
#ifdef _OPENMP
		omp_set_num_threads(threads_before_);
#endif
	}
	Claim(const Claim &) = delete;
	Claim &operator=(const Claim &) = delete;

	/* Requests CPUs by constraints in any order. Returns the number of CPUs. */
	template <class... Constraints> unsigned invade(Constraints... constraints)
	{
		Request request;
		int each[] = {0, (request.take(constraints), 0)...};
		(void)each;
		check(corebeat_invade(claim_, request.min, request.max, request.numa));
		return apply();
	}
	/* Releases all but `keep` CPUs, and unpins the threads that ran on them. */
	unsigned retreat(unsigned keep)
	{
		check(corebeat_retreat(claim_, keep));
		return apply();
	}
	/* Applies pending requests of the arbiter; to be called between parallel regions. Returns
	 * the number of CPUs. */
	unsigned poll()
	{
		int changed = 0;
		check(corebeat_claim_poll(claim_, &changed));
		return changed ? apply() : static_cast<unsigned>(cpus_.size());
	}
	/* Older name of poll(). */
	unsigned heed() { return poll(); }
	/* The CPUs, in the order of the threads that are pinned to them. None in a child of fork. */
	const std::vector<unsigned> &cpus() const
	{
		static const std::vector<unsigned> none;
		return corebeat_claim_cpus(claim_, nullptr, 0) > 0 ? cpus_ : none;
	}
	/* See corebeat_claim_fd(). */
	int fd() const { return corebeat_claim_fd(claim_); }

private:
	struct Request {
		unsigned min = 1, max = 1;
		int numa = COREBEAT_ANY;
		void take(CPUQuantity quantity) { min = quantity.min, max = quantity.max; }
		void take(NUMA place) { numa = place.placement; }
	};

	static void check(int error)
	{
		if (error)
			throw std::runtime_error(corebeat_why());
	}

	/* Sets the size of the next parallel region to the number of CPUs, and pins its threads. */
	unsigned apply()
	{
		size_t count = claim_ ? corebeat_claim_cpus(claim_, nullptr, 0) : 0;
		cpus_.resize(count);
		if (count > 0)
			corebeat_claim_cpus(claim_, cpus_.data(), count);
#ifdef _OPENMP
		/* The region includes all threads that were pinned, so that threads that are not
		 * needed now are unpinned. OpenMP's runtime keeps its threads and their numbers
		 * between regions. */
		int threads = claim_ ? std::max<int>(1, count) : threads_before_;
		int touched = std::max(pinned_, static_cast<int>(count));
		if (touched > 1) {
#pragma omp parallel num_threads(touched)
			pin_thread(omp_get_thread_num());
		} else {
			pin_thread(0);
		}
		pinned_ = count;
		omp_set_num_threads(threads);
#else
		/* Threads that start later inherit the set: they may use all CPUs of the claim. */
		pin(cpus_.begin(), cpus_.end());
#endif
		return count;
	}

	/* The CPUs that threads could use before the first claim. */
	static const cpu_set_t &initial_cpus()
	{
		static const cpu_set_t set = [] {
			cpu_set_t now;
			CPU_ZERO(&now);
			sched_getaffinity(0, sizeof now, &now);
			return now;
		}();
		return set;
	}

	/* Pins the calling thread to these CPUs, or unpins it if there are none. */
	using Iterator = std::vector<unsigned>::const_iterator;
	static void pin(Iterator begin, Iterator end)
	{
		cpu_set_t set = initial_cpus();
		if (begin != end) {
			CPU_ZERO(&set);
			for (; begin != end; ++begin)
				CPU_SET(*begin, &set);
		}
		sched_setaffinity(0, sizeof set, &set);
	}

	/* Pins the thread with this number to its CPU, or unpins it. */
	void pin_thread(size_t thread) const
	{
		if (thread < cpus_.size())
			pin(cpus_.begin() + thread, cpus_.begin() + thread + 1);
		else
			pin(cpus_.end(), cpus_.end());
	}

	corebeat_claim *claim_ = nullptr;
	/* The process that has the claim. */
	const pid_t owner_ = getpid();
	std::vector<unsigned> cpus_;
	int threads_before_ = 1;
	int pinned_ = 0;
};

#endif

#endif
