// clock.c - the time of the machine, and calls that take some.
#include "sim.h"

#include <time.h>

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define SLACK_NS 100000 // a sleep ends so much late at most, mostly

void sim_take(uint64_t ns)
{
	uint64_t until = now_ns() + ns, asleep = ns > SLACK_NS ? ns - SLACK_NS : 0;
	struct timespec t = {(time_t)(asleep / 1000000000u), (long)(asleep % 1000000000u)};
	if (asleep)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
	while (ns && now_ns() < until)
		;
}
