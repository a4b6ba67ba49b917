// events.c - the latest record of each event that the program made.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/objects/objects.h"

// With the events' lock. NULL: the event is not known.
static struct gp_event_record *find(CUevent handle)
{
	struct gp_object *o = gp_object_find(GP_EVENT, handle, NULL);
	return o ? &o->event : NULL;
}

static _Atomic bool unknown_shared; // an event that is not known may be

// With the events' lock. NULL: there is no place. context: of one that is not known. Other calls than a record may be made in any.
static struct gp_event_record *enter_event(CUevent handle, CUcontext context)
{
	struct gp_object *o = gp_object_enter(GP_EVENT, handle, NULL);
	if (!o)
		return NULL;
	if (!o->event.known) {
		o->event.shared = unknown_shared;
		o->event.context = gp_primary_context(context);
	}
	o->event.known = true;
	return &o->event;
}

struct gp_event_record blp_look_event(CUevent handle)
{
	gp_objects_lock(GP_EVENT);
	const struct gp_event_record *e = find(handle);
	struct gp_event_record copy = e ? *e : (struct gp_event_record){.shared = unknown_shared};
	gp_objects_unlock(GP_EVENT);
	return copy;
}

bool blp_is_latest_record(CUevent handle, struct gp_domain *d, uint64_t upto)
{
	struct gp_event_record e = blp_look_event(handle);
	return e.domain == d && e.upto == upto;
}

// Remembers the event's latest record, also one outside the log (d is NULL): of an unknown event nothing could be said.
// False: the table is full.
bool blp_remember_event(const struct gp_operation *o, struct gp_domain *d, uint16_t stream, uint64_t upto, bool host_blocked)
{
	gp_objects_lock(GP_EVENT);
	CUcontext context = o->whole ? o->whole : o->handle; // the event's: the driver refuses others
	struct gp_event_record *e = enter_event(o->event, context);
	if (e) {
		e->context = gp_primary_context(context);
		e->domain = d;
		e->stream = stream;
		e->upto = upto;
		e->host_blocked = host_blocked;
		e->captured = false;
	}
	gp_objects_unlock(GP_EVENT);
	return e;
}

void blp_event_captured(CUevent handle)
{
	if (!blp_domains[0])
		return;
	CUcontext current = gp_current_handle();
	gp_objects_lock(GP_EVENT);
	struct gp_event_record *e = enter_event(handle, current);
	if (e) {
		e->domain = NULL;
		e->host_blocked = false;
		e->captured = true;
	}
	gp_objects_unlock(GP_EVENT);
}

void blp_forget_events(struct gp_domain *d)
{
	gp_objects_lock(GP_EVENT);
	for (struct gp_object *o = NULL; (o = gp_objects_next(GP_EVENT, o));)
		if (o->event.domain == d)
			o->event.domain = NULL;
	gp_objects_unlock(GP_EVENT);
}

void blp_record_again(struct gp_domain *d, CUevent handle, uint64_t upto, CUstream stream)
{
	gp_objects_lock(GP_EVENT); // the event is not destroyed meanwhile
	struct gp_event_record *e = find(handle);
	if (e && e->domain == d && e->upto == upto) // not recorded elsewhere since
		gp_driver.cuEventRecord(handle, stream);
	gp_objects_unlock(GP_EVENT);
}

bool blp_wait_again(struct gp_domain *d, CUevent handle, uint64_t upto, CUstream stream)
{
	gp_objects_lock(GP_EVENT);
	struct gp_event_record *e = find(handle);
	bool is = e && e->domain == d && e->upto == upto && !gp_driver.cuStreamWaitEvent(stream, handle, 0);
	gp_objects_unlock(GP_EVENT);
	return is;
}

CUresult blp_query_record(struct gp_domain *d, CUevent handle, uint64_t upto)
{
	gp_objects_lock(GP_EVENT); // the event is not destroyed meanwhile
	struct gp_event_record *e = find(handle);
	CUresult result = e && e->domain == d && e->upto == upto ? blp_query(handle) : CUDA_ERROR_NOT_FOUND;
	gp_objects_unlock(GP_EVENT);
	return result;
}

void gp_blp_event_shared(CUevent handle)
{
	CUcontext current = gp_current_handle();
	gp_objects_lock(GP_EVENT);
	struct gp_event_record *e = enter_event(handle, current);
	if (e)
		e->shared = true;
	else
		unknown_shared = true;
	gp_objects_unlock(GP_EVENT);
}
