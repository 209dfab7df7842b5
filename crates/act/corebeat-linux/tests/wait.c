/* Threads that wait for each other. The name of a thread states how its wait is to be counted.
 *
 *     wait         one thread for each kind of wait
 *     wait pool    four idle threads of a pool
 *
 * The program ends at the end of its input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, inheriting;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;

static void *wait_for(void *name) {
    pthread_setname_np(pthread_self(), name);
    if (!strcmp(name, "lock mutex")) {
        pthread_mutex_lock(&lock);
    } else if (!strcmp(name, "lock inheriting")) {
        pthread_mutex_lock(&inheriting);
    } else if (!strcmp(name, "park semaphore")) {
        sem_wait(&semaphore);
    } else if (!strcmp(name, "park barrier")) {
        pthread_barrier_wait(&barrier);
    } else {
        pthread_mutex_lock(&pool_lock);
        for (;;)
            pthread_cond_wait(&has_work, &pool_lock);
    }
    return NULL;
}

static pthread_t start(void *(*run)(void *), char *name) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, name))
        abort();
    return thread;
}

static void *end_at_end_of_input(void *unused) {
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    exit(0);
}

int main(int argc, char **argv) {
    static char *kinds[] = {"lock mutex", "lock inheriting", "park semaphore", "park barrier"};
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &attributes);
    pthread_barrier_init(&barrier, NULL, 2);
    sem_init(&semaphore, 0, 0);
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&inheriting);
    for (int i = 0; i < 4; i++)
        start(wait_for, argc > 1 ? "park pool" : kinds[i]);
    start(end_at_end_of_input, NULL);
    pthread_t worker = start(wait_for, "park pool");
    pthread_setname_np(pthread_self(), "park join");
    pthread_join(worker, NULL);
}
