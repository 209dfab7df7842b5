/* A heartbeat for each iteration of an OpenMP loop, in C++.
 *
 *     c++ -fopenmp heartbeat.cpp -I../include -L../../../../target/release -lcorebeat -o heartbeat
 *     ./heartbeat
 */
#include "hrm.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

static void check(int error)
{
	if (error) {
		std::fprintf(stderr, "%s\n", hrm_why());
		std::exit(1);
	}
}

int main()
{
	/* A consumer reads the same values as `corebeat beat watch` from outside. It keeps the
	 * group alive while no thread is attached. */
	hrm_t hrm;
	check(hrm_attach(&hrm, 7, 1));

	double sum = 0;
#pragma omp parallel reduction(+ : sum)
	{
		hrm_t hrm;
		check(hrm_attach(&hrm, 7, 0));
		check(hrm_set_min_heart_rate(&hrm, 1000));
#pragma omp for schedule(dynamic, 64)
		for (int i = 0; i < 200000; i++) {
			sum += std::sqrt(std::sin(i) + 1.0);
			heartbeat(&hrm, 1);
		}
		check(hrm_detach(&hrm));
	}

	uint32_t least;
	check(hrm_get_min_heart_rate(&hrm, &least));
	std::printf("%.3f with a goal of %u or more\n", sum, least);
	check(hrm_detach(&hrm));
}
