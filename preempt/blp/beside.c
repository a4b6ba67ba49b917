// beside.c - launches that do not drain.
//
// A stop waits for running blocks. These may wait for launches on other streams, or for the CPU. A launch may have more blocks than fit
// on the GPU at once: then they may also wait for blocks of it that the stop held back. So a launch that takes too long is left running.
// Its missing blocks are launched beside it, on a stream of ours, and its kernel is never parted again. Launches that have not begun
// behind it are launched again behind it without a record: while they queue, no later stop could tell whether they have begun.
//
// The stream's other launches that run again come behind the missing blocks, and so does new work: relaunch.c.
//
// The missing blocks have records in an arena whose flag is never set. One for each stream is enough, since a launch begins
// when the launches before it on its stream have ended.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

enum {
	PARTED = 32,
};

struct parted { // kernels that were parted; gp_code_keep_whole is called without the lock
	CUfunction function[PARTED];
	uint32_t count;
};

static uint32_t spare_of_stream(uint32_t stream) { return 1 + stream; }

// A block has begun since the launch was last driven: the record counts more than were done then.
static bool has_begun(const struct gpreempt_record *r) { return r->state != GPREEMPT_FROZEN || r->count > r->done; }

// Some of its blocks have run, in this launch of it or an earlier one.
static bool has_run(const struct gpreempt_record *r) { return r->count || r->state != GPREEMPT_FROZEN; }

static bool is_whole(const struct gpreempt_record *r, uint32_t windows)
{
	return r->state != GPREEMPT_FROZEN || r->count >= windows;
}

static uint32_t windows_of(const struct blp_entry *e) { return blp_windows(blp_blocks(e), e->cluster, e->shift); }

// A block of the twin has run, or begun, in any launch of it.
static bool touched(const struct blp_twin *t)
{
	bool any = false;
	for (uint32_t i = 0; i < t->count; i++)
		any |= has_run(&t->image[i]);
	return any;
}

bool blp_make_beside(struct gp_domain *d, uint32_t stream)
{
	__typeof__(d->beside[0]) *b = &d->beside[stream];
	int least = 0, greatest = 0;

	if (b->stream && !blp_is_ahead(d, stream) && gp_driver.cuStreamQuery(b->stream)) { // what it has may wait for the program
		BLP_TRY(cuStreamDestroy, b->stream);
		b->stream = NULL;
	}
	if (!b->stream) { // of a high priority, and not that of d->stream
		BLP_TRY(cuCtxGetStreamPriorityRange, &least, &greatest);
		BLP_TRY(cuStreamCreateWithPriority, &b->stream, CU_STREAM_NON_BLOCKING,
			least - greatest > 2 ? greatest + 1 : greatest);
	}
	const struct blp_stream *s = &d->stream_of[stream]; // which may be another one than last time
	if (s->thread || !gp_driver.cuStreamGetPriority || gp_driver.cuStreamGetPriority(s->handle, &b->priority))
		b->priority = BLP_DEFAULT_PRIORITY;
	if (!b->done)
		BLP_TRY(cuEventCreate, &b->done, CU_EVENT_DISABLE_TIMING);
	return true;
}

// Launches the missing blocks of a launch. The record is pinned, and does not change until they are over.
static bool launch_rest(struct gp_domain *d, struct blp_entry *e, uint32_t stream, struct gpreempt_record *r,
			uint32_t spare, struct parted *parted)
{
	CUdeviceptr record = blp_spare(d, spare);
	struct gp_stop_counters *count = &d->gpu->stops;

	r->state = 0;
	r->done = r->count;
	if (!blp_make_beside(d, stream))
		return false;
	d->beside[stream].use = blp_leads(d, stream) ?
					BLP_LEADS_AHEAD :
					BLP_AHEAD; // until what is launched again comes behind it: relaunch.c
	BLP_TRY(cuMemcpyHtoDAsync, record, r, sizeof *r, d->beside[stream].stream);
	CUresult result = blp_drive_on(e, d->beside[stream].stream, &d->beside[stream].priority, record | e->shift);
	if (result) {
		blp_give_up(d, "cuLaunchKernel", result);
		return false;
	}
	if (parted->count < PARTED)
		parted->function[parted->count++] = e->function;
	gp_count(&count->beside, 1);
	return true;
}

static bool let_launch_go(struct gp_domain *d, struct blp_entry *e, struct parted *parted)
{
	const struct gpreempt_record *r = blp_record_of(d, e);
	struct gpreempt_record *staged = &d->staged[e->stream];

	bool begun = has_begun(r), whole = is_whole(r, windows_of(e));
	blp_turn(d, e, begun || whole ? BLP_UNGUARDED : BLP_CUT_UNGUARDED);
	if ((begun || whole) && !blp_come_behind_narrow(d, &d->stream_of[e->stream]))
		return false;
	if (whole)
		return true;
	gp_count(&d->gpu->stops.cuts, 1);
	if (r->count || r->done) {
		*staged = *r;
		staged->state = 0;
		staged->done = r->count;
		e->spare = spare_of_stream(e->stream);
	}
	return !begun || launch_rest(d, e, e->stream, staged, e->spare, parted);
}

// A graph of which nothing has run is launched again as the program's own instance. Of another, kernels that have begun get their missing
// blocks beside them. The others are launched behind it one by one (drive_parted in send.c). Its records stay frozen, so that its queued
// kernels end without running. Its next launch can be stopped again, unless its blocks may wait for each other, which would be parted
// every time.
static bool let_graph_go(struct gp_domain *d, struct blp_entry *e, struct parted *parted)
{
	struct blp_twin *t = e->twin;
	bool beside = false, missing = false;

	t->parted = touched(t);
	if (!t->parted) {
		blp_turn(d, e, BLP_CUT_UNGUARDED);
		gp_count(&d->gpu->stops.cuts, 1);
		return true;
	}
	for (uint32_t i = 0; i < t->count; i++) {
		struct gpreempt_record *r = &t->image[i];
		bool begun = has_begun(r);
		t->over[i] = begun || is_whole(r, t->windows[i]);
		missing |= !t->over[i];
		if (!begun || is_whole(r, t->windows[i]))
			continue;
		if (!launch_rest(d, &t->kernel[i], e->stream, r, blp_spare_of_node(t, i), parted))
			return false;
		t->retired = beside = true;
	}
	blp_turn(d, e, missing ? BLP_CUT_UNGUARDED : BLP_UNGUARDED);
	gp_count(&d->gpu->stops.cuts, missing || beside);
	return true;
}

// All entries before the last launch on a stream of which a block has ever run are complete.
static void complete_passed(struct gp_domain *d)
{
	uint64_t previous[BLP_STREAMS] = {0};
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		struct blp_stream *s = &d->stream_of[e->stream];
		if (d->drain[e->stream].as != BLP_IS_LATE || at < s->done)
			continue;
		if (blp_is_stoppable(e) && previous[e->stream] &&
		    ((e->kind == BLP_LAUNCH && has_run(blp_record_of(d, e))) || (e->kind == BLP_GRAPH && touched(e->twin))))
			blp_complete_to(d, s, previous[e->stream]);
		previous[e->stream] = at + 1;
	}
}

static void keep_launch(struct gp_domain *d, struct blp_entry *e, bool *begun)
{
	const struct gpreempt_record *r = blp_record_of(d, e);

	bool run = e->record && r->count;
	blp_turn(d, e, run && *begun ? BLP_DONE : BLP_CUT_UNGUARDED); // done: a launch behind it has begun
	if (!run || *begun)
		return;
	d->staged[e->stream] = *r;
	e->spare = spare_of_stream(e->stream);
	*begun = true;
}

static void keep_graph(struct gp_domain *d, struct blp_entry *e, bool *begun)
{
	struct blp_twin *t = e->twin;

	t->parted = touched(t);
	for (uint32_t i = 0; i < t->count; i++)
		t->over[i] = t->image[i].count == GPREEMPT_MOST;
	blp_turn(d, e, t->parted && *begun ? BLP_DONE : BLP_CUT_UNGUARDED);
	*begun |= t->parted;
}

// A launch that runs again without a record must not overtake the work on other streams that it is ordered behind. So that work is not
// cut again either: the end of a cut launch lets the driver go on behind it.
void blp_keep_ahead(struct gp_domain *d)
{
	uint64_t kept[BLP_STREAMS] = {0}; // entries of each stream below this sequence are kept
	bool begun[BLP_STREAMS] = {false};

	for (uint64_t at = d->head; at-- > d->tail;) {
		struct blp_entry *e = blp_entry_at(d, at);
		struct blp_stream *s = &d->stream_of[e->stream];
		if (blp_is_done(e) || at < s->done)
			continue;
		if (e->stage == BLP_CUT_UNGUARDED)
			kept[e->stream] = at + 1 > kept[e->stream] ? at + 1 : kept[e->stream];
		if (at >= kept[e->stream])
			continue;
		if (e->kind == BLP_WAIT && e->upto > kept[e->of])
			kept[e->of] = e->upto;
		for (uint32_t i = 0; i < d->streams; i++)
			if (&d->stream_of[i] != s && blp_related(&d->stream_of[i], s->handle, s->blocking) && at > kept[i])
				kept[i] = at;
		if (blp_is_unguarded(e) || blp_is_sent(e))
			continue;
		if (e->kind == BLP_LAUNCH)
			keep_launch(d, e, &begun[e->stream]);
		else if (e->kind == BLP_GRAPH)
			keep_graph(d, e, &begun[e->stream]);
	}
}

bool blp_let_go(struct gp_domain *d)
{
	struct parted parted = {.count = 0};
	bool accepted = true;

	pthread_mutex_lock(&d->lock);
	blp_give_way(d);
	complete_passed(d);
	for (uint64_t at = d->tail; at < d->head && accepted; at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		if (at < d->drain[e->stream].upto || at < d->stream_of[e->stream].done || !blp_is_stoppable(e))
			continue;
		// Narrow, the order of the log kept a wait. From now on its stream's own queue does.
		if (e->kind == BLP_WAIT && d->narrow.was && at < d->narrow.driven[e->stream]) {
			blp_turn(d, e, BLP_CUT);
			e->taken = BLP_NEVER;
		}
		if (e->kind == BLP_LAUNCH)
			accepted = let_launch_go(d, e, &parted);
		else if (e->kind == BLP_GRAPH)
			accepted = let_graph_go(d, e, &parted);
	}
	pthread_mutex_unlock(&d->lock);
	for (uint32_t i = 0; i < parted.count; i++)
		gp_code_keep_whole(parted.function[i]);
	return accepted;
}
