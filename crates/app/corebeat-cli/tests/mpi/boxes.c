/* Boxes of the networks on several ranks. */
#include "C4SNet.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int number(c4snet_data_t *field) { return *(int *)C4SNetGetData(field); }
static c4snet_data_t *field(int n) { return C4SNetCreate(CTYPE_int, 1, &n); }

/* (x) -> (x): adds 1. */
void *plus(void *hnd, c4snet_data_t *x) {
    int n = number(x) + 1;
    C4SNetFree(x);
    C4SNetOut(hnd, 1, field(n));
    return hnd;
}

/* (x) -> (x): doubles. */
void *twice(void *hnd, c4snet_data_t *x) {
    int n = number(x) * 2;
    C4SNetFree(x);
    C4SNetOut(hnd, 1, field(n));
    return hnd;
}

/* (a) -> (x) and (b) -> (x). */
void *left(void *hnd, c4snet_data_t *a) {
    int n = number(a) + 1000;
    C4SNetFree(a);
    C4SNetOut(hnd, 1, field(n));
    return hnd;
}
void *right(void *hnd, c4snet_data_t *b) {
    int n = number(b) + 2000;
    C4SNetFree(b);
    C4SNetOut(hnd, 1, field(n));
    return hnd;
}

/* (x, <n>) -> (x, <n>): counts down, and the next stage is on another rank. */
void *down(void *hnd, c4snet_data_t *x, int n) {
    int y = number(x) + n;
    C4SNetFree(x);
    C4SNetOut(hnd, 1, field(y), n - 1);
    return hnd;
}

/* (x, <n>) -> (x, <n>): two records for one, until n is 0. */
void *fork2(void *hnd, c4snet_data_t *x, int n) {
    int y = number(x);
    C4SNetFree(x);
    C4SNetOut(hnd, 1, field(2 * y), n - 1);
    C4SNetOut(hnd, 1, field(2 * y + 1), n - 1);
    return hnd;
}

/* (a, b) -> (x): the sum. */
void *join(void *hnd, c4snet_data_t *a, c4snet_data_t *b) {
    int n = number(a) + number(b);
    C4SNetFree(a);
    C4SNetFree(b);
    C4SNetOut(hnd, 1, field(n));
    return hnd;
}

/* (x) -> (big): an array of 50,000 numbers. */
void *grow(void *hnd, c4snet_data_t *x) {
    int n = number(x), *data;
    c4snet_data_t *big = C4SNetAlloc(CTYPE_int, 50000, (void **)&data);
    for (int i = 0; i < 50000; i++) data[i] = n + i;
    C4SNetFree(x);
    C4SNetOut(hnd, 1, big);
    return hnd;
}

/* (<i>) -> (<i>): does not read the array. */
void *pass(void *hnd, int i) {
    C4SNetOut(hnd, 1, i + 1);
    return hnd;
}

/* (big) -> (x): the sum of the array. */
void *sum(void *hnd, c4snet_data_t *big) {
    unsigned total = 0;
    int *data = C4SNetGetData(big);
    for (size_t i = 0; i < C4SNetArraySize(big); i++) total += (unsigned)data[i];
    C4SNetFree(big);
    C4SNetOut(hnd, 1, field((int)(total & 0x7fffffff)));
    return hnd;
}

/* (x) -> (x): crashes, or dies without a trace. */
void *crash(void *hnd, c4snet_data_t *x) {
    if (number(x) == 7) *(volatile int *)0 = 1;
    C4SNetOut(hnd, 1, x);
    return hnd;
}
void *die(void *hnd, c4snet_data_t *x) {
    if (number(x) == 7) kill(getpid(), SIGKILL);
    C4SNetOut(hnd, 1, x);
    return hnd;
}

/* (x) -> (p): a pointer, which cannot move. */
void *point(void *hnd, c4snet_data_t *x) {
    void *p = hnd;
    C4SNetFree(x);
    C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_pointer, 1, &p));
    return hnd;
}
void *take(void *hnd, c4snet_data_t *p) {
    C4SNetFree(p);
    C4SNetOut(hnd, 1, field(1));
    return hnd;
}
