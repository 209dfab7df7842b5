/* Listing 1.1 of Hollmann, Gerndt, Invasive Computing: An Application Assisted Resource Management
 * Approach (2012), completed by the continuation on one thread that its last comment announces.
 *
 *     c++ -fopenmp invasive.cpp -I../include -L../../../../target/release -lcorebeat -o invasive
 *     ./invasive
 */
#include "invasive_computing.h"

#include <cstdio>

int main() {
	Claim claim;
	double a[1024], b[1024], c[1024];
	for (int i = 0; i < 1024; i++)
		a[i] = i, b[i] = 2 * i;
	int threads = 0;
	/* acquire resources according to the given constraints */
	claim.invade(CPUQuantity(1,8), NUMA(scatter));
	std::printf("a claim of %zu CPUs\n", claim.cpus().size());
	/* executing a parallel for loop on the given resources */
	#pragma omp parallel for
	for(int i=0; i < 1024; i++) {
		c[i] = a[i] + b[i];
		if (i == 0)
			threads = omp_get_num_threads();
	}
	/* free resources, delete pinning after parallel region */
	claim.retreat(1);
	/* continue the application with one thread */
	double sum = 0;
	for (double x : c)
		sum += x;
	std::printf("%d threads, sum %.0f, %zu CPU left\n", threads, sum, claim.cpus().size());
}
