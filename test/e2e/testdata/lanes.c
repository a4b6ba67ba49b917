// lanes.c - prints where a helper's page has what says what its program carries out for it (preempt/far/far.h): name, offset of the state, and of
// the result of the last call.
#include "preempt/far/far.h"

#include <stdio.h>

static void print(const char *name, int lane)
{
	printf("%s %zu %zu\n", name, offsetof(struct gp_page, lane[lane].state),
	       offsetof(struct gp_page, lane[lane].call.result));
}

int main(void)
{
	print("core", GP_LANE_CORE);
	print("rewriter", GP_LANE_REWRITER);
	print("mover", GP_LANE_MOVER);
	print("agent", GP_LANE_AGENT);
	print("meter", GP_LANE_METER);
	return 0;
}
