// check.h - for the C tests beside the code (test/units).
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the test, and says which condition does not hold.
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

// Numbers of 53 bits, the same in each run (xorshift).
static inline uint64_t random_number(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state >> 11;
}

#endif
