// thread.c - per-thread default streams.
//
// Their handle means another stream on each thread, so no other thread can launch again what was cut on it. Logged launches go to a
// stream of ours instead, one for each thread and domain. The legacy stream orders it as it does the thread's own. All other work goes to
// the thread's own stream. Where one of the two must come behind the other, an event orders them; mostly none is needed, since work that
// is not logged waits on the host for logged launches. Waits for events that the log still has are not waited for. A wait for the
// thread's own stream, or a question about it, covers the other one by its markers: an event that orders the two would come behind the
// legacy stream.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

enum { OWN = 8 }; // domains in which a thread has a stream

// Of the calling thread.
GP_OF_THREAD struct own {
	struct gp_domain *domain;
	uint64_t generation; // number of the domain
	uint32_t place;
} of_thread[OWN];

// The thread's streams may stand for another's from now on.
void gp_blp_thread_ends(void)
{
	struct own *own = *GP_MINE(of_thread);
	blp_take_ends_with_thread();
	for (int i = 0; i < OWN; i++) {
		struct gp_domain *d = own[i].domain;
		if (!d)
			continue;
		pthread_mutex_lock(&d->lock);
		if (d->context && d->generation == own[i].generation)
			d->stream_of[own[i].place].thread = BLP_THREAD_ENDED;
		pthread_mutex_unlock(&d->lock);
	}
}

// A stream that an ended thread left, if nothing of it is in flight: new work would come behind that.
static struct blp_stream *left_over(struct gp_domain *d)
{
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (s->thread == BLP_THREAD_ENDED && s->handle && !blp_pending(s) && !s->host_blocked &&
		    !s->uncuttable && !gp_driver.cuStreamQuery(s->handle))
			return s;
	}
	return NULL;
}

static struct blp_stream *find_own(struct gp_domain *d, bool insert)
{
	struct own *own = *GP_MINE(of_thread);
	CUstream handle;
	int empty = -1;

	for (int i = 0; i < OWN; i++) {
		bool stale = !own[i].domain || !own[i].domain->context || own[i].generation != own[i].domain->generation;
		if (own[i].domain == d && !stale)
			return &d->stream_of[own[i].place];
		if (stale)
			empty = i;
	}
	if (!insert || empty < 0 || !gp_thread_is_heard())
		return NULL;
	int mode = gp_relax_captures();
	struct blp_stream *s = left_over(d);
	if (!s && !gp_driver.cuStreamCreateWithPriority(&handle, 0, BLP_DEFAULT_PRIORITY) &&
	    !(s = blp_find_place(d, handle, true)))
		gp_driver.cuStreamDestroy(handle);
	if (s) {
		s->thread = BLP_THREAD_LIVES;
		s->behind = true;
		d->beside[s - d->stream_of].priority = BLP_DEFAULT_PRIORITY;
		s->ahead = false;
		own[empty].domain = d;
		own[empty].generation = d->generation;
		own[empty].place = (uint32_t)(s - d->stream_of);
		if (gp_driver.cuStreamQuery(GP_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY)
			blp_doubt(d, s, false);
	}
	gp_unrelax_captures(mode);
	return s;
}

struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream handle, bool insert)
{
	return handle == GP_STREAM_PER_THREAD ? find_own(d, insert) : blp_find_place(d, handle, insert);
}

static bool order(struct blp_stream *s, CUstream first, CUstream second)
{
	return (s->join || !gp_driver.cuEventCreate(&s->join, CU_EVENT_DISABLE_TIMING)) &&
	       !gp_driver.cuEventRecord(s->join, first) && !gp_driver.cuStreamWaitEvent(second, s->join, 0);
}

bool blp_leave_own(struct blp_stream *s)
{
	if (s->thread && s->behind)
		s->behind = !order(s, GP_STREAM_PER_THREAD, s->handle);
	s->ahead = s->thread;
	return !s->thread || !s->behind;
}

// Puts the thread's own stream behind the entries, where the GPU may not have reached them all. None can be cut any more.
static void follow(struct blp_stream *s)
{
	s->ahead = s->ahead && !blp_reached(s, s->last) && !order(s, s->handle, GP_STREAM_PER_THREAD);
}

void blp_enter_own(struct blp_stream *s)
{
	if (!s->thread)
		return;
	s->behind = true;
	follow(s);
}

// The stream that stands for the thread's own; NULL: none yet. Only the thread changes behind and ahead of it.
static struct blp_stream *stands_for_own(struct gp_domain *d)
{
	const struct own *own = *GP_MINE(of_thread);
	for (int i = 0; i < OWN; i++)
		if (own[i].domain == d && own[i].generation == d->generation)
			return &d->stream_of[own[i].place];
	return NULL;
}

void blp_pass_own(struct gp_domain *d)
{
	struct blp_stream *s = stands_for_own(d);
	if (!s)
		return;
	s->behind = true;
	if (!s->ahead)
		return;
	pthread_mutex_lock(&d->lock);
	blp_give_way(d);
	follow(s); // of what the log may still hold: waits for events, behind no launch
	pthread_mutex_unlock(&d->lock);
}
