/* Claims of cores for C and C++ programs: invade and retreat.
 *
 * Source: Hollmann, Gerndt, Invasive Computing: An Application Assisted Resource Management Approach (MSEPT 2012), section 2.1,
 * whose Listing 1.1 works with this header as it stands there:
 *
 *     Claim claim;
 *     claim.invade(CPUQuantity(1, 8), NUMA(scatter));
 *     #pragma omp parallel for
 *     for (int i = 0; i < 1024; i++)
 *         c[i] = a[i] + b[i];
 *     claim.retreat(1);
 *
 * Compile with -fopenmp and link with -lcorebeat. The next parallel region has as many threads as the claim has CPUs, each on one of
 * them. With a daemon (`corebeat daemon`) all programs of the host that ask share its CPUs; without one the process has only itself to
 * share with. Nothing here ever waits for a CPU. */
#ifndef COREBEAT_INVASIVE_COMPUTING_H
#define COREBEAT_INVASIVE_COMPUTING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A claim: CPUs that are its own. Used by one thread at a time. */
typedef struct corebeat_claim corebeat_claim;

enum corebeat_numa {
	COREBEAT_ANY = 0,
	COREBEAT_SCATTER = 1, /* spread over the NUMA nodes */
	COREBEAT_COMPACT = 2, /* on as few nodes as possible */
};

/* Makes a claim of one CPU, or of none if none is free. 0, or an error number. */
int corebeat_claim_begin(corebeat_claim **claim);
/* Asks for CPUs until the claim has `max`. It never waits: where fewer are free, one goes on with what one has; where that is less than
 * `min`, others are asked to give way, and corebeat_heed() tells when they did. */
int corebeat_invade(corebeat_claim *claim, unsigned min, unsigned max, int numa);
/* Gives CPUs back until the claim has `keep`. */
int corebeat_retreat(corebeat_claim *claim, unsigned keep);
/* Follows what the arbiter wants: gives back what was asked for, takes what was given since. Sets `changed` to whether anything did. */
int corebeat_heed(corebeat_claim *claim, int *changed);
/* The number of CPUs; the numbers of the first `len` of them are written to `cpus`. */
size_t corebeat_claim_cpus(const corebeat_claim *claim, unsigned *cpus, size_t len);
/* A descriptor that can be read from (poll) when there is something to heed. */
int corebeat_claim_fd(const corebeat_claim *claim);
/* Gives everything back. */
void corebeat_claim_end(corebeat_claim *claim);
/* What was wrong with this thread's last call that failed. Valid until its next call. */
const char *corebeat_why(void);

#ifdef __cplusplus
}

#include <algorithm>
#include <sched.h>
#include <stdexcept>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

/* How many CPUs a claim is to have. */
struct CPUQuantity {
	unsigned min, max;
	CPUQuantity(unsigned min, unsigned max) : min(min), max(max) {}
	explicit CPUQuantity(unsigned exactly) : min(exactly), max(exactly) {}
};

enum NUMAPlacement { scatter = COREBEAT_SCATTER, compact = COREBEAT_COMPACT };

/* Where they are to be. */
struct NUMA {
	NUMAPlacement placement;
	explicit NUMA(NUMAPlacement placement) : placement(placement) {}
};

/* A claim, and OpenMP's threads on its CPUs. */
class Claim {
public:
	Claim()
	{
		before();
#ifdef _OPENMP
		threads_before_ = omp_get_max_threads();
#endif
		check(corebeat_claim_begin(&claim_));
		follow();
	}
	~Claim()
	{
		corebeat_claim_end(claim_);
		claim_ = nullptr;
		follow();
	}
	Claim(const Claim &) = delete;
	Claim &operator=(const Claim &) = delete;

	/* Asks for CPUs by constraints, in any order. How many there are now. */
	template <class... Constraints> unsigned invade(Constraints... constraints)
	{
		Request request;
		int each[] = {0, (request.take(constraints), 0)...};
		(void)each;
		check(corebeat_invade(claim_, request.min, request.max, request.numa));
		return follow();
	}
	/* Gives all but `keep` CPUs back, and unties the threads that were on them. */
	unsigned retreat(unsigned keep)
	{
		check(corebeat_retreat(claim_, keep));
		return follow();
	}
	/* Between parallel regions: follows what the arbiter wants meanwhile. How many CPUs there are now. */
	unsigned heed()
	{
		int changed = 0;
		check(corebeat_heed(claim_, &changed));
		return changed ? follow() : static_cast<unsigned>(cpus_.size());
	}
	/* The CPUs, in the order of the threads that are on them. */
	const std::vector<unsigned> &cpus() const { return cpus_; }
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

	/* Makes the next parallel region as large as the claim, and puts its threads where the claim is. */
	unsigned follow()
	{
		size_t count = claim_ ? corebeat_claim_cpus(claim_, nullptr, 0) : 0;
		cpus_.resize(count);
		if (count > 0)
			corebeat_claim_cpus(claim_, cpus_.data(), count);
#ifdef _OPENMP
		/* Threads that were pinned and are not needed now are untied; so the region has all of them. OpenMP's runtime keeps its
		 * threads, and their numbers, from region to region. */
		int threads = claim_ ? std::max<int>(1, count) : threads_before_;
		int touched = std::max(pinned_, static_cast<int>(count));
		if (touched > 1) {
#pragma omp parallel num_threads(touched)
			place(omp_get_thread_num());
		} else {
			place(0);
		}
		pinned_ = count;
		omp_set_num_threads(threads);
#else
		/* Threads that are made later inherit this: all of the claim is theirs. */
		tie(cpus_.begin(), cpus_.end());
#endif
		return count;
	}

	/* Where threads could run before the first claim. */
	static const cpu_set_t &before()
	{
		static const cpu_set_t set = [] {
			cpu_set_t now;
			CPU_ZERO(&now);
			sched_getaffinity(0, sizeof now, &now);
			return now;
		}();
		return set;
	}

	/* Ties the calling thread to these CPUs, or unties it if there are none. */
	static void tie(std::vector<unsigned>::const_iterator begin, std::vector<unsigned>::const_iterator end)
	{
		cpu_set_t set = before();
		if (begin != end) {
			CPU_ZERO(&set);
			for (; begin != end; ++begin)
				CPU_SET(*begin, &set);
		}
		sched_setaffinity(0, sizeof set, &set);
	}

	/* Ties the thread with this number to its CPU, or unties it. */
	void place(size_t thread) const
	{
		if (thread < cpus_.size())
			tie(cpus_.begin() + thread, cpus_.begin() + thread + 1);
		else
			tie(cpus_.end(), cpus_.end());
	}

	corebeat_claim *claim_ = nullptr;
	std::vector<unsigned> cpus_;
	int threads_before_ = 1;
	int pinned_ = 0;
};

#endif

#endif
