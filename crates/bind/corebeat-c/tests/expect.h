/* The check and the compiler options that the tests in C share. */
#ifndef COREBEAT_TESTS_EXPECT_H
#define COREBEAT_TESTS_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

/* Variables that change between sigsetjmp and the jump are volatile, or unused after it; gcc cannot
 * detect that. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclobbered"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/* The reason that a failed check prints. */
#ifndef EXPECT_WHY
#define EXPECT_WHY ""
#endif

#define EXPECT(what)                                                                               \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%d: %s %s\n", __LINE__, #what, EXPECT_WHY);               \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
