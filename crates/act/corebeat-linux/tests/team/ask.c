/* Runs parallel regions on command and prints their sizes, one line per command.
 * Its threads count the size of a team, so that the program does not read the size. */
#define _GNU_SOURCE
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef THREAD_DATA
static int mine;
#pragma omp threadprivate(mine)
#endif

static void wait_for_input(void) {
    char c;
    if (read(0, &c, 1) != 1)
        exit(0);
}

int main(int argc, char **argv) {
    char command;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (read(0, &command, 1) == 1) {
        int size = 0, reported = 0, inner = 0;
        switch (command) {
        case 'r': /* a region */
#pragma omp parallel
        {
#ifdef THREAD_DATA
            mine++;
#endif
#pragma omp atomic
            size++;
        }
            printf("%d\n", size);
            break;
        case 'c': /* a region with a clause */
#pragma omp parallel num_threads(3)
#pragma omp atomic
            size++;
            printf("%d\n", size);
            break;
        case 'i': /* a region whose if clause is false */
#pragma omp parallel if (argc > 100) num_threads(7)
        {
#pragma omp atomic
            size++;
#pragma omp master
            reported = omp_get_num_threads();
        }
            printf("%d %d\n", size, reported);
            break;
        case 't': /* a region that reads its size */
#pragma omp parallel
        {
#pragma omp atomic
            size++;
#pragma omp master
            reported = omp_get_num_threads();
        }
            printf("%d %d\n", size, reported);
            break;
        case 'k': /* a region that keeps its size for later */
#pragma omp parallel
        {
            reported = omp_get_num_threads();
            if (omp_get_thread_num() == 0)
                size = reported;
        }
            printf("%d\n", size);
            break;
        case 'l': /* loops in a region, whose shares gcc has the threads find by themselves */
#pragma omp parallel
        {
#pragma omp atomic
            size++;
#pragma omp for schedule(static) reduction(+ : reported)
            for (int i = 0; i < argc * 1000; i++)
                reported += i % 3;
#pragma omp for schedule(static, 5) reduction(+ : reported)
            for (long i = 0; i < argc * 1000; i++)
                reported += i % 3;
        }
            printf("%d %d\n", size, reported);
            break;
        case 'n': /* a region in each thread of a region */
#pragma omp parallel
        {
            int within = 0;
#pragma omp atomic
            size++;
#pragma omp parallel shared(within)
#pragma omp atomic
            within++;
#pragma omp critical
            inner = within > inner ? within : inner;
        }
            printf("%d %d\n", size, inner);
            break;
        case 'm':
            printf("%d\n", omp_get_max_threads());
            break;
        case 's':
            omp_set_num_threads(3);
            printf("set\n");
            break;
        case 'd':
        case 'D':
            omp_set_dynamic(command == 'd');
            printf("%d\n", omp_get_dynamic());
            break;
        case 'w': /* a region that lasts until the next byte */
#pragma omp parallel
#pragma omp master
            wait_for_input();
            printf("waited\n");
            break;
        case 'f': /* a child that takes the commands until it ends */
            if (fork() == 0) {
                printf("%d\n", getpid());
                break;
            }
            wait(NULL);
            printf("alone\n");
            break;
        case 'x':
            execv("/proc/self/exe", argv);
            return 1;
        case 'q':
            return 0;
        }
    }
}
