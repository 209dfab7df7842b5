/* Merge sort of random numbers, as in main.rs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 16 };

static void insert(uint64_t *numbers, size_t count)
{
    for (size_t end = 1; end < count; end++)
        for (size_t at = end; at > 0 && numbers[at - 1] > numbers[at]; at--) {
            uint64_t number = numbers[at];
            numbers[at] = numbers[at - 1];
            numbers[at - 1] = number;
        }
}

static void merge(const uint64_t *left, size_t lefts, const uint64_t *right, size_t rights,
                  uint64_t *restrict merged)
{
    size_t l = 0, r = 0;
    for (size_t n = 0; n < lefts + rights; n++)
        merged[n] = r == rights || (l < lefts && left[l] <= right[r]) ? left[l++] : right[r++];
}

static void sort(uint64_t *numbers, uint64_t *room, size_t count)
{
    if (count <= SMALL) {
        insert(numbers, count);
        return;
    }
    size_t half = count / 2;
    sort(numbers, room, half);
    sort(numbers + half, room + half, count - half);
    merge(numbers, half, numbers + half, count - half, room);
    memcpy(numbers, room, count * sizeof *numbers);
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 8000000;
    uint64_t *numbers = malloc(count * sizeof *numbers), *room = malloc(count * sizeof *room);
    if (!numbers || !room)
        return 1;
    for (size_t n = 0; n < count; n++) {
        uint64_t product = (n + 1) * 0x9E3779B97F4A7C15u;
        numbers[n] = product << 29 | product >> 35;
    }
    sort(numbers, room, count);
    uint64_t check = 0;
    for (size_t n = 0; n < count; n++)
        check = check * 31 + numbers[n];
    printf("%zu numbers, %016llx\n", count, (unsigned long long)check);
    return 0;
}
