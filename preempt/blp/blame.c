// blame.c - which kernels are held back because windows that they run beside are slow: harm.c, with what processes tell each other.
//
// A process with a window says whether that was slow (gp_line.judged_ns) before it closes it. A reader that sees the window closed sees
// that word, or a later window's, which tells it nothing. The process that ran beside it answers whether a kernel is to blame
// (gp_line.excuses_ns). The next window to open sees that, or a later one. One thread runs this file: it stops and resumes the GPU's
// domains.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/gpu/harm.h"

static struct blame {
	struct gp_harm harm;
	uint32_t slot;      // that has the window
	uint64_t opened_ns; // 0: none is open, or several are
} blames[GP_GPUS];

// The verdict on the window that has closed; GP_UNJUDGED if the line tells of another one by now.
static enum gp_verdict verdict(const struct gp_gpu *g, const struct blame *b)
{
	uint64_t judged = gp_line_of(g->segment, b->slot)->judged_ns;
	return judged == gp_judged(b->opened_ns, false) ? GP_GOOD :
	       judged == gp_judged(b->opened_ns, true)  ? GP_SLOW :
							  GP_UNJUDGED;
}

void blp_blame(struct gp_gpu *g)
{
	struct blame *b = &blames[g - gp_gpu];
	uint64_t open = gp_windows_open(g->segment, g->higher & ~g->ignored);

	if (b->opened_ns && gp_line_of(g->segment, b->slot)->window_opened_ns != b->opened_ns) {
		if (gp_harm_closes(&b->harm, verdict(g, b)))
			gp_own_line(g)->excuses_ns = b->opened_ns;
		b->opened_ns = 0;
		g->stops.hurting = b->harm.held;
	}
	if (!b->opened_ns && open && !(open & (open - 1))) {
		b->slot = (uint32_t)__builtin_ctzll(open);
		b->opened_ns = gp_line_of(g->segment, b->slot)->window_opened_ns;
	}
}

// The window that would say that all went well beside it does not if nothing ran there.
void blp_blamed(struct gp_gpu *g)
{
	struct blame *b = &blames[g - gp_gpu];
	bool idle = b->harm.kept && !b->harm.count;

	if (b->opened_ns && idle != (gp_own_line(g)->excuses_ns == b->opened_ns))
		gp_own_line(g)->excuses_ns = idle ? b->opened_ns : 0;
}

bool blp_hurts(const struct gp_domain *d, CUfunction function)
{
	struct blame *b = &blames[d->gpu - gp_gpu];
	return b->opened_ns && gp_harm_holds(&b->harm, (uintptr_t)function);
}

void blp_runs_beside_window(const struct gp_domain *d, CUfunction function)
{
	struct blame *b = &blames[d->gpu - gp_gpu];
	if (b->opened_ns)
		gp_harm_ran(&b->harm, (uintptr_t)function);
}
