/* The library opens no standard descriptor, after the program has closed these. */
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"
#include "invasive_computing.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	hrm_t producer = {0}, consumer = {0};
	corebeat_claim *claim = NULL;
	uint32_t rate;
	int output = fcntl(1, F_DUPFD, 10), errors = fcntl(2, F_DUPFD, 10);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	int produces = hrm_attach(&producer, 7, 0);
	int consumes = hrm_attach(&consumer, 7, 1);
	int reads = hrm_get_global_heart_rate(&consumer, &rate);
	int claims = corebeat_claim_begin(&claim);
	int invades = corebeat_invade(claim, 1, 2, COREBEAT_ANY);
	int opened = 0;
	for (int fd = 0; fd < 3; fd++)
		opened += fcntl(fd, F_GETFD) != -1;
	dup2(output, 1);
	dup2(errors, 2);
	EXPECT(produces == 0);
	EXPECT(consumes == 0);
	EXPECT(reads == 0);
	EXPECT(claims == 0);
	EXPECT(invades == 0);
	EXPECT(opened == 0);
	EXPECT(hrm_detach(&consumer) == 0);
	EXPECT(hrm_detach(&producer) == 0);
	corebeat_claim_end(claim);
	printf("the standard descriptors are free\n");
	return 0;
}
