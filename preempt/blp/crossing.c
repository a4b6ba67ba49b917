// crossing.c - operations of the legacy stream and of blocking streams that are in different domains.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

// Streams of the legacy stream's own domain are on no side: the lock and the log of that domain order them.
enum blp_side blp_side_of(const struct gp_domain *d, CUcontext context, CUstream stream)
{
	unsigned flags = 0;
	if (!blp_separated())
		return BLP_NO_SIDE;
	if (stream == GP_STREAM_LEGACY)
		return BLP_LEGACY_SIDE;
	if (d->scope != BLP_OF_CONTEXT)
		return d->scope == BLP_OF_BLOCKING_STREAM ? BLP_BLOCKING_SIDE : BLP_NO_SIDE;
	if (!blp_is_special(context, GP_STREAM_LEGACY))
		return BLP_NO_SIDE;
	if (stream != GP_STREAM_PER_THREAD && !gp_driver.cuStreamGetFlags(stream, &flags) && flags & CU_STREAM_NON_BLOCKING)
		return BLP_NO_SIDE;
	return BLP_BLOCKING_SIDE;
}

void blp_begin_crossing(struct gp_operation *o, struct gp_domain *d)
{
	o->crossing = blp_side_of(d, o->handle, o->stream);
	if (o->crossing)
		d->crossing[o->crossing]++;
}

void blp_end_crossing(struct gp_operation *o, struct gp_domain *d)
{
	if (o->crossing)
		d->crossing[o->crossing]--;
	o->crossing = BLP_NO_SIDE;
}

bool blp_is_counted(const struct gp_operation *o, const struct gp_domain *d)
{
	return blp_domain_for(o) == d && o->crossing == blp_side_of(d, o->handle, o->stream);
}

bool blp_is_crossed(const struct gp_operation *o, const struct gp_domain *d)
{
	if (!blp_is_counted(o, d))
		return true;
	for (int i = 0; o->crossing && i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *other = blp_domains[i];
		if (other != d && other->context == o->handle &&
		    other->crossing[BLP_LEGACY_SIDE + BLP_BLOCKING_SIDE - o->crossing])
			return true;
	}
	return false;
}
