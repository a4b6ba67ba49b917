// markers.c - events of ours on the queues of streams. Each tells that the entries of its stream below a sequence are complete.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

enum { LEFT = -2 }; // in place of what follows a marker: in no list, and still used

static void free_marker(struct gp_domain *d, int m)
{
	if (d->marker[m].users) {
		d->marker[m].next = LEFT;
		return;
	}
	d->marker[m].next = d->free_marker;
	d->free_marker = m;
}

CUevent blp_use_marker(struct gp_domain *d, int m)
{
	d->marker[m].users++;
	return d->marker[m].event;
}

void blp_leave_marker(struct gp_domain *d, int m)
{
	if (!--d->marker[m].users && d->marker[m].next == LEFT)
		free_marker(d, m);
}

int blp_free_markers(struct gp_domain *d, int first, uint64_t upto)
{
	while (first >= 0 && d->marker[first].upto <= upto) {
		int m = first;
		first = d->marker[m].next;
		free_marker(d, m);
	}
	return first;
}

void blp_drop_markers(struct gp_domain *d, struct blp_stream *s)
{
	blp_free_markers(d, s->first_marker, UINT64_MAX);
	s->first_marker = s->last_marker = -1;
	s->unmarked = 0;
}

int blp_marker_behind(struct gp_domain *d, int first, uint64_t upto)
{
	while (first >= 0 && d->marker[first].upto < upto)
		first = d->marker[first].next;
	return first;
}

bool blp_mark(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	int m = d->free_marker;
	if (s->last_marker >= 0 && d->marker[s->last_marker].upto >= upto)
		return true;
	if (m < 0 || blp_is_orphan(s) ||
	    (!d->marker[m].event && gp_driver.cuEventCreate(&d->marker[m].event, CU_EVENT_DISABLE_TIMING)) ||
	    gp_driver.cuEventRecord(d->marker[m].event, blp_queue_of(d, s)))
		return false;
	d->free_marker = d->marker[m].next;
	d->marker[m].upto = upto;
	d->marker[m].next = -1;
	if (s->last_marker >= 0)
		d->marker[s->last_marker].next = m;
	else
		s->first_marker = m;
	s->last_marker = m;
	s->unmarked = 0;
	s->threads_marked = s->threads;
	return true;
}
